"""The metric log of a trial: what an online loop logs is what its trial reports."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ray import tune

from dgr2.storage import RunFolder
from dgr2.telemetry import MetricLog


class TrialLog(MetricLog):
    """Logs every step and reports the means of every few steps to Tune.

    Args:
        every: Steps between reports; the last step is always reported.
        last: Last step.
        worst: Reported in place of a figure that is no number.
    """

    def __init__(self, run: RunFolder, every: int, last: int, worst: float) -> None:
        super().__init__(run)
        self._every, self._last, self._worst = every, last, worst
        self._seen: dict[str, list[float]] = {}

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Record a step; where a report is due, Tune may stop the trial here."""
        figures = dict(metrics)
        figures["valid_tokens_per_forward"] = figures["valid"] * figures["tokens_per_forward"]
        super().log(stage, step, figures)
        for name, value in figures.items():
            self._seen.setdefault(name, []).append(value)
        if step % self._every == 0 or step == self._last:
            means = {name: self._mean(values) for name, values in self._seen.items()}
            self._seen.clear()
            tune.report({**means, "step": step})

    def _mean(self, values: list[float]) -> float:
        mean = sum(values) / len(values)
        return mean if math.isfinite(mean) else self._worst
