"""A Ray cluster of its own, apart from every other Ray on this machine: processes, ports, folder, token."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

START_S = 90
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Cluster:
    """A head node, and how a client reaches it.

    Attributes:
        url: of the dashboard.
        gcs: address for drivers.
        metrics: of the node's metrics.
        token: what it asks of its callers.
        site: folder with the package as if installed there; its path has a space.
    """

    url: str
    gcs: str
    metrics: str
    token: str
    site: Path

    def environment(self, **changes: str | None) -> dict[str, str]:
        """Environment of a client; None takes a variable away."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        kept |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "OMP_NUM_THREADS": "1"}
        kept |= {"PYTHONPATH": str(self.site), "HOME": str(self.site)}  # no token of the user's own
        return {k: v for k, v in {**kept, **changes}.items() if v is not None}

    def dgr2(self, *words: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
        """Run a command of ``dgr2`` as a client."""
        return subprocess.run(
            [sys.executable, "-m", "dgr2.jobs", *words],
            env=self.environment(**changes),
            cwd=self.site,
            capture_output=True,
            text=True,
            timeout=240,
        )


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for(cluster: Cluster, head: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    headers = {"Authorization": f"Bearer {cluster.token}"}
    while time.monotonic() < end and head.poll() is None:
        try:
            if requests.get(f"{cluster.url}/api/jobs/", headers=headers, timeout=5).status_code == 200:
                return
        except requests.exceptions.RequestException:
            pass
        time.sleep(0.5)
    pytest.fail(f"the cluster did not start: {log.read_text(errors='replace')[-2000:]}")


def end(head: subprocess.Popen[bytes], session: Path) -> None:
    """End the head, then whatever of its processes outlived it."""
    head.terminate()
    try:
        head.wait(20)
    except subprocess.TimeoutExpired:
        head.kill()
        head.wait(20)
    for _ in range(50):
        left = processes(session)
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.2)


def processes(session: Path) -> list[int]:
    """Processes that were started with this session's folder in their environment, as all of a node are."""
    mark, found = f"RAY_TMPDIR={session}\0".encode(), []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:  # gone, or another user's
            continue
    return found
