"""Following a job on another cluster: its log as it grows, its exit code at the end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import aiohttp
import requests
from ray.dashboard.modules.job.pydantic_models import JobDetails
from ray.exceptions import AuthenticationError

from dgr2.cluster.client import JobsClient
from dgr2.errors import DGR2Error

log = logging.getLogger(__name__)

PAUSE_S = 0.5
SILENCE_S = 60.0
LOST = (aiohttp.ClientError, OSError, RuntimeError, AuthenticationError, requests.exceptions.RequestException)


def follow(client: JobsClient, job: str, write: Callable[[str], None], timeout_s: float) -> JobDetails:
    """Hand on a job's log until it ends.

    A connection that breaks or falls silent is made again; what was handed on is not repeated.

    Args:
        timeout_s: how long the cluster may be out of reach.

    Raises:
        DGR2Error: it was for longer.
    """
    text = _Log(client, job, write)
    asyncio.run(text.until_the_end(timeout_s))
    text.hand_on(client.get_job_logs(job), 0)  # what came between the last look and the end
    return client.get_job_info(job)


def exit_code(info: JobDetails) -> int:
    """Exit code of a job's command; 1 when it failed without one (it never ran, or was stopped)."""
    if info.status.value == "SUCCEEDED":
        return 0
    if info.driver_exit_code is None:
        log.error("%s", " ".join((info.message or "the job ended without a message").split()))
    return info.driver_exit_code if info.driver_exit_code is not None and info.driver_exit_code > 0 else 1


def stop(client: JobsClient, job: str, timeout_s: float) -> None:
    """Stop a job and wait until it has.

    Raises:
        DGR2Error: it has not in time.
    """
    client.stop_job(job)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if client.get_job_info(job).status.is_terminal():
            return
        time.sleep(PAUSE_S)
    raise DGR2Error(f"job {job} was asked to stop, and is still running after {timeout_s:g} s")


class _Log:
    """A job's log, handed on once."""

    def __init__(self, client: JobsClient, job: str, write: Callable[[str], None]) -> None:
        self._client, self._job, self._write = client, job, write
        self.shown = 0  # characters

    def hand_on(self, text: str, position: int) -> None:
        """Write what is new of a piece that starts at ``position``."""
        new = text[max(0, self.shown - position) :]
        if new:
            self.shown = position + len(text)
            self._write(new)

    async def until_the_end(self, timeout_s: float) -> None:
        reached = time.monotonic()
        while True:
            try:
                await self._stream()
                if self._client.get_job_info(self._job).status.is_terminal():
                    return
                reached = time.monotonic()
            except LOST as error:
                log.debug("log of %s interrupted: %s", self._job, error)
                if time.monotonic() - reached > timeout_s:
                    raise DGR2Error(
                        f"lost the cluster at {self._client.address}; job {self._job} goes on if the cluster "
                        "does: the same command follows it again"
                    ) from error
            await asyncio.sleep(PAUSE_S)

    async def _stream(self) -> None:
        """One connection, until it ends or falls silent; every one starts from the top of the log."""
        pieces, position = self._client.tail_job_logs(self._job), 0
        try:
            while True:
                text = await asyncio.wait_for(anext(pieces), SILENCE_S)
                self.hand_on(text, position)
                position += len(text)
        except (StopAsyncIteration, TimeoutError):
            return
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]
