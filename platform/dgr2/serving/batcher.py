"""Requests that wait while a batch is being decoded make up the next one.

``serve.batch`` closes a batch a fixed time after its first request even while the decoder is busy. Requests
that trickle in then queue as many small batches: 32 clients got 2.0 requests a batch. Here a batch is closed
when the decoder is free.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Batched(Generic[Answer]):
    """An answer, the milliseconds it waited and its batch took, and the size of that batch."""

    answer: Answer
    queue_ms: float
    work_ms: float
    size: int


@dataclass
class _Waiting(Generic[Item, Answer]):
    item: Item
    since: float
    future: asyncio.Future[Batched[Answer]]


class Batcher(Generic[Item, Answer]):
    """Runs ``work`` on batches, one at a time, in an executor; lives in one event loop.

    Args:
        work: list of items to the list of their answers, in the same order.
        max_size: items of a batch at most.
        wait_s: pause before a batch is closed that is not full, for requests sent together.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Answer]],
        executor: Executor,
        max_size: int,
        wait_s: float,
    ) -> None:
        self._work, self._executor = work, executor
        self._max_size, self._wait_s = max_size, wait_s
        self._waiting: deque[_Waiting[Item, Answer]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._busy_since: float | None = None

    async def submit(self, item: Item) -> Batched[Answer]:
        """Answer of an item; what ``work`` raises on its batch is raised here."""
        waiting = _Waiting(item, time.perf_counter(), asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await waiting.future

    def busy_s(self) -> float:
        """Seconds that the batch at work has taken so far; 0 when there is none."""
        return 0.0 if self._busy_since is None else time.perf_counter() - self._busy_since

    async def _run(self) -> None:
        while self._waiting:
            if len(self._waiting) < self._max_size:
                await asyncio.sleep(self._wait_s)
            if batch := self._take():
                await self._decode(batch)

    def _take(self) -> list[_Waiting[Item, Answer]]:
        """The next items whose clients are still there."""
        batch: list[_Waiting[Item, Answer]] = []
        while self._waiting and len(batch) < self._max_size:
            waiting = self._waiting.popleft()
            if not waiting.future.done():
                batch.append(waiting)
        return batch

    async def _decode(self, batch: list[_Waiting[Item, Answer]]) -> None:
        start = self._busy_since = time.perf_counter()
        try:
            items = [waiting.item for waiting in batch]
            answers = await asyncio.get_running_loop().run_in_executor(self._executor, self._work, items)
            work_ms = (time.perf_counter() - start) * 1e3
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.future.done():
                    queue_ms = (start - waiting.since) * 1e3
                    waiting.future.set_result(Batched(answer, queue_ms, work_ms, len(batch)))
        except Exception as error:  # belongs to the clients of this batch; the next one goes on
            for waiting in batch:
                if not waiting.future.done():
                    waiting.future.set_exception(error)
        finally:
            self._busy_since = None
