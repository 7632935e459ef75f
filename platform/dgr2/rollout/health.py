"""Health of a fleet of actors: a state machine without actors, so that every transition is a unit test.

::

    RESTARTING --up--> STALE --armed--> HEALTHY <--worked-- SUSPECT
        ^                ^----outdated----'  |--suspect------^ |
        |                ^-------------------+------------up---'
        '--restarting-- DEAD <--dead-- (any of them)

A slot that died never comes back with weights of its own: the only way to HEALTHY leads through STALE and an
arming with the weights of the current epoch that has *completed*.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from dgr2.errors import DGR2Error


class State(Enum):
    """What is known of an actor."""

    HEALTHY = "healthy"
    """Holds the current weights and answers."""
    SUSPECT = "suspect"
    """Should have answered by now, or could not be reached."""
    DEAD = "dead"
    """Gone."""
    RESTARTING = "restarting"
    """Its replacement was asked for and is not up yet."""
    STALE = "stale"
    """Up, but its weights are old, missing or unknown."""


@dataclass
class _Slot:
    state: State
    since: float
    failures: int = 0  # since it last did its work
    cause: tuple[float, str] | None = None  # time and reason of the first of them


class Fleet:
    """States of ``size`` slots; all begin DEAD, as nothing was started yet.

    Args:
        retries: Failures in a row after which a slot is given up.
        clock: Seconds; injected by tests.
    """

    def __init__(self, size: int, retries: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._retries = clock, retries
        self._slots = [_Slot(State.DEAD, clock()) for _ in range(size)]
        self.epoch = 0
        self.deaths = 0

    def state(self, slot: int) -> State:
        """State of a slot."""
        return self._slots[slot].state

    def age(self, slot: int) -> float:
        """Seconds since the slot came into its state."""
        return self._clock() - self._slots[slot].since

    def given_up(self, slot: int) -> bool:
        """Whether a slot is dead and will not be started again."""
        return self.state(slot) is State.DEAD and self._slots[slot].failures > self._retries

    def settled(self) -> bool:
        """Whether every slot is either healthy or given up."""
        return all(self.state(i) is State.HEALTHY or self.given_up(i) for i in range(len(self._slots)))

    def lost(self) -> bool:
        """Whether no slot is left."""
        return all(self.given_up(i) for i in range(len(self._slots)))

    @property
    def first_cause(self) -> str:
        """Reason of the oldest failure that no work has followed."""
        return min((s.cause for s in self._slots if s.cause is not None), default=(0.0, ""))[1]

    def restarting(self, slot: int) -> None:
        """A replacement was asked for."""
        self._move(slot, State.RESTARTING, (State.DEAD,))

    def up(self, slot: int) -> None:
        """It answers again; what it holds is not known."""
        self._move(slot, State.STALE, (State.RESTARTING, State.SUSPECT))

    def armed(self, slot: int, epoch: int) -> None:
        """An arming that began in ``epoch`` is complete; one of an earlier epoch leaves the slot STALE."""
        self._move(slot, State.HEALTHY if epoch == self.epoch else State.STALE, (State.STALE,))

    def worked(self, slot: int) -> None:
        """It gave a result with the current weights."""
        self._slots[slot].failures, self._slots[slot].cause = 0, None
        if self.state(slot) is not State.HEALTHY:
            self._move(slot, State.HEALTHY, (State.SUSPECT,))

    def suspect(self, slot: int) -> None:
        """It is overdue or could not be reached."""
        self._move(slot, State.SUSPECT, (State.HEALTHY, State.STALE, State.RESTARTING, State.SUSPECT))

    def outdated(self, slot: int) -> None:
        """It turned out to hold other weights than the current ones."""
        self._move(slot, State.STALE, (State.HEALTHY, State.SUSPECT))

    def dead(self, slot: int, cause: str, for_good: bool = False) -> None:
        """It is gone; counts against its retries, or ends them."""
        self._move(slot, State.DEAD, [s for s in State if s is not State.DEAD])
        record = self._slots[slot]
        record.failures += 1 + for_good * self._retries
        record.cause = record.cause or (self._clock(), cause)
        self.deaths += 1

    def renew(self) -> int:
        """There are new weights: what was healthy is stale. Returns the new epoch."""
        self.epoch += 1
        for slot in range(len(self._slots)):
            if self.state(slot) is State.HEALTHY:
                self.outdated(slot)
        return self.epoch

    def _move(self, slot: int, to: State, allowed: Collection[State]) -> None:
        record = self._slots[slot]
        if record.state not in allowed:
            raise DGR2Error(f"an actor that is {record.state.value} cannot become {to.value}")
        record.state, record.since = to, self._clock()
