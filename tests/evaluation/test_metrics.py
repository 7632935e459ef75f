from __future__ import annotations

import math

import numpy as np
import pytest

from dgr2.evaluation.metrics import METRICS, metric_table, metric_values, oracle_ranks, target_ranks


def test_table_agrees_with_the_definitions():
    table = metric_table(10)
    for rank in range(10):
        for column, metric in enumerate(METRICS):
            name, depth = metric.split("@")
            inside = rank < int(depth)
            expected = float(inside) if name == "recall" else inside / math.log2(rank + 2)
            assert table[rank, column] == pytest.approx(expected, abs=1e-6)


def test_fewer_candidates_than_the_depth():
    assert metric_table(4)[3, METRICS.index("recall@5")] == 1
    assert metric_table(4)[3, METRICS.index("ndcg@10")] == pytest.approx(1 / math.log2(5), abs=1e-6)


def test_ranks_and_values():
    ranks = target_ranks([(2, 0, 1), (0, 1, 2)], [2, 2])
    assert ranks.tolist() == [0, 2]
    assert metric_values(ranks, 3)[:, 0].tolist() == [1, 0]


def test_oracle_keeps_pre_rank_order_in_ties():
    scores = np.array([[0.2, 0.5, 0.5], [0.5, 0.5, 0.1]])
    assert oracle_ranks(scores, np.array([2, 1])).tolist() == [1, 1]
