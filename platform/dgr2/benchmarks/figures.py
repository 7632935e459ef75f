"""Figures as ``dgr2 bench`` prints and stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dgr2.config.schema import Config
from dgr2.evaluation.bootstrap import Interval, mean_intervals, median_interval, median_ratio_interval

Figures = dict[str, dict[str, float | str]]
"""``{name: {value, low, high, unit}}``, intervals at 95 %."""


def figure(interval: Interval, unit: str) -> dict[str, float | str]:
    """A figure from its interval."""
    return {"value": interval.value, "low": interval.low, "high": interval.high, "unit": unit}


def exact(value: float, unit: str) -> dict[str, float | str]:
    """A figure that is counted, not sampled."""
    return figure(Interval(value, value, value), unit)


@dataclass(frozen=True)
class Summary:
    """How samples become figures: bootstrap resamples and their seed."""

    resamples: int
    seed: int

    @classmethod
    def of(cls, config: Config) -> Summary:
        """As a configuration evaluates."""
        return cls(config.evaluation.bootstrap, config.seed)

    def median(self, values: Sequence[float] | np.ndarray, unit: str) -> dict[str, float | str]:
        """Median of some values."""
        return figure(median_interval(np.asarray(values), self.resamples, self.seed), unit)

    def ratio(self, above: Sequence[float], below: Sequence[float]) -> dict[str, float | str]:
        """Ratio of the medians of two paired series."""
        interval = median_ratio_interval(np.asarray(above), np.asarray(below), self.resamples, self.seed)
        return figure(interval, "x")

    def means(self, columns: np.ndarray) -> list[Interval]:
        """Mean of every column of ``[samples, columns]``."""
        return mean_intervals(columns, self.resamples, self.seed)
