"""Timing in turns, and figures as ``dgr2 bench`` prints and stores them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from dgr2.evaluation.bootstrap import Interval

Figures = dict[str, dict[str, float | str]]
"""``{name: {value, low, high, unit}}``, intervals at 95 %."""


def figure(interval: Interval, unit: str) -> dict[str, float | str]:
    """A figure from its interval."""
    return {"value": interval.value, "low": interval.low, "high": interval.high, "unit": unit}


def time_turns(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, np.ndarray]:
    """Seconds ``[repeats]`` of every call: one round unmeasured, then rounds of alternating direction."""
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats):
        for name in list(calls) if turn % 2 == 0 else list(calls)[::-1]:
            start = time.perf_counter()
            calls[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: np.array(spent) for name, spent in seconds.items()}
