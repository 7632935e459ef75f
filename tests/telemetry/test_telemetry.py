"""Progress as a bar or as plain lines, and metrics in both of their files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from dgr2.config import Config
from dgr2.storage import RunFolder
from dgr2.telemetry import MetricLog, Progress, progress


def test_plain_lines_are_rare_and_tell_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    with Progress(Console(file=out, width=200)) as shown, shown.task("SFT [x]", total=120, done=20) as task:
        for _ in range(60):
            clock[0] += 1.0
            task.advance(1, loss=1.25)
    lines = out.getvalue().splitlines()
    assert lines[0] == "SFT [x] 30/120  elapsed 0:00:10  left 0:01:30  loss 1.25"
    assert lines[-1].startswith("SFT [x] 80/120  elapsed 0:01:00")
    assert len(lines) == 7


def test_a_terminal_gets_a_bar() -> None:
    out = io.StringIO()
    with (
        Progress(Console(file=out, force_terminal=True, width=120)) as shown,
        shown.task("CFT", total=2) as task,
    ):
        task.advance(2, loss=0.5)
    assert "2/2" in out.getvalue() and "loss 0.5" in out.getvalue()


def test_metrics_reach_both_files(tmp_path: Path) -> None:
    run = RunFolder.create_or_open(tmp_path, Config())
    log = MetricLog(run)
    log.close()
    assert not run.metrics_file.exists()
    for step in (1, 2):
        log.log("teacher/sft", step, {"loss": 1.0 / step, "odd": float("nan")})
    log.close()
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert [(x["stage"], x["step"], x["metrics"]) for x in lines] == [
        ("teacher/sft", 1, {"loss": 1.0, "odd": None}),
        ("teacher/sft", 2, {"loss": 0.5, "odd": None}),
    ]
    (events,) = run.tensorboard.iterdir()
    assert b"teacher/sft/loss" in events.read_bytes()
