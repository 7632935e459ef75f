"""Sweeps on a tiny shop: a bad trial is stopped, the best one becomes a preset, all is free at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from typer.testing import CliRunner, Result

from dgr2.config import load_config
from dgr2.data.tokenizer import load_tokenizer
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.shipped import Shipped
from dgr2.jobs.cli import app
from dgr2.jobs.run import current_fingerprint
from dgr2.models.backbone import build_model, save_model
from dgr2.storage import RunFolder
from dgr2.training.session import ray_session

pytestmark = pytest.mark.ray

SHOP = (
    "seed=1",
    "data.users=200", "data.items=40", "data.candidates=6", "data.folds=2", "expert.trees=5",
    "semantic_ids.codes=8", "semantic_ids.dimensions=8", "tokenizer.vocabulary=600",
    "model.hidden=32", "model.layers=1", "model.heads=2", "model.kv_heads=1", "model.mlp=48",
    "ray.num_workers=1", "rollout.workers=1",
    "cft.optim.steps=4", "cft.optim.batch_size=8", "cft.optim.micro_batch_size=8",
    "cft.optim.learning_rate=1e-2",
    "rl.optim.steps=2", "rl.optim.batch_size=4", "rl.optim.micro_batch_size=4", "rl.group=2",
    "tune.valid_lists=8", "tune.max_concurrent=1",
)  # fmt: skip


def dgr2(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A prepared shop whose teacher and students are random models."""
    path = tmp_path_factory.mktemp("shop") / "run"
    result = dgr2("prepare", "--run", str(path), "--preset", "demo", *SHOP)
    assert result.exit_code == 0, result.output
    run = RunFolder.open(path)
    config = run.config()
    tokenizer = load_tokenizer(run.tokenizer)
    model = build_model(config.model, Vocabulary.from_tokenizer(tokenizer, config.data.candidates), 0)
    for stage in ("teacher", "cft", "opd"):
        save_model(model, run.checkpoint(stage), tokenizer)
        Shipped.of(config).save(run.checkpoint(stage))
        run.finish_stage(stage, current_fingerprint(run, config, stage), 0.0, {})
    return run


@pytest.fixture(scope="module")
def cluster(shop: RunFolder) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")  # also the pace of reports
        patch.setenv("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # a process less to start
        with ray_session(shop.config().ray, dashboard=True):
            yield


def all_free() -> None:
    """CPUs are free as soon as the command returns; the slivers of drivers that just died a little later."""
    total = ray.cluster_resources()
    free = ray.available_resources()
    assert (free.get("CPU"), free.get("GPU")) == (total["CPU"], total.get("GPU"))
    deadline = time.monotonic() + 10
    while {k: v for k, v in ray.available_resources().items() if k in total and "memory" not in k} != {
        k: v for k, v in total.items() if "memory" not in k
    }:
        assert time.monotonic() < deadline, (total, ray.available_resources())
        time.sleep(0.1)


def files(folder: Path) -> list[str]:
    return sorted(str(p) for p in folder.rglob("*"))


def test_a_sweep_that_does_not_fit_is_refused(shop: RunFolder, cluster: None, tmp_path: Path) -> None:
    before = files(shop.path)
    result = dgr2("tune", "cft", "demo", "tune.max_concurrent=99", "tune.samples=99", "--run", str(shop.path))
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and "99 x 1 = 99 CPUs" in result.stderr
    assert files(shop.path) == before

    new = tmp_path / "new"
    cpus = f"ray.threads_per_worker={int(ray.cluster_resources()['CPU']) + 1}"
    result = dgr2("tune", "rl", "demo", "rollout.train_cpus=4096", cpus, "--run", str(new))
    assert result.exit_code == 2 and "x 4096 = 8192 CPUs" in result.stderr and "not one fits" in result.stderr
    assert not new.exists()
    for words in (("teacher", "demo"), ("cft", "demo", 'tune.space=["cft.alfa=uniform(0,1)"]')):
        assert dgr2("tune", *words, "--run", str(shop.path)).exit_code == 2
    assert dgr2("tune", "cft", "demo", "data.users=300", "--run", str(shop.path)).exit_code == 2
    assert files(shop.path) == before
    all_free()


def test_asha_stops_a_bad_trial_and_the_best_becomes_a_preset(shop: RunFolder, cluster: None) -> None:
    space = 'tune.space=["cft.optim.learning_rate=choice(1e-7,1e-2)"]'
    settings = (space, "tune.samples=2", "tune.reports=2", "tune.grace=2", "tune.reduction=2")
    result = dgr2("tune", "cft", "demo", *settings, "--run", str(shop.path))
    assert result.exit_code == 0, result.output
    all_free()

    summary = json.loads((shop.tuning("cft") / "trials.json").read_text())
    trials = {t["name"]: t for t in summary["trials"]}
    assert [t["point"]["cft.optim.learning_rate"] for t in trials.values()] == [1e-2, 1e-7]
    assert [t["state"] for t in trials.values()] == ["finished", "stopped"]
    assert trials["trial-1"]["step"] == 4 and trials["trial-2"]["step"] == 2
    assert summary["best"] == "trial-1" and trials["trial-1"]["value"] < trials["trial-2"]["value"]
    for words in ("trial-1 starts: cft.optim.learning_rate=0.01", "trial-2 stopped at step 2", "dgr2 run"):
        assert words in result.stdout

    file = shop.tuning("cft") / "best.yaml"
    stored = shop.config()
    found = load_config(str(file))
    assert found.cft.optim.learning_rate == 1e-2 and found.cft.optim.steps == stored.cft.optim.steps
    assert found.data == stored.data and found.preset == "demo"
    sweep = shop.tuning("cft") / "sweep-1"
    best = RunFolder.open(sweep / "trial-1")
    assert best.config().cft.optim.learning_rate == 1e-2
    assert best.finished() == ["cft", "prepare", "teacher"] and best.has_checkpoint("cft")
    assert not RunFolder.open(sweep / "trial-2").checkpoint("cft").exists()
    assert shop.config() == stored and shop.has_checkpoint("teacher")


def test_a_trial_of_a_loop_holds_its_actors_and_frees_them(shop: RunFolder, cluster: None) -> None:
    result = dgr2("tune", "rl", "demo", "tune.samples=1", "--run", str(shop.path))
    assert result.exit_code == 0, result.output
    all_free()
    summary = json.loads((shop.tuning("rl") / "trials.json").read_text())
    assert summary["metric"] == "reward" and summary["trials"][0]["state"] == "finished"
    assert RunFolder.open(shop.tuning("rl") / "sweep-1" / "trial-1").has_checkpoint("rl")
