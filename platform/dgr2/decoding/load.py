"""Which decode is fastest at which load, by measurement.

Block decoding spends arithmetic to save forwards: few rows leave it free, many rows do not. A student decodes
by wide blocks, narrow ones, or as the AR model that its clean stream is, whichever costs least at a load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy, ar_policy
from dgr2.telemetry import time_turns

MARGIN = 0.05
"""Share of the time that must be saved for another decode than AR."""


@dataclass(frozen=True)
class LoadTable:
    """Seconds a row by rows in flight and policy.

    Attributes:
        policies: Those to choose from; the first one where nothing was measured.
        seconds: ``{rows: [seconds a row of each policy]}``.
    """

    policies: tuple[DecodePolicy, ...]
    seconds: dict[int, list[float]]

    @classmethod
    def measure(
        cls,
        decoder: Decoder,
        policies: Sequence[DecodePolicy],
        prompts: Sequence[Sequence[int]],
        candidates: Sequence[int],
        loads: Sequence[int],
        rounds: int = 3,
    ) -> LoadTable:
        """Time every policy at every load, in turns; the median of ``rounds`` after one unmeasured.

        Args:
            prompts, candidates: What to decode, all of it at every load; how fast a decode is depends on the
                request, so give several.
            loads: Numbers of rows decoded together.
        """
        seconds: dict[int, list[float]] = {}
        for rows in sorted(set(loads)):
            times = -(-rows // len(prompts))  # enough to fill the load
            asked, counts = [list(p) for p in prompts] * times, list(candidates) * times

            def decode(policy: DecodePolicy, turn: int, rows: int = rows, asked=asked, counts=counts) -> None:
                decoder.decode(asked, counts, policy, rows)

            timed = time_turns({str(i): partial(decode, policy) for i, policy in enumerate(policies)}, rounds)
            seconds[rows] = [float(np.median(turns.seconds)) / len(asked) for turns in timed.values()]
        return cls(tuple(policies), seconds)

    def choose(self, rows: int) -> DecodePolicy:
        """The fastest policy at the smallest measured load that holds ``rows``, or else at the largest.

        The last policy stays where no other saves more than ``MARGIN``: a measurement decides no less.
        """
        if not self.seconds:
            return self.policies[0]
        load = min((n for n in self.seconds if n >= rows), default=max(self.seconds))
        seconds = self.seconds[load]
        best = int(np.argmin(seconds))
        return self.policies[best if seconds[best] < (1 - MARGIN) * seconds[-1] else -1]


def narrower(policy: DecodePolicy) -> list[DecodePolicy]:
    """A policy, itself by blocks of a half and a quarter, and as AR decoding with the same rules."""
    sizes = [policy.block_size // parts for parts in (2, 4) if policy.block_size // parts > 1]
    blocks = [policy, *(replace(policy, block_size=size) for size in sizes)]
    return [*blocks, ar_policy(permutation=policy.rules, readout=policy.readout)]


def powers(largest: int) -> list[int]:
    """Loads to measure: 1, 4, 16, … and the largest one."""
    loads, load = [], 1
    while load < largest:
        loads.append(load)
        load *= 4
    return [*loads, largest]
