"""The queue between the controller and the trainer, as an actor."""

from __future__ import annotations

from typing import Any

import ray

from dgr2.rollout.queue import BoundedQueue


@ray.remote(num_cpus=0)
class SampleQueue:
    """A :class:`~dgr2.rollout.queue.BoundedQueue`; a block that waits for room stays with its producer.

    Calls made at the same time may be served in any order: a producer waits for each ``put``.
    """

    def __init__(self, bound: int) -> None:
        self._queue = BoundedQueue(bound)

    async def put(self, block: Any, timeout_s: float) -> None:
        """Add a block; waits while the queue is full."""
        await self._queue.put(block, timeout_s)

    async def get(self, timeout_s: float) -> Any:
        """Take the oldest block; waits while the queue is empty."""
        return await self._queue.get(timeout_s)

    async def close(self, cause: BaseException | None = None) -> None:
        """Wake all who wait, with the first cause when there is one."""
        await self._queue.close(cause)

    async def figures(self) -> dict[str, int]:
        """``size``, ``high_water`` and ``bound``."""
        return {"size": len(self._queue), "high_water": self._queue.high_water, "bound": self._queue.bound}
