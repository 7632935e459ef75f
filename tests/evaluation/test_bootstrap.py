from __future__ import annotations

import numpy as np
import pytest

from dgr2.evaluation.bootstrap import mean_intervals, median_interval, median_ratio_interval


def test_mean_interval_is_that_of_the_normal_approximation():
    rng = np.random.default_rng(0)
    values = (rng.random((1000, 2)) < [0.3, 0.6]).astype(float)
    for column, interval in enumerate(mean_intervals(values, 4000, seed=1)):
        half = 1.96 * values[:, column].std() / np.sqrt(1000)
        assert interval.value == pytest.approx(values[:, column].mean())
        assert interval.low == pytest.approx(interval.value - half, abs=0.004)
        assert interval.high == pytest.approx(interval.value + half, abs=0.004)


def test_pairing_narrows_the_interval_of_related_rows():
    rng = np.random.default_rng(0)
    a = (rng.random(500) < 0.4).astype(float)
    b = np.where(rng.random(500) < 0.05, 1 - a, a)
    paired = mean_intervals((a - b)[:, None], 1000, seed=0)[0]
    alone = mean_intervals(a[:, None], 1000, seed=0)[0]
    assert paired.high - paired.low < 0.6 * (alone.high - alone.low)


def test_same_seed_same_interval_another_seed_another():
    values = np.random.default_rng(0).random((50, 1))
    assert mean_intervals(values, 300, seed=3) == mean_intervals(values, 300, seed=3)
    assert mean_intervals(values, 300, seed=3) != mean_intervals(values, 300, seed=4)


def test_constant_values_have_no_width():
    interval = mean_intervals(np.ones((20, 1)), 100, seed=0)[0]
    assert (interval.low, interval.high) == pytest.approx((1, 1))


def test_medians_and_their_ratio():
    below = np.linspace(90, 110, 41)
    assert median_interval(below, 500, seed=0).value == pytest.approx(100)
    ratio = median_ratio_interval(2 * below, below, 500, seed=0)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
