"""A bounded queue of sample blocks between producers and the trainer, on one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from dgr2.errors import ConfigError, DGR2Error, RolloutInfraError


class QueueClosed(DGR2Error):
    """The queue was closed in good order, and nothing is left in it."""


class BoundedQueue:
    """First in, first out; never holds more than ``bound`` blocks.

    Attributes:
        high_water: The most blocks it ever held.
    """

    def __init__(self, bound: int) -> None:
        if bound < 1:
            raise ConfigError(f"a queue of {bound} blocks holds nothing")
        self.bound, self.high_water = bound, 0
        self._blocks: deque[Any] = deque()
        self._closed = False
        self._cause: BaseException | None = None
        self._changed = asyncio.Condition()

    def __len__(self) -> int:
        return len(self._blocks)

    async def put(self, block: Any, timeout_s: float) -> None:
        """Add a block; waits while the queue is full.

        Raises:
            RolloutInfraError: it stayed full for ``timeout_s``.
            QueueClosed: it was closed.
        """
        async with self._changed:
            await self._wait(lambda: len(self._blocks) < self.bound, timeout_s, "taken")
            if self._closed:
                raise QueueClosed("the sample queue takes no more blocks: it was closed")
            self._blocks.append(block)
            self.high_water = max(self.high_water, len(self._blocks))
            self._changed.notify_all()

    async def get(self, timeout_s: float) -> Any:
        """Take the oldest block; waits while the queue is empty.

        Raises:
            RolloutInfraError: it stayed empty for ``timeout_s``.
            QueueClosed: it was closed and is empty.
        """
        async with self._changed:
            await self._wait(lambda: bool(self._blocks), timeout_s, "put")
            if not self._blocks:
                raise QueueClosed("the sample queue was closed and is empty")
            block = self._blocks.popleft()
            self._changed.notify_all()
            return block

    async def close(self, cause: BaseException | None = None) -> None:
        """Wake all who wait. With a cause they, and all who come later, get that error; the first one stays.

        Without one the blocks that are left may still be taken.
        """
        async with self._changed:
            if cause is not None and self._cause is None:
                self._cause = cause
                self._blocks.clear()
            self._closed = True
            self._changed.notify_all()

    async def _wait(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait_for(lambda: self._closed or ready())
        except TimeoutError:
            if not ready():
                raise RolloutInfraError(
                    f"no block was {what} within {timeout_s:g} s: "
                    f"the sample queue holds {len(self._blocks)} of {self.bound}"
                ) from None
        if self._cause is not None:
            raise self._cause
