"""Which student goes out, and what goes with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import Dataset

from dgr2.config import load_config
from dgr2.jobs import student
from dgr2.jobs.student import best_student, is_current
from dgr2.serving.location import description, locate, published_files
from dgr2.serving.reranker import load_newest
from dgr2.storage import RunFolder, write_json


@pytest.fixture
def run_copy(served_run: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(served_run.path, tmp_path / "copy")))


def test_a_student_that_fits_the_configuration_comes_first(
    run_copy: RunFolder, add_student: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_student(run_copy, "rl", seed=1)
    monkeypatch.setattr(student, "is_current", lambda run, stage: stage == "cft")
    assert best_student(run_copy, 50).name == "cft"
    monkeypatch.setattr(student, "is_current", lambda run, stage: False)
    assert best_student(run_copy, 50).name == "rl"


def test_a_change_of_the_configuration_puts_students_out_of_date(
    run_copy: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_current(run_copy, "cft")
    run_copy.write_config(load_config(None, ["serve.max_history=9"], base=run_copy.config()))
    assert is_current(run_copy, "cft")
    run_copy.write_config(load_config(None, ["cft.alpha=9"], base=run_copy.config()))
    assert not is_current(run_copy, "cft")
    warnings: list[str] = []
    monkeypatch.setattr(student.log, "warning", lambda text, *values: warnings.append(text % values))
    assert best_student(run_copy, 50).name == "cft"
    assert "out of date" in warnings[0]


def test_what_is_published_serves_by_itself(run_copy: RunFolder, tmp_path: Path) -> None:
    files = published_files(run_copy, "cft")
    assert {"config.yaml", "checkpoints/cft/decoding.json", "data/builder.json"} <= set(files)
    for name, path in files.items():
        (tmp_path / "alone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "alone" / name)
    before, alone = (load_newest(run, 50) for run in (run_copy, locate(str(tmp_path / "alone"))))
    query = before.example()
    assert alone.version == before.version and alone.rerank([query]) == before.rerank([query])


def test_no_list_and_no_history_of_a_user_is_published(run_copy: RunFolder) -> None:
    for name in ("instances/train", "sequences", "midtrain"):
        Dataset.from_dict({"history": [[1, 2]]}).save_to_disk(str(run_copy.data / name))
    assert not [
        n for n in published_files(run_copy, "cft") if "instances" in n or "sequences" in n or "midtrain" in n
    ]


def test_the_manifest_quotes_the_report(run_copy: RunFolder) -> None:
    assert description(run_copy, "cft", "v")["metrics"] == {}
    row = {
        "name": "cft",
        "metrics": {"recall@1": {"value": 0.4}},
        "validity": {"native": 1.0},
        "decode": None,
        "seconds": 1,
    }
    write_json(run_copy.report, {"stages": [{"name": "pre_rank"}, row]})
    about = description(run_copy, "cft", "v")
    assert about["metrics"] == {k: row[k] for k in ("metrics", "validity", "decode")}
    assert (about["name"], about["version"], about["fingerprint"]) == (
        "cft",
        "v",
        run_copy.stage_state("cft").fingerprint,
    )
    assert "report.json" in published_files(run_copy, "cft")
