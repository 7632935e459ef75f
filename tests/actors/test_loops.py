"""The online loops on a tiny shop: they learn nothing much, but the same whatever happens to them."""

from __future__ import annotations

import io
import threading
import time

import pytest
import ray
import torch
from rich.console import Console
from safetensors.torch import load_file

from dgr2.config import load_config
from dgr2.errors import CapacityError
from dgr2.jobs.run import run_stage
from dgr2.storage import RunFolder
from dgr2.training.session import ray_session

OVERRIDES = [
    *("data.users=150", "data.items=60", "data.folds=2", "expert.trees=10", "tokenizer.vocabulary=400"),
    *("model.hidden=32", "model.layers=1", "model.heads=2", "model.kv_heads=1", "model.mlp=32"),
    *("teacher.midtrain.steps=1", "teacher.sft.steps=2", "cft.optim.steps=2"),
    *("opd.optim.steps=4", "opd.optim.checkpoint_every=2"),
    *("opd.optim.batch_size=8", "opd.optim.micro_batch_size=4"),
    *("rl.optim.steps=3", "rl.optim.batch_size=16", "rl.optim.micro_batch_size=8"),
    *("rl.group=4", "rl.refills=1", "rl.decode=policy"),  # natively, all is invalid yet
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with a teacher and a converted student, in one Ray session."""
    config = load_config("demo", OVERRIDES)
    run = RunFolder.create_or_open(tmp_path_factory.mktemp("runs") / "a run", config)
    with ray_session(config.ray):
        for stage in ("prepare", "teacher", "cft"):
            run_stage(run, config, stage, Console(file=io.StringIO()))
        yield run, config


def weights(run: RunFolder, stage: str) -> dict[str, torch.Tensor]:
    return load_file(run.checkpoint(stage) / "model.safetensors")


def again(run: RunFolder, config, stage: str) -> dict[str, torch.Tensor]:
    (run.path / "stages" / f"{stage}.json").unlink(missing_ok=True)
    run_stage(run, config, stage, Console(file=io.StringIO()))
    return weights(run, stage)


@pytest.fixture(scope="module")
def undisturbed(made) -> dict[str, torch.Tensor]:
    """Weights after an OPD stage in which nothing happened."""
    run, config = made
    return again(run, config, "opd")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def free() -> bool:
    """Whether everything is free again; Ray gives resources back a moment after an actor's end."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if ray.available_resources().get("CPU") == ray.cluster_resources().get("CPU"):
            return True
        time.sleep(0.2)
    return False


@pytest.mark.ray
def test_opd_changes_the_student_and_a_lost_worker_changes_nothing(made, undisturbed, monkeypatch):
    from dgr2.jobs import online

    run, config = made
    assert not same(undisturbed, weights(run, "cft"))
    assert free()

    original = online.OnlineLoop.rollouts
    killed = []

    def rollouts(loop, key, *arguments):
        if key == (2,) and not killed:
            killed.append(key)
            ray.kill(loop._rollouts.pool.actors[0])
        return original(loop, key, *arguments)

    monkeypatch.setattr(online.OnlineLoop, "rollouts", rollouts)
    assert same(again(run, config, "opd"), undisturbed) and killed
    assert free()


@pytest.mark.ray
def test_an_interrupted_loop_ends_bit_identical(made, undisturbed, monkeypatch):
    from dgr2.jobs import online

    run, config = made

    def stop(loop, step, *arguments):
        if step == 3:
            raise KeyboardInterrupt
        return submit(loop, step, *arguments)

    submit = online.OnlineLoop.submit
    with monkeypatch.context() as patched:
        patched.setattr(online.OnlineLoop, "submit", stop)
        with pytest.raises(KeyboardInterrupt):
            again(run, config, "opd")
    assert free()
    assert same(again(run, config, "opd"), undisturbed)


@pytest.mark.ray
def test_rl_runs_on_the_distilled_student(made):
    run, config = made
    if run.stage_state("opd") is None:
        again(run, config, "opd")
    assert not same(again(run, config, "rl"), weights(run, "opd"))
    lines = [line for line in run.metrics_file.read_text().splitlines() if '"stage": "rl"' in line]
    assert '"ratio": ' in lines[0] and '"reward": ' in lines[0]
    assert free() and threading.active_count() < 50


@pytest.mark.ray
def test_a_failing_trainer_stops_the_loop_with_its_first_cause(made, monkeypatch):
    from dgr2.jobs import online

    run, config = made

    def spoil(loop, step, micro, *arguments):
        micro[0].trajectories[0].tokens = []  # does not fit its steps
        return submit(loop, step, micro, *arguments)

    submit = online.OnlineLoop.submit
    monkeypatch.setattr(online.OnlineLoop, "submit", spoil)
    start = time.monotonic()
    with pytest.raises(Exception, match="opd failed"):
        again(run, config, "opd")
    assert time.monotonic() - start < config.rollout.timeout_s
    assert free()


@pytest.mark.ray
def test_fewer_micro_batches_than_workers_still_make_a_step(made):
    run, config = made
    config = load_config(
        None, ["opd.optim.batch_size=4", "opd.optim.steps=1", "opd.compare_off_policy=false"], base=config
    )
    assert config.ray.num_workers == 2 and config.opd.optim.micro_batch_size == 4
    assert not same(again(run, config, "opd"), weights(run, "cft"))


@pytest.mark.ray
def test_too_many_workers_are_refused_with_the_arithmetic(made):
    run, config = made
    config = load_config(None, ["rollout.workers=100"], base=config)
    with pytest.raises(CapacityError, match="100 rollout workers x 0.25 = 25 CPUs"):
        again(run, config, "opd")
