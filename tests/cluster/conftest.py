"""A Ray cluster of its own, apart from every other Ray on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from separate_cluster import BIN, Cluster, end, free_ports, wait_for

from dgr2.cluster.staging import FILES, FOLDERS, staged_tree


@pytest.fixture(scope="session")
def spaced_checkout(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources under a path with a space, with what a build leaves behind."""
    copy = tmp_path_factory.mktemp("with space") / "my checkout"
    copy.mkdir()
    for name in FILES:
        shutil.copy(root / name, copy / name)
    for name in FOLDERS:
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for stale in ("build/lib/dgr2/removed.py", "tests/test_something.py", "runs/demo/config.yaml"):
        (copy / stale).parent.mkdir(parents=True, exist_ok=True)
        (copy / stale).write_text("", encoding="utf-8")
    return copy


@pytest.fixture(scope="session")
def site(spaced_checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The staged tree of that copy, kept: what an installed package looks like."""
    place = tmp_path_factory.mktemp("installed here") / "site packages"
    with staged_tree(spaced_checkout) as tree:
        shutil.copytree(tree.path, place)
    return place


@pytest.fixture(scope="session")
def cluster(site: Path) -> Iterator[Cluster]:
    """A head node with two logical CPUs that asks for a token; only its own processes are ended."""
    token, (port, dashboard, agent, metrics) = uuid.uuid4().hex * 2, free_ports(4)
    made = Cluster(
        url=f"http://127.0.0.1:{dashboard}",
        gcs=f"127.0.0.1:{port}",
        metrics=f"http://127.0.0.1:{metrics}/metrics",
        token=token,
        site=site,
    )
    with ExitStack() as stack:
        # not pytest's folder: the path of a socket has a limit of 107 characters
        session = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="dg", ignore_cleanup_errors=True))
        )
        environment = made.environment(PYTHONPATH=None, RAY_TMPDIR=str(session), RAY_USAGE_STATS_ENABLED="0")
        environment["RAY_metrics_report_interval_ms"] = "1000"
        environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
        log = stack.enter_context((session / "head.log").open("wb"))
        options = {
            "node-ip-address": "127.0.0.1",
            "port": port,
            "dashboard-port": dashboard,
            "dashboard-agent-listen-port": agent,
            "metrics-export-port": metrics,
            "temp-dir": session,
            "num-cpus": 2,
            "object-store-memory": 100 * 2**20,
            "include-log-monitor": "false",
        }
        head = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
            + [f"--{name}={value}" for name, value in options.items()],
            env=environment,
            cwd=session,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(end, head, session)
        wait_for(made, head, session / "head.log")
        yield made
