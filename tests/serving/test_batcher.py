"""Batches without a model: sizes, order, errors and clients that leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dgr2.serving.batcher import Batcher


class Work:
    """Squares numbers, once it is let; a negative one is an error of its batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        assert self.free.wait(10)
        if min(items) < 0:
            raise ValueError("negative")
        return [item * item for item in items]


def scenario(play: Callable[[Work, Batcher[int, int]], Coroutine[Any, Any, None]], max_size: int = 4) -> Work:
    """Play in an event loop of its own, with a time-out."""
    work = Work()
    with ThreadPoolExecutor(1) as executor:
        batcher: Batcher[int, int] = Batcher(work, executor, max_size, wait_s=0.01)
        asyncio.run(asyncio.wait_for(play(work, batcher), 20))
    return work


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_requests_sent_together_share_batches_up_to_the_bound() -> None:
    async def play(work: Work, batcher: Batcher[int, int]) -> None:
        answers = await asyncio.gather(*map(batcher.submit, range(10)))
        assert [a.answer for a in answers] == [i * i for i in range(10)]
        assert [a.size for a in answers] == [4] * 8 + [2] * 2

    assert scenario(play).batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_trickles_in_while_a_batch_is_at_work_is_the_next_one() -> None:
    async def play(work: Work, batcher: Batcher[int, int]) -> None:
        work.free.clear()
        tasks = [asyncio.create_task(batcher.submit(0))]
        await until(lambda: work.batches == [[0]])
        assert batcher.busy_s() > 0
        for i in (1, 2, 3):
            tasks.append(asyncio.create_task(batcher.submit(i)))
            await asyncio.sleep(0.03)  # longer than the wait for a batch to fill
        work.free.set()
        answers = await asyncio.gather(*tasks)
        assert answers[1].queue_ms > answers[3].queue_ms > 0
        assert len({a.work_ms for a in answers[1:]}) == 1
        assert batcher.busy_s() == 0

    assert scenario(play).batches == [[0], [1, 2, 3]]


def test_an_error_belongs_to_its_batch_alone() -> None:
    async def play(work: Work, batcher: Batcher[int, int]) -> None:
        bad = await asyncio.gather(*map(batcher.submit, (1, -1)), return_exceptions=True)
        assert [type(error) for error in bad] == [ValueError, ValueError]
        assert (await batcher.submit(3)).answer == 9

    scenario(play)


def test_clients_that_leave_take_no_place() -> None:
    async def play(work: Work, batcher: Batcher[int, int]) -> None:
        work.free.clear()
        first = asyncio.create_task(batcher.submit(0))
        await until(lambda: work.batches == [[0]])
        gone = [asyncio.create_task(batcher.submit(i)) for i in range(1, 6)]
        stays = asyncio.create_task(batcher.submit(6))
        await asyncio.sleep(0.02)
        for task in (first, *gone):
            task.cancel()
        work.free.set()
        assert (await stays).answer == 36
        with pytest.raises(asyncio.CancelledError):
            await first

    assert scenario(play).batches == [[0], [6]]


def test_it_rests_and_starts_again() -> None:
    async def play(work: Work, batcher: Batcher[int, int]) -> None:
        for i in range(5):
            assert (await batcher.submit(i)).size == 1
            await asyncio.sleep(0.002)

    assert len(scenario(play).batches) == 5
