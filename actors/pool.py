"""A pool of equal actors that works through chunks, replaces what it loses, and never mixes weights.

One chunk at a time goes to an actor. An actor that is lost or overdue is replaced, armed with the current
weights and only then given work; its chunk goes to whoever is free. A chunk whose own data fails is tried
once more and then reported with its first cause. Results come back in the order of the chunks, so neither
the number of actors nor what happened to them shows.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle

from dgr2.actors.failures import Failure, classify, first_cause, free
from dgr2.errors import RolloutDataError, RolloutInfraError
from dgr2.rollout.health import Fleet, State

log = logging.getLogger(__name__)

DATA_TRIES = 2
OVERDUE_SHARE = 0.5
"""Share of the time-out after which a silent actor is suspect."""
Arm = Callable[[ActorHandle], ray.ObjectRef]


@dataclass
class _Job:
    """A chunk under way."""

    key: str
    payload: Any
    result: Any = None
    done: bool = False
    losses: int = 0
    failures: int = 0
    first_cause: str = ""


@dataclass
class _Call:
    """What an actor was asked for last and has not answered."""

    kind: str
    """``start``, ``probe``, ``arm`` or ``work``."""
    ref: ray.ObjectRef
    began: float
    epoch: int = 0
    job: _Job | None = None


class Pool:
    """``size`` actors of one kind; a context manager that leaves none behind.

    A pool that raised is closed. The actors are never restarted by Ray (``max_restarts=0``): a restart that
    the pool does not see would work with lost weights.

    Args:
        name: For messages, such as "rollout workers".
        factory: Makes an actor.
        size: Number of actors.
        timeout_s: Longest wait for a start, an arming, or one chunk.
        retries: Tries after the first for a chunk whose actor was lost, and starts after the first for an
            actor that keeps failing.
        asked: Resources of one actor by Ray's names, for the message of a time-out.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[], ActorHandle],
        size: int,
        timeout_s: float,
        retries: int,
        asked: Mapping[str, float],
    ) -> None:
        self.name, self._factory, self._timeout, self._retries = name, factory, timeout_s, retries
        self._asked = dict(asked)
        self._arm: Arm | None = None
        self._arm_failures = 0
        self.fleet = Fleet(size, retries)
        self.actors: list[ActorHandle | None] = [None] * size
        self._calls: list[_Call | None] = [None] * size

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def replacements(self) -> int:
        """Actors lost so far."""
        return self.fleet.deaths

    def arm(self, call: Arm | None = None) -> None:
        """Start what is not up and bring every actor to the current weights; waits for all of them.

        Args:
            call: Makes an actor load the current weights. It is kept, to arm replacements. None for actors
                that have all they need once they are up.

        Raises:
            RolloutDataError: an actor cannot be built or does not take the weights.
            RolloutInfraError: no actor is left.
        """
        self._arm, self._arm_failures = call, 0
        self.fleet.renew()
        with self._closed_on_error():
            while not self.fleet.settled():
                self._tend()
                self._wait(deque())
            self._tend()

    def map(self, call: Callable[[ActorHandle, Any], ray.ObjectRef], chunks: Mapping[str, Any]) -> list[Any]:
        """Results of ``call(actor, payload)`` for every chunk, in their order.

        Args:
            chunks: Payloads by a key that names the chunk in messages.

        Raises:
            RolloutDataError: a chunk failed twice by its own data; the message has its key and first cause.
            RolloutInfraError: no actor is left, or a chunk lost more actors than ``retries``.
        """
        jobs = [_Job(key, payload) for key, payload in chunks.items()]
        waiting = deque(jobs)
        with self._closed_on_error():
            while not all(job.done for job in jobs):
                self._tend()
                self._dispatch(call, waiting)
                self._wait(waiting)
        return [job.result for job in jobs]

    def close(self) -> None:
        """Kill all actors; what they hold is free again."""
        actors, self.actors = self.actors, [None] * len(self.actors)
        self._calls = [None] * len(self._calls)
        for actor in actors:
            if actor is not None and ray.is_initialized():
                ray.kill(actor, no_restart=True)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    # what to ask next

    def _tend(self) -> None:
        """Give every idle actor that is not healthy its next step back to health."""
        if self.fleet.lost():
            raise RolloutInfraError(f"{self.name}: none is left; first cause: {self.fleet.first_cause}")
        for slot in range(len(self.actors)):
            if self._calls[slot] is not None:
                continue
            state = self.fleet.state(slot)
            if state is State.DEAD and not self.fleet.given_up(slot):
                actor = self.actors[slot] = self._factory()
                self.fleet.restarting(slot)
                self._ask(slot, "start", actor.__ray_ready__.remote())
            elif state is State.SUSPECT:
                self._ask(slot, "probe", self.actors[slot].__ray_ready__.remote())
            elif state is State.STALE and self._arm is None:
                self.fleet.armed(slot, self.fleet.epoch)
            elif state is State.STALE:
                self._ask(slot, "arm", self._arm(self.actors[slot]))

    def _dispatch(self, call: Callable[[ActorHandle, Any], ray.ObjectRef], waiting: deque[_Job]) -> None:
        for slot in range(len(self.actors)):
            idle = self._calls[slot] is None and self.fleet.state(slot) is State.HEALTHY
            if idle and waiting:
                job = waiting.popleft()
                self._ask(slot, "work", call(self.actors[slot], job.payload), job)

    def _ask(self, slot: int, kind: str, ref: ray.ObjectRef, job: _Job | None = None) -> None:
        self._calls[slot] = _Call(kind, ref, time.monotonic(), self.fleet.epoch, job)

    # what came back

    def _wait(self, waiting: deque[_Job]) -> None:
        """Wait for an answer or for the next time something is overdue, and act on it."""
        calls = {call.ref: slot for slot, call in enumerate(self._calls) if call is not None}
        if not calls:
            return
        now = time.monotonic()
        ready, _ = ray.wait(list(calls), timeout=max(0.0, min(map(self._due, calls.values())) - now))
        for ref in ready:
            self._answered(calls[ref], waiting)
        for slot in calls.values():
            if self._calls[slot] is not None and time.monotonic() >= self._due(slot):
                self._overdue(slot, waiting)

    def _due(self, slot: int) -> float:
        """When the slot's silence has to be acted upon: suspicion first, then the time-out."""
        call = self._calls[slot]
        first = call.kind == "work" and self.fleet.state(slot) is State.HEALTHY
        return call.began + self._timeout * (OVERDUE_SHARE if first else 1.0)

    def _overdue(self, slot: int, waiting: deque[_Job]) -> None:
        call = self._calls[slot]
        what = call.job.key if call.job else call.kind
        if call.kind == "work" and self.fleet.state(slot) is State.HEALTHY:
            log.warning("%s %d: %s takes long; %s", self.name, slot, what, free(self._asked))
            self.fleet.suspect(slot)
            return
        cause = f"{what}: no answer within {self._timeout:g} s; {free(self._asked)}"
        self._calls[slot] = None
        # what could not be placed in all that time would not be the next time either
        self._lose(slot, call, cause, waiting, for_good=call.kind == "start")

    def _answered(self, slot: int, waiting: deque[_Job]) -> None:
        call = self._calls[slot]
        self._calls[slot] = None
        try:
            value = ray.get(call.ref, timeout=self._timeout)
        except Exception as error:
            self._failed(slot, call, error, waiting)
            return
        if call.kind == "work":
            call.job.result, call.job.done = value, True
            self.fleet.worked(slot)
        elif call.kind == "arm":
            self.fleet.armed(slot, call.epoch)
        else:
            self.fleet.up(slot)

    def _failed(self, slot: int, call: _Call, error: BaseException, waiting: deque[_Job]) -> None:
        kind, cause = classify(error), first_cause(error)
        if kind is Failure.DATA:
            self._data_failure(slot, call, error, cause, waiting)
        elif kind is Failure.STALE and call.job is not None:
            self.fleet.outdated(slot)
            self._again(call.job, cause, waiting)
        elif kind is Failure.UNAVAILABLE and call.kind != "probe":
            self.fleet.suspect(slot)
            if call.job is not None:
                self._again(call.job, cause, waiting)
        else:
            self._lose(slot, call, cause, waiting)

    def _data_failure(
        self, slot: int, call: _Call, error: BaseException, cause: str, waiting: deque[_Job]
    ) -> None:
        if call.job is None:
            self._arm_failures += 1
            if call.kind == "arm" and self._arm_failures < DATA_TRIES:
                return  # still stale: armed once more
            what = "does not take its weights" if call.kind == "arm" else "cannot start"
            raise RolloutDataError(f"{self.name}: an actor {what}: {cause}") from error
        job = call.job
        if self.fleet.state(slot) is State.SUSPECT:  # an error is a sign of life
            self.fleet.worked(slot)
        job.failures += 1
        job.first_cause = job.first_cause or cause
        if job.failures >= DATA_TRIES:
            raise RolloutDataError(f"{self.name}, {job.key}: {job.first_cause}") from error
        log.warning("%s, %s failed and is tried once more: %s", self.name, job.key, cause)
        waiting.appendleft(job)

    def _lose(self, slot: int, call: _Call, cause: str, waiting: deque[_Job], for_good: bool = False) -> None:
        """Give an actor up; the next round replaces it."""
        log.warning("%s %d is %s: %s", self.name, slot, "given up" if for_good else "replaced", cause)
        actor, self.actors[slot] = self.actors[slot], None
        if actor is not None:
            ray.kill(actor, no_restart=True)
        self.fleet.dead(slot, cause, for_good)
        if call.job is not None:
            self._again(call.job, cause, waiting)

    def _again(self, job: _Job, cause: str, waiting: deque[_Job]) -> None:
        job.losses += 1
        job.first_cause = job.first_cause or cause
        if job.losses > self._retries:
            raise RolloutInfraError(
                f"{self.name}, {job.key}: given up after {job.losses} tries; first cause: {job.first_cause}"
            )
        waiting.appendleft(job)
