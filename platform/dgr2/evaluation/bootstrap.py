"""Percentile bootstrap over instances: intervals of a mean, of a paired difference, of a ratio of medians.

Intervals cover 95 %. A resample is a vector of counts over the instances, drawn once and used for every
metric and row, so two rows are always compared on the same resamples (paired).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_BOUNDS = (2.5, 97.5)


@dataclass(frozen=True)
class Interval:
    """A measured value and its 95 % interval."""

    value: float
    low: float
    high: float

    def as_json(self) -> dict[str, object]:
        """The form of the report: ``{value, ci95}``."""
        return {"value": self.value, "ci95": [self.low, self.high]}


def generator(seed: int, stream: str) -> np.random.Generator:
    """The generator of one consumer."""
    return np.random.default_rng([seed, zlib.crc32(stream.encode())])


@lru_cache(maxsize=2)
def resample_counts(instances: int, resamples: int, seed: int) -> np.ndarray:
    """How often every instance stands in every resample: ``[resamples, instances]``, 4 bytes each."""
    even = np.full(instances, 1.0 / instances)
    drawn = generator(seed, "bootstrap").multinomial(instances, even, size=resamples)
    return drawn.astype(np.float32)


def mean_intervals(values: np.ndarray, resamples: int, seed: int) -> list[Interval]:
    """Interval of the mean of every column of ``values`` ``[instances, columns]``.

    Pass differences of two rows to compare them paired.
    """
    centre = values.mean(axis=0)
    deviations = (values - centre).astype(np.float32)  # single precision loses nothing beside the spread
    means = centre + resample_counts(len(values), resamples, seed) @ deviations / len(values)
    low, high = np.percentile(means, _BOUNDS, axis=0)
    return [Interval(float(c), float(a), float(b)) for c, a, b in zip(centre, low, high, strict=True)]


def median_interval(values: np.ndarray, resamples: int, seed: int) -> Interval:
    """Interval of the median of ``values`` ``[instances]``."""
    picks = generator(seed, "bootstrap").integers(len(values), size=(resamples, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), _BOUNDS)
    return Interval(float(np.median(values)), float(low), float(high))


def median_ratio_interval(above: np.ndarray, below: np.ndarray, resamples: int, seed: int) -> Interval:
    """Interval of median(``above``) / median(``below``), both ``[instances]``, resampled together."""
    picks = generator(seed, "bootstrap").integers(len(above), size=(resamples, len(above)))
    ratios = np.median(above[picks], axis=1) / np.median(below[picks], axis=1)
    low, high = np.percentile(ratios, _BOUNDS)
    return Interval(float(np.median(above) / np.median(below)), float(low), float(high))
