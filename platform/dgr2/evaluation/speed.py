"""Speed against AR: policies timed in turns on the same prompts by the same engine.

A time runs from the prompt to the last token, prefill included. Turns alternate in direction, so a machine
that slows down slows every policy. Tokens are those emitted up to the end token, fill not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dgr2.decoding.policy import DecodePolicy
from dgr2.evaluation.bootstrap import Interval, median_interval, median_ratio_interval
from dgr2.evaluation.engine import Engine, OnDone
from dgr2.telemetry import time_turns


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


def full_batches(count: int, size: int) -> list[slice]:
    """Batches of ``size`` of ``count`` things; a rest that fills none is left out."""
    return [slice(i, i + size) for i in range(0, count - size + 1, size)]


def time_in_turns(
    engine: Engine,
    prompts: Sequence[list[int]],
    counts: Sequence[int],
    policies: Mapping[str, DecodePolicy],
    batch_size: int = 1,
    on_done: OnDone | None = None,
) -> dict[str, Timing]:
    """Time every policy on every full batch of the prompts; ``on_done`` counts prompts, once a turn."""
    batches = full_batches(len(prompts), batch_size)

    def emitted(policy: DecodePolicy, turn: int) -> int:
        batch = batches[turn]
        decoded = engine.decoder.decode(
            prompts[batch], counts[batch], policy, batch_size, seed=engine.config.seed
        )
        return sum(trajectory.emitted(engine.vocabulary) for trajectory in decoded)

    timed = time_turns(
        {name: partial(emitted, policy) for name, policy in policies.items()},
        len(batches),
        on_done and partial(on_done, batch_size),
    )
    return {name: Timing(turns.results, turns.seconds) for name, turns in timed.items()}
