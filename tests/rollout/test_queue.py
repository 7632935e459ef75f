"""The bounded queue on one event loop: it blocks, it never overflows, it tells everyone why it closed."""

from __future__ import annotations

import asyncio

import pytest

from dgr2.errors import ConfigError, RolloutDataError, RolloutInfraError
from dgr2.rollout.queue import BoundedQueue, QueueClosed


def test_blocks_leave_in_order_and_never_exceed_the_bound() -> None:
    async def story() -> None:
        queue = BoundedQueue(2)

        async def produce() -> None:
            for block in range(20):
                await queue.put(block, 5)

        producer = asyncio.create_task(produce())
        taken = []
        for _ in range(20):
            await asyncio.sleep(0)
            assert len(queue) <= 2
            taken.append(await queue.get(5))
        await producer
        assert taken == list(range(20)) and queue.high_water == 2

    asyncio.run(story())


def test_waits_end_and_say_how_full_it_was() -> None:
    async def story() -> None:
        queue = BoundedQueue(1)
        with pytest.raises(RolloutInfraError, match=r"no block was put within 0\.01 s: .* holds 0 of 1"):
            await queue.get(0.01)
        await queue.put("a", 1)
        with pytest.raises(RolloutInfraError, match="no block was taken .* holds 1 of 1"):
            await queue.put("b", 0.01)
        assert await queue.get(1) == "a" and queue.high_water == 1

    asyncio.run(story())


def test_closing_with_a_cause_wakes_all_who_wait() -> None:
    async def story() -> None:
        empty, full = BoundedQueue(1), BoundedQueue(1)
        await full.put("a", 1)
        waiting = [asyncio.create_task(empty.get(60)) for _ in range(3)]
        waiting.append(asyncio.create_task(full.put("b", 60)))
        await asyncio.sleep(0.01)
        for queue in (empty, full):
            await queue.close(RolloutDataError("the first"))
            await queue.close(RolloutDataError("the second"))
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, RolloutDataError) and str(error) == "the first"
        with pytest.raises(RolloutDataError, match="the first"):
            await full.get(1)

    asyncio.run(story())


def test_closing_in_good_order_leaves_what_is_there() -> None:
    async def story() -> None:
        queue = BoundedQueue(2)
        await queue.put("a", 1)
        await queue.close()
        with pytest.raises(QueueClosed):
            await queue.put("b", 1)
        assert await queue.get(1) == "a"
        with pytest.raises(QueueClosed):
            await queue.get(1)

    asyncio.run(story())


def test_a_queue_holds_at_least_one() -> None:
    with pytest.raises(ConfigError, match="holds nothing"):
        BoundedQueue(0)
