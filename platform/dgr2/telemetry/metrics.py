"""Metrics of a run: one JSON object a line, and the same as TensorBoard events."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import IO

from tensorboardX import SummaryWriter

from dgr2.storage import RunFolder, jsonable


class MetricLog:
    """Appends to ``metrics.jsonl`` and ``tensorboard/``; both are opened at the first metric."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._lines: IO[str] | None = None
        self._events: SummaryWriter | None = None

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Record figures of a step of a stage; ``stage`` may name a phase too (``teacher/sft``)."""
        if self._lines is None or self._events is None:
            self._lines = self._run.metrics_file.open("a", encoding="utf-8")
            self._events = SummaryWriter(logdir=str(self._run.tensorboard))
        now = time.time()
        line = {"time": now, "stage": stage, "step": step, "metrics": jsonable(metrics)}
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        for name, value in metrics.items():
            self._events.add_scalar(f"{stage}/{name}", value, step, walltime=now)

    def close(self) -> None:
        """Flush and close both files."""
        if self._lines is not None:
            self._lines.close()
        if self._events is not None:
            self._events.close()
        self._lines = self._events = None
