"""What a run says while it runs: progress, metrics, log; and the stopwatch of comparisons."""

from __future__ import annotations

from dgr2.telemetry.log import setup_logging
from dgr2.telemetry.metrics import MetricLog
from dgr2.telemetry.progress import Progress, Task
from dgr2.telemetry.turns import Turns, time_turns

__all__ = ["MetricLog", "Progress", "Task", "Turns", "setup_logging", "time_turns"]
