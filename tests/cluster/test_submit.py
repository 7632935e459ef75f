"""Stages as jobs of a separate cluster with a token, from a path with a space."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from separate_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SHOP = ("data.users=150", "data.items=40", "data.folds=2", "expert.trees=5", "tokenizer.vocabulary=400")
ONE_WORKER = ("ray.num_workers=1",)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs here") / "shared storage"


def job_of(done: subprocess.CompletedProcess[str]) -> str:
    """Name of the submitted job."""
    return next(line.split()[1] for line in done.stderr.splitlines() if line.startswith("job dgr2-"))


def test_a_stage_runs_and_its_log_arrives(cluster: Cluster, runs: Path) -> None:
    words = ("submit", "prepare", *SHOP, "--run", str(runs / "a"), "--address", cluster.url)
    astray = {"RAY_ADDRESS": "http://127.0.0.1:9", "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:9"}
    done = cluster.dgr2(*words, **astray, AWS_SECRET_ACCESS_KEY="hidden", AWS_REGION="eu-west-1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "prepare finished in" in done.stdout
    assert (runs / "a" / "stages" / "prepare.json").is_file()

    answer = requests.get(
        f"{cluster.url}/api/jobs/{job_of(done)}",
        headers={"Authorization": f"Bearer {cluster.token}"},
        timeout=30,
    )
    sent = answer.json()["runtime_env"]["env_vars"]
    assert sent["AWS_REGION"] == "eu-west-1" and sent["RAY_AUTH_MODE"] == "token"
    assert cluster.token not in answer.text and "hidden" not in answer.text
    assert cluster.token not in done.stdout + done.stderr


def test_the_exit_code_of_a_refused_stage_is_passed_on(cluster: Cluster, runs: Path) -> None:
    words = ("submit", "teacher", "--run", str(runs / "nothing"), "--address", cluster.url)
    done = cluster.dgr2(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "is no run folder" in done.stdout and "exit code 2" in done.stderr
    again = cluster.dgr2(*words, "--no-wait")
    assert again.returncode == 0 and job_of(again) == f"{job_of(done)}-2"


def test_a_job_under_way_is_followed_and_can_be_left_or_stopped(cluster: Cluster, runs: Path) -> None:
    slow = ("data.users=60000", "data.items=400", "data.folds=8")
    words = ("submit", "prepare", *slow, "--run", str(runs / "slow"), "--address", cluster.url)
    first = cluster.dgr2(*words, "--no-wait")
    assert first.returncode == 0 and "follow it" in first.stderr, first.stderr
    other = cluster.dgr2(
        "submit", "prepare", "--run", str(runs / "slow"), "--address", cluster.url, "--no-wait"
    )
    assert other.returncode == 2 and f"job {job_of(first)} works in" in other.stderr

    left = interrupted(cluster, *words)
    assert left.returncode == 130, left.stdout + left.stderr
    assert f"job {job_of(first)} is under way: following it" in left.stderr
    assert f"ray job stop {job_of(first)} --address {cluster.url}" in left.stderr
    stopped = interrupted(cluster, *words, "--stop-on-interrupt")
    assert stopped.returncode == 130 and "was stopped" in stopped.stderr, stopped.stderr


def interrupted(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """A command that gets Ctrl-C once it follows the job's log."""
    command = [sys.executable, "-m", "dgr2.jobs", *words]
    with subprocess.Popen(
        command, env=cluster.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, line + out, err)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"RAY_AUTH_MODE": None}, ("asks for a token", "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN")),
        ({"RAY_AUTH_TOKEN": None}, ("401", "RAY_AUTH_TOKEN")),
        ({"RAY_AUTH_TOKEN": "0" * 64}, ("refuses the token (403)", "RAY_AUTH_TOKEN")),
        ({"RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": "/none"}, ("RAY_AUTH_TOKEN_PATH names /none",)),
    ],
)
def test_a_token_that_is_missing_or_wrong(
    cluster: Cluster, changes: dict[str, str | None], words: tuple[str, ...]
) -> None:
    done = cluster.dgr2("submit", "prepare", "--run", "x", "--address", cluster.url, **changes)
    assert done.returncode == 2, done.stderr
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
    for word in words:
        assert word in line


def test_doctor_joins_the_cluster(cluster: Cluster, runs: Path) -> None:
    done = cluster.dgr2("doctor", *ONE_WORKER, "--address", cluster.url, "--run", str(runs), COLUMNS="200")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("dashboard", "authentication", "job", "Python", "torch", "storage", "training"):
        assert name in done.stdout
    assert "written from 1 node(s)" in done.stdout
