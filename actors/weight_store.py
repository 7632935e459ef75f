"""Where the trainer leaves new weights and the others find them: by version, checked, the last two kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import ray

from dgr2.errors import DGR2Error, RolloutInfraError, StaleWeightsError
from dgr2.rollout.checksum import verify

KEPT = 2
NONE = -1
"""Version of an actor that holds no weights yet."""


@dataclass(frozen=True)
class Weights:
    """A published version.

    Attributes:
        version: Rising from publication to publication.
        state: Reference to ``{name: array}``; pass it on as an argument of its own, so that Ray resolves it.
        checksum: :func:`dgr2.rollout.checksum.checksum` of the state.
        figures: Of the update that made it.
    """

    version: int
    state: ray.ObjectRef
    checksum: str
    figures: dict[str, float] = field(default_factory=dict)


@ray.remote(num_cpus=0)
class WeightStore:
    """Owns the weights it keeps: they outlive whoever published them, and die with the store."""

    def __init__(self) -> None:
        self._kept: dict[int, Weights] = {}
        self._cause: BaseException | None = None
        self._changed = asyncio.Condition()

    async def publish(
        self,
        version: int,
        state: dict[str, np.ndarray],
        checksum: str,
        figures: dict[str, float] | None = None,
    ) -> int:
        """Keep a version, hand it to those who wait, and drop the oldest of more than two.

        Publishing the latest version again, with the same checksum, changes nothing.

        Args:
            state: Give a reference to it: the trainer then sends it once.

        Raises:
            StorageError: the state is not the one that the checksum was made of.
            DGR2Error: the version is not newer than the latest.
        """
        verify(state, checksum, f"version {version} of the weights")
        async with self._changed:
            latest = self._latest()
            if version == latest and self._kept[version].checksum == checksum:
                return version
            if version <= latest:
                raise DGR2Error(f"version {version} of the weights cannot follow version {latest}")
            self._kept[version] = Weights(version, ray.put(state), checksum, figures or {})
            for old in sorted(self._kept)[:-KEPT]:
                del self._kept[old]
            self._changed.notify_all()
            return version

    async def latest(self) -> int:
        """The newest version, -1 before the first."""
        return self._latest()

    async def fetch(self, version: int) -> Weights:
        """A version that is kept.

        Raises:
            StaleWeightsError: it is not, or not yet.
        """
        if version not in self._kept:
            raise StaleWeightsError(
                f"version {version} of the weights is not kept; there are: {sorted(self._kept) or 'none'}"
            )
        return self._kept[version]

    async def wait_for(self, version: int, timeout_s: float) -> Weights:
        """The newest version, as soon as it is at least ``version``.

        Raises:
            RolloutInfraError: it was not published within ``timeout_s``.
            DGR2Error: the first cause, once the store was closed with one.
        """
        async with self._changed:
            await self._wait(lambda: self._latest() >= version, version, timeout_s)
            return self._kept[self._latest()]

    async def close(self, cause: BaseException) -> None:
        """Nothing newer will come: all who wait get the cause; the first one stays."""
        async with self._changed:
            self._cause = self._cause or cause
            self._changed.notify_all()

    async def _wait(self, ready: Callable[[], bool], version: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait_for(lambda: self._cause is not None or ready())
        except TimeoutError:
            if not ready():
                raise RolloutInfraError(
                    f"version {version} of the weights was not published within {timeout_s:g} s; "
                    f"the latest is {self._latest()}"
                ) from None
        if self._cause is not None and not ready():
            raise self._cause

    def _latest(self) -> int:
        return max(self._kept, default=NONE)
