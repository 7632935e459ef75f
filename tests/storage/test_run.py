"""The run folder: one configuration, and what is known of its stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgr2.config import Config, load_config
from dgr2.errors import ConfigError
from dgr2.storage import RunFolder, read_json
from dgr2.storage.run import config_fingerprint


def test_a_run_keeps_its_configuration_and_fingerprint(tmp_path: Path) -> None:
    cfg = load_config("demo", ["seed=4", "cft.block_curriculum=[16]"])
    run = RunFolder.create_or_open(tmp_path / "a" / "run", cfg)
    assert RunFolder.open(run.path).config() == cfg
    assert read_json(run.path / "run.json")["fingerprint"] == config_fingerprint(cfg)
    assert all(p.is_dir() for p in (run.data, run.samples, run.plots, run.evaluation, run.tensorboard))


def test_another_configuration_is_refused_by_its_keys(tmp_path: Path) -> None:
    RunFolder.create_or_open(tmp_path, Config())
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    other = load_config("demo", ["data.users=99", "cft.alpha=2", "ray.num_workers=2"])
    with pytest.raises(ConfigError, match=r"differs in data\.users, cft\.alpha;"):
        RunFolder.create_or_open(tmp_path, other)
    RunFolder.create_or_open(tmp_path, load_config("demo", ["ray.num_workers=2"]))
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="no run folder"):
        RunFolder.create_or_open(tmp_path, Config())
    with pytest.raises(ConfigError, match="no run folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(ConfigError, match="no run folder"):
        RunFolder.create_or_open(tmp_path / "thesis.txt", Config())
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_stage_begins_ends_and_forgets_other_inputs(tmp_path: Path) -> None:
    run = RunFolder.create_or_open(tmp_path, Config())
    run.begin_stage("teacher", "one")
    (run.train("teacher") / "step-50").mkdir(parents=True)
    run.begin_stage("teacher", "one")
    assert (run.train("teacher") / "step-50").is_dir()
    assert run.stage_state("teacher") is None and run.finished() == []

    run.finish_stage("teacher", "one", 2.5, {"loss": 1.0})
    state = run.stage_state("teacher")
    assert state is not None and (state.fingerprint, state.seconds, state.result) == (
        "one",
        2.5,
        {"loss": 1.0},
    )
    assert run.finished() == ["teacher"]

    run.checkpoint("teacher").mkdir()
    run.begin_stage("teacher", "two")
    assert run.stage_state("teacher") is None
    assert not run.train("teacher").exists() and not run.checkpoint("teacher").exists()
