"""Speed against AR: policies timed in turns on the same prompts by the same engine.

A time runs from the prompt to the last token, prefill included. Turns alternate in direction, so a machine
that slows down slows every policy. Tokens are those emitted up to the end token, fill not counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dgr2.decoding.policy import DecodePolicy
from dgr2.evaluation.bootstrap import Interval, median_interval, median_ratio_interval
from dgr2.evaluation.engine import Engine, OnDone


@dataclass
class Timing:
    """Emitted tokens and seconds of every timed batch of one policy."""

    tokens: list[int]
    seconds: list[float]

    @property
    def rates(self) -> np.ndarray:
        """Tokens a second of every batch."""
        return np.asarray(self.tokens) / np.asarray(self.seconds)

    def tokens_per_second(self, resamples: int, seed: int) -> Interval:
        """Median over the batches."""
        return median_interval(self.rates, resamples, seed)

    def speedup(self, other: Timing, resamples: int, seed: int) -> Interval:
        """Ratio of the medians of tokens a second, this over ``other``, timed on the same batches."""
        return median_ratio_interval(self.rates, other.rates, resamples, seed)


def time_in_turns(
    engine: Engine,
    prompts: Sequence[list[int]],
    counts: Sequence[int],
    policies: Mapping[str, DecodePolicy],
    batch_size: int = 1,
    on_done: OnDone | None = None,
) -> dict[str, Timing]:
    """Time every policy on every full batch of the prompts; ``on_done`` counts prompts, once a turn."""
    timings = {name: Timing([], []) for name in policies}
    batches = [slice(i, i + batch_size) for i in range(0, len(prompts) - batch_size + 1, batch_size)]
    for policy in policies.values():  # allocations and kernels of a first call are nobody's speed
        _timed(engine, prompts[batches[0]], counts[batches[0]], policy)
    for turn, batch in enumerate(batches):
        names = list(policies) if turn % 2 == 0 else list(policies)[::-1]
        for name in names:
            tokens, seconds = _timed(engine, prompts[batch], counts[batch], policies[name])
            timings[name].tokens.append(tokens)
            timings[name].seconds.append(seconds)
        if on_done:
            on_done(batch_size)
    return timings


def _timed(
    engine: Engine, prompts: Sequence[list[int]], counts: Sequence[int], policy: DecodePolicy
) -> tuple[int, float]:
    """Emitted tokens and seconds of one batch."""
    began = time.perf_counter()
    decoded = engine.decoder.decode(
        list(prompts), list(counts), policy, batch_size=len(prompts), on_done=None, seed=engine.config.seed
    )
    seconds = time.perf_counter() - began
    return sum(trajectory.emitted(engine.vocabulary) for trajectory in decoded), seconds
