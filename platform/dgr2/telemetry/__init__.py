"""What a run says while it runs: progress, metrics, log."""

from __future__ import annotations

from dgr2.telemetry.log import setup_logging
from dgr2.telemetry.metrics import MetricLog
from dgr2.telemetry.progress import Progress, Task

__all__ = ["MetricLog", "Progress", "Task", "setup_logging"]
