"""The stopwatch of every comparison: what is compared takes turns, so that a slow moment slows every side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Result = TypeVar("Result")
Name = TypeVar("Name")


@dataclass
class Turns(Generic[Result]):
    """What a call returned and how many seconds it took, turn by turn."""

    results: list[Result] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def time_turns(
    calls: Mapping[Name, Callable[[int], Result]], turns: int, on_turn: Callable[[], None] | None = None
) -> dict[Name, Turns[Result]]:
    """Time every call in every turn, in alternating direction, after one unmeasured round.

    Args:
        calls: By name; each gets the number of the turn, 0 in the unmeasured round (the allocations and
            kernels of a first call are nobody's speed).
        on_turn: Called after every turn.
    """
    for call in calls.values():
        call(0)
    timed: dict[Name, Turns[Result]] = {name: Turns() for name in calls}
    for turn in range(turns):
        for name in list(calls) if turn % 2 == 0 else list(calls)[::-1]:
            start = time.perf_counter()
            result = calls[name](turn)
            timed[name].seconds.append(time.perf_counter() - start)
            timed[name].results.append(result)
        if on_turn:
            on_turn()
    return timed
