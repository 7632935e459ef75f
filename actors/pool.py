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
from typing import Any, Self

import ray
from ray.actor import ActorHandle

from dgr2.actors.failures import Failure, classify, first_cause, free
from dgr2.errors import DGR2Error, RolloutDataError, RolloutInfraError
from dgr2.rollout.health import Fleet, State

log = logging.getLogger(__name__)

DATA_TRIES = 2
OVERDUE_SHARE = 0.5
"""Share of the time-out after which a silent actor is suspect."""
START_GRACE_S = 5.0
"""Longest wait for an actor that is being placed before it is killed: see :meth:`Pool.close`."""
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

    slot: int
    what: str
    """``start``, ``probe``, ``arm``, or the key of its chunk."""
    ref: ray.ObjectRef
    began: float
    epoch: int
    job: _Job | None


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
        factory: Callable[[], Any],
        size: int,
        timeout_s: float,
        retries: int,
        asked: Mapping[str, float],
    ) -> None:
        self.name, self._factory, self._timeout, self._retries = name, factory, timeout_s, retries
        self._asked = dict(asked)
        self._arm: Arm | None = None
        self._arm_failures = 0
        self._closed = False
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

    def start(self) -> None:
        """Ask for every actor that is not up, without waiting for it; :meth:`arm` and :meth:`map` do."""
        with self._closed_on_error():
            self._tend()

    def arm(self, call: Arm | None = None) -> None:
        """Start what is not up and bring every actor to the current weights; waits for all of them.

        Args:
            call: Makes an actor load the current weights. It is kept, to arm replacements. None for actors
                that have all they need once they are up.

        Raises:
            RolloutDataError: an actor cannot be built or does not take the weights.
            RolloutInfraError: no actor is left.
        """
        with self._closed_on_error():
            self._arm, self._arm_failures = call, 0
            self.fleet.renew()
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
        """Kill all actors; what they hold is free again, and the pool is of no more use.

        An actor that is killed while Ray places it may keep its CPUs for as long as the driver lives (seen
        with Ray 2.60), so what is starting is let up first.
        """
        self._closed = True
        actors, self.actors = self.actors, [None] * len(self.actors)
        starting = [call.ref for call in self._calls if call is not None and call.what == "start"]
        self._calls = [None] * len(self._calls)
        if not ray.is_initialized():
            return
        try:
            if starting:
                ray.wait(starting, num_returns=len(starting), timeout=START_GRACE_S)
        finally:
            for actor in actors:
                if actor is not None:
                    ray.kill(actor, no_restart=True)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        if self._closed:
            raise DGR2Error(f"the pool of {self.name} is closed")
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
        for slot, actor in enumerate(self.actors):
            state = self.fleet.state(slot)
            if self._calls[slot] is not None or state is State.HEALTHY:
                continue
            if actor is None:
                if not self.fleet.given_up(slot):
                    actor = self.actors[slot] = self._factory()
                    self.fleet.restarting(slot)
                    self._ask(slot, "start", actor.__ray_ready__.remote())
            elif state is State.SUSPECT:
                self._ask(slot, "probe", actor.__ray_ready__.remote())
            elif self._arm is None:
                self.fleet.armed(slot, self.fleet.epoch)
            else:
                self._ask(slot, "arm", self._arm(actor))

    def _dispatch(self, call: Callable[[ActorHandle, Any], ray.ObjectRef], waiting: deque[_Job]) -> None:
        for slot, actor in enumerate(self.actors):
            idle = self._calls[slot] is None and self.fleet.state(slot) is State.HEALTHY
            if waiting and idle and actor is not None:
                job = waiting.popleft()
                self._ask(slot, job.key, call(actor, job.payload), job)

    def _ask(self, slot: int, what: str, ref: ray.ObjectRef, job: _Job | None = None) -> None:
        self._calls[slot] = _Call(slot, what, ref, time.monotonic(), self.fleet.epoch, job)

    # what came back

    def _wait(self, waiting: deque[_Job]) -> None:
        """Wait for an answer or for the next time that something is overdue, and act on it."""
        calls = {call.ref: call for call in self._calls if call is not None}
        if not calls:
            return
        until = min(self._due(call) for call in calls.values())
        ready, _ = ray.wait(list(calls), timeout=max(0.0, until - time.monotonic()))
        for ref in ready:
            self._answered(calls.pop(ref), waiting)
        for call in calls.values():
            if time.monotonic() >= self._due(call):
                self._overdue(call, waiting)

    def _due(self, call: _Call) -> float:
        """When silence has to be acted upon: suspicion first, then the time-out."""
        trusted = call.job is not None and self.fleet.state(call.slot) is State.HEALTHY
        return call.began + self._timeout * (OVERDUE_SHARE if trusted else 1.0)

    def _overdue(self, call: _Call, waiting: deque[_Job]) -> None:
        if self.fleet.state(call.slot) is State.HEALTHY:
            log.warning("%s %d: %s takes long; %s", self.name, call.slot, call.what, free(self._asked))
            self.fleet.suspect(call.slot)
            return
        cause = f"{call.what}: no answer within {self._timeout:g} s; {free(self._asked)}"
        self._calls[call.slot] = None
        # what could not be placed in all that time would not be the next time either
        self._lose(call, cause, waiting, for_good=call.what == "start")

    def _answered(self, call: _Call, waiting: deque[_Job]) -> None:
        self._calls[call.slot] = None
        try:
            value = ray.get(call.ref, timeout=self._timeout)
        except Exception as error:
            self._failed(call, error, waiting)
            return
        if call.job is not None:
            call.job.result, call.job.done = value, True
            self.fleet.worked(call.slot)
        elif call.what == "arm":
            self.fleet.armed(call.slot, call.epoch)
        else:
            self.fleet.up(call.slot)

    def _failed(self, call: _Call, error: Exception, waiting: deque[_Job]) -> None:
        kind, cause = classify(error), first_cause(error)
        if kind is Failure.DATA and call.job is None:
            self._setup_failure(call, error, cause)
        elif kind is Failure.DATA and call.job is not None:
            self._data_failure(call, call.job, error, cause, waiting)
        elif kind is Failure.STALE and call.job is not None:
            self.fleet.outdated(call.slot)
            self._again(call.job, cause, waiting)
        elif kind is Failure.UNAVAILABLE and call.what != "probe":
            self.fleet.suspect(call.slot)
            if call.job is not None:
                self._again(call.job, cause, waiting)
        else:
            self._lose(call, cause, waiting)

    def _setup_failure(self, call: _Call, error: Exception, cause: str) -> None:
        """An actor could not be built or did not take its weights; the latter is tried once more."""
        self._arm_failures += 1
        if call.what == "arm" and self._arm_failures < DATA_TRIES:
            return  # it is stale still, so it is armed again
        what = "does not take its weights" if call.what == "arm" else "cannot start"
        raise RolloutDataError(f"{self.name}: an actor {what}: {cause}") from error

    def _data_failure(
        self, call: _Call, job: _Job, error: Exception, cause: str, waiting: deque[_Job]
    ) -> None:
        self.fleet.worked(call.slot)  # an error of its own is a sign of life
        job.failures += 1
        job.first_cause = job.first_cause or cause
        if job.failures >= DATA_TRIES:
            raise RolloutDataError(f"{self.name}, {job.key}: {job.first_cause}") from error
        log.warning("%s, %s failed and is tried once more: %s", self.name, job.key, cause)
        waiting.appendleft(job)

    def _lose(self, call: _Call, cause: str, waiting: deque[_Job], for_good: bool = False) -> None:
        """Give an actor up; the next round replaces it."""
        slot = call.slot
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


class Group:
    """The workers of a loop behind their pool; a context manager that starts them and leaves none behind."""

    pool: Pool

    def __enter__(self) -> Self:
        self.pool.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        self.pool.close()
