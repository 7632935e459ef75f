"""The command line on stages that only count their calls: what runs, what is skipped, what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgr2 import __version__
from dgr2.benchmarks import plots
from dgr2.config import NOT_FINGERPRINTED, from_yaml, keys, load_config
from dgr2.errors import DataError, StorageError
from dgr2.evaluation import report
from dgr2.jobs import bench, run
from dgr2.jobs.cli import app
from dgr2.jobs.run import STAGES, StageContext
from dgr2.storage import RunFolder, write_json

Command = Callable[..., Result]


WHOLE = [s.name for s in STAGES]
LOOPS = ["opd_off_policy", "opd", "rl"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names of the stages in the order of their calls."""
    monkeypatch.chdir(tmp_path)
    called: list[str] = []

    def fake(name: str) -> Callable[[StageContext], dict]:
        def function(context: StageContext) -> dict:
            called.append(name)
            context.metrics.log(name, 1, {"loss": 1.0})
            return {"calls": len(called)}

        return function

    stages = [dataclasses.replace(s, function=fake(s.name), on_ray=False) for s in STAGES]
    monkeypatch.setattr(run, "STAGES", stages)
    monkeypatch.setattr(report, "print_report", lambda folder, console: console.print("the report"))
    return called


def replace_stage(
    monkeypatch: pytest.MonkeyPatch, name: str, function: Callable[[StageContext], dict]
) -> None:
    stages = [dataclasses.replace(s, function=function) if s.name == name else s for s in run.STAGES]
    monkeypatch.setattr(run, "STAGES", stages)


def dgr2(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def refused(result: Result, *words: str) -> None:
    """Exit code 2 and one line on standard error that holds the words."""
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("error: ")
    for word in words:
        assert word in result.stderr


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


def test_every_key_belongs_to_a_stage() -> None:
    for key in keys():
        owners = [s.name for s in STAGES if s.owns(key)]
        assert bool(owners) != (key == "preset" or key.split(".")[0] in NOT_FINGERPRINTED), key


def test_version_and_configuration(tmp_path: Path) -> None:
    assert dgr2("--version").stdout.strip() == __version__
    shown = dgr2("config", "beauty-small", "seed=7")
    file = tmp_path / "file.yaml"
    file.write_text(shown.stdout)
    assert from_yaml(file) == load_config("beauty-small", ["seed=7"], inputs=False)
    refused(dgr2("config", "beauty"), "unknown preset 'beauty'")
    refused(dgr2("config", "demo", "sed=7"), "unknown key 'sed'", "'seed'")


def test_demo_runs_all_stages_once(calls: list[str], tmp_path: Path) -> None:
    first = dgr2("demo", "seed=3")
    assert first.exit_code == 0, first.output
    assert calls == WHOLE == ["prepare", "teacher", "cft", *LOOPS, "evaluate"]
    assert "the report" in first.stdout
    folder = RunFolder.open(tmp_path / "runs" / "demo-seed3")
    assert folder.finished() == sorted(WHOLE)
    assert len(folder.metrics_file.read_text().splitlines()) == len(WHOLE)

    again = dgr2("demo", "seed=3", "ray.num_workers=2")
    assert again.exit_code == 0 and calls == WHOLE
    assert again.stdout.count("skipped") == len(WHOLE) and "the report" in again.stdout


def test_another_configuration_writes_nothing(calls: list[str], tmp_path: Path) -> None:
    dgr2("demo", "--run", "here")
    before = snapshot(tmp_path)
    refused(dgr2("demo", "--run", "here", "data.users=99", "cft.alpha=2"), "data.users, cft.alpha")
    refused(dgr2("demo", "--run", "here", "data.user=99"), "data.users")
    refused(dgr2("run", "beauty-small", "--run", "here"), "data.path")
    refused(dgr2("prepare", "--run", "here", "--preset", "beauty-small"), "preset 'demo'")
    assert snapshot(tmp_path) == before and calls == WHOLE


def test_a_stage_takes_its_own_and_later_keys(calls: list[str], tmp_path: Path) -> None:
    dgr2("demo", "--run", "here")
    calls.clear()
    assert dgr2("cft", "--run", "here", "cft.alpha=2", "decode.threshold=0.8").exit_code == 0
    assert calls == ["cft"]
    stored = RunFolder.open(tmp_path / "here").config()
    assert (stored.cft.alpha, stored.decode.threshold) == (2.0, 0.8)

    before = snapshot(tmp_path)
    refused(dgr2("cft", "--run", "here", "teacher.sft.steps=9"), "'teacher.sft.steps'", "dgr2 teacher --run")
    refused(dgr2("evaluate", "--run", "here", "model.init=x"), "'model.init'")
    refused(dgr2("evaluate", "--run", "here", "cft.alpha=3"), "'cft.alpha'", "dgr2 cft --run")
    refused(dgr2("teacher", "--run", "here", "seed=1"), "'seed'", "dgr2 prepare --run")
    refused(dgr2("evaluate", "--run", "here"), "out of date: dgr2 opd --run")
    refused(dgr2("evaluate", "--run", "here", "decode.threshold=0.7"), "dgr2 opd_off_policy --run")
    assert snapshot(tmp_path) == before and calls == ["cft"]

    for stage in LOOPS:
        assert dgr2(stage, "--run", "here").exit_code == 0
    assert dgr2("evaluate", "--run", "here").exit_code == 0
    assert dgr2("evaluate", "--run", "here").exit_code == 0
    assert calls == ["cft", *LOOPS, "evaluate"]


def test_decoding_is_evaluation_s_own_until_a_loop_trained_with_it(calls: list[str], tmp_path: Path) -> None:
    for stage in ("prepare", "teacher", "cft", "evaluate"):
        assert dgr2(stage, "--run", "here").exit_code == 0
    assert dgr2("evaluate", "--run", "here", "decode.threshold=0.7").exit_code == 0
    assert calls == ["prepare", "teacher", "cft", "evaluate", "evaluate"]
    assert dgr2("opd", "--run", "here").exit_code == 0
    refused(dgr2("evaluate", "--run", "here", "decode.threshold=0.8"), "'decode.threshold'", "dgr2 opd --run")


def test_stages_one_by_one_and_what_they_need(calls: list[str], tmp_path: Path) -> None:
    refused(dgr2("teacher", "--run", "here"), "dgr2 prepare --run here")
    assert dgr2("prepare", "--run", "here", "seed=2").exit_code == 0
    refused(dgr2("cft", "--run", "here"), "'teacher', which has not finished")
    assert dgr2("evaluate", "--run", "here").exit_code == 0
    assert dgr2("teacher", "--run", "here").exit_code == 0
    assert dgr2("evaluate", "--run", "here").exit_code == 0
    assert calls == ["prepare", "evaluate", "teacher", "evaluate"]

    assert dgr2("prepare", "--run", "here", "prompt.history=4").exit_code == 0
    refused(dgr2("evaluate", "--run", "here"), "'teacher', which is out of date")
    assert dgr2("demo", "--run", "here", "seed=2", "prompt.history=4").exit_code == 0
    assert calls[4:] == WHOLE


def test_changed_input_files_run_the_stages_again(calls: list[str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "items.jsonl").write_text("{}")
    (data / "sequences.txt").write_text("1")
    command = ("run", "beauty-small", "data.path=data", "--run", "here")
    assert dgr2(*command).exit_code == 0 and dgr2(*command).exit_code == 0
    assert calls == WHOLE
    (data / "sequences.txt").write_text("2")
    assert dgr2(*command).exit_code == 0
    assert calls == 2 * WHOLE


def test_an_error_in_the_data_writes_nothing(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(context: StageContext) -> dict:
        raise DataError("sequences.txt line 3:\n unknown item 9")

    replace_stage(monkeypatch, "prepare", broken)
    refused(dgr2("demo"), "line 3: unknown item 9")
    refused(dgr2("prepare", "--run", "a/b/c"), "line 3")
    (tmp_path / "empty").mkdir()
    refused(dgr2("demo", "--run", "empty"), "line 3")
    assert snapshot(tmp_path) == {str(tmp_path / "empty"): b""}


def test_a_refused_change_keeps_the_old_configuration(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dgr2("demo", "--run", "here")
    config = (tmp_path / "here" / "config.yaml").read_bytes()

    def broken(context: StageContext) -> dict:
        raise DataError("no list left")

    replace_stage(monkeypatch, "prepare", broken)
    refused(dgr2("prepare", "--run", "here", "data.users=50"), "no list left")
    assert (tmp_path / "here" / "config.yaml").read_bytes() == config


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (StorageError("disk full"), 1)])
def test_an_interrupted_stage_runs_again(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    whole = run.STAGES

    def stopped(context: StageContext) -> dict:
        context.run.train("cft").mkdir(parents=True)
        raise error

    replace_stage(monkeypatch, "cft", stopped)
    result = dgr2("demo", "--run", "here")
    assert result.exit_code == code and result.stderr.count("\n") == 1
    assert calls == ["prepare", "teacher"]
    monkeypatch.setattr(run, "STAGES", whole)
    assert dgr2("demo", "--run", "here").exit_code == 0
    assert calls == WHOLE
    assert (tmp_path / "here" / "train" / "cft").is_dir()


def test_bench_writes_its_figures(calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dgr2("demo", "--run", "here")
    figures = {"speed": {"value": 2.0, "low": 1.5, "high": 2.5, "unit": "x"}}
    monkeypatch.setattr(bench, "bench", lambda *arguments: figures)
    drawn: list[tuple[object, Path]] = []
    monkeypatch.setattr(plots, "write_decode_plot", lambda *arguments: drawn.append(arguments))
    before = snapshot(tmp_path / "here")
    result = dgr2("bench", "decode", "--run", "here", "decode.threshold=0.5", "--json", "out.json")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out.json").read_text()) == {"figures": figures}
    assert drawn == [(figures, Path("out.png"))]
    assert snapshot(tmp_path / "here") == before
    refused(dgr2("bench", "decode", "--run", "here", "cft.alpha=2"), "'cft.alpha'")
    refused(dgr2("bench", "decode", "--run", "nowhere"), "no run folder")


def test_a_file_stands_between_preset_and_overrides(calls: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data: {users: 70, items: 50}\n")
    assert dgr2("demo", "data.items=60", "--config", "mine.yaml", "--run", "here").exit_code == 0
    cfg = RunFolder.open(tmp_path / "here").config()
    assert (cfg.data.users, cfg.data.items) == (70, 60)
    (tmp_path / "mine.yaml").write_text("cft: {alpha: 3}\n")
    calls.clear()
    assert dgr2("cft", "--config", "mine.yaml", "--run", "here").exit_code == 0
    assert calls == ["cft"]
    refused(dgr2("demo", "--config", "no.yaml"), "no.yaml")
    write_json(tmp_path / "bad.yaml", {"cft": {"alfa": 1}})
    refused(dgr2("cft", "--config", "bad.yaml", "--run", "here"), "cft.alpha")
