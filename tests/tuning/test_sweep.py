"""The mechanics of a sweep, on trials that only report: failures, budget, interrupt, how many at once."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray import tune
from rich.console import Console

from dgr2.config import load_config
from dgr2.config.schema import RayConfig
from dgr2.errors import DGR2Error
from dgr2.training.session import ray_session
from dgr2.tuning.capacity import DRIVER
from dgr2.tuning.outcome import Outcome, best_outcome
from dgr2.tuning.plan import Plan, make_plan
from dgr2.tuning.sweep import run_sweep

pytestmark = pytest.mark.ray
KEY = "cft.alpha"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with ray_session(RayConfig(num_workers=1), dashboard=True):
        yield


def plan(*overrides: str) -> Plan:
    space = f'tune.space=["{KEY}=uniform(0.5,2)"]'
    return make_plan("cft", load_config("demo", [space, "cft.optim.steps=4", *overrides]))


def sweep(
    trial: Callable[[dict], None], wanted: Plan, folder: Path, at_a_time: int = 2
) -> tuple[list[Outcome], str]:
    console = Console(file=io.StringIO(), width=200)
    bundles = [DRIVER, {"CPU": 0.5}]
    outcomes = run_sweep(trial, wanted, {KEY: 1.0}, bundles, at_a_time, folder, console, 60.0)
    assert isinstance(console.file, io.StringIO)
    return outcomes, console.file.getvalue()


def free_cpus() -> float:
    return ray.available_resources()["CPU"] - ray.cluster_resources()["CPU"]


def test_a_failed_trial_has_its_cause_and_the_others_go_on(cluster: None, tmp_path: Path) -> None:
    running = tmp_path / "running"
    running.mkdir()

    def trial(point: dict) -> None:
        mine = running / str(os.getpid())
        mine.touch()
        if point[KEY] == 1.0:
            mine.unlink()
            raise DGR2Error("this one\ncannot work")
        for step in range(1, 5):
            seen = len(list(running.iterdir()))
            tune.report({"step": step, "valid_loss": point[KEY], "seen": seen})
            assert seen <= 2
        mine.unlink()

    outcomes, said = sweep(trial, plan("tune.samples=3", "tune.grace=4"), tmp_path)
    assert [o.state for o in outcomes] == ["failed", "finished", "finished"]
    assert outcomes[0].cause == "cannot work" and outcomes[0].point == {KEY: 1.0}
    assert "trial-1 failed at step 0: cannot work" in said and "trial-3 finished at step 4" in said
    points = [o.point[KEY] for o in outcomes[1:]]
    assert len(set(points)) == 2 and all(0.5 <= p <= 2 for p in points)
    best = best_outcome(outcomes, plan())
    assert best is not None and best.value == min(o.value for o in outcomes[1:] if o.value is not None)
    assert free_cpus() == 0

    def constant(point: dict) -> None:
        tune.report({"step": 4, "valid_loss": 1.0})

    again, _ = sweep(constant, plan("tune.samples=3"), tmp_path / "again")
    assert [o.point for o in again] == [o.point for o in outcomes]  # the seed decides what is drawn


def test_a_sweep_ends_with_its_budget(cluster: None, tmp_path: Path) -> None:
    def trial(point: dict) -> None:
        for _ in range(1000):
            tune.report({"step": 1, "valid_loss": 1.0})
            time.sleep(0.05)

    outcomes, _ = sweep(trial, plan("tune.samples=9", "tune.budget_s=5"), tmp_path)
    assert {o.state for o in outcomes} <= {"stopped"} and len(
        outcomes
    ) <= 2  # none, where a start takes so long
    assert free_cpus() == 0


def test_an_interrupted_sweep_leaves_nothing_running(cluster: None, tmp_path: Path) -> None:
    started = tmp_path / "started"

    def trial(point: dict) -> None:
        started.touch()
        for _ in range(10_000):
            tune.report({"step": 1, "valid_loss": 1.0})
            time.sleep(0.05)

    def interrupt() -> None:
        while not started.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        sweep(trial, plan("tune.samples=3"), tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    deadline = time.monotonic() + 20
    while free_cpus() < 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
