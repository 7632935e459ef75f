"""Ranking metrics of instances with one relevant candidate: a function of the target's rank alone.

So torchmetrics, which defines the metrics, is asked once for every possible rank, and evaluating a row is a
table look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import torch
from torchmetrics.functional.retrieval import retrieval_normalized_dcg, retrieval_recall

METRICS = ("recall@1", "recall@3", "recall@5", "ndcg@3", "ndcg@10")
"""Metrics of every row, in the order of the columns of :func:`metric_table`."""

_FUNCTIONS = {"recall": retrieval_recall, "ndcg": retrieval_normalized_dcg}


@cache
def metric_table(candidates: int) -> np.ndarray:
    """Value of every metric at every rank of the target: ``[candidates, metrics]``, rank from 0."""
    scores = torch.arange(candidates, 0, -1, dtype=torch.float32)
    table = np.empty((candidates, len(METRICS)))
    for rank in range(candidates):
        relevant = torch.zeros(candidates, dtype=torch.long)
        relevant[rank] = 1
        for column, metric in enumerate(METRICS):
            name, depth = metric.split("@")
            top = min(int(depth), candidates)
            table[rank, column] = float(_FUNCTIONS[name](scores, relevant, top_k=top))
    return table


def metric_values(ranks: np.ndarray, candidates: int) -> np.ndarray:
    """Metrics of every instance, ``[instances, metrics]``, from the target's rank ``[instances]`` from 0."""
    return metric_table(candidates)[ranks]


def target_ranks(rankings: Iterable[Sequence[int]], targets: Iterable[int]) -> np.ndarray:
    """Rank from 0 of every target, ``[instances]``; both name candidates by pre-rank position."""
    return np.array(
        [list(ranking).index(target) for ranking, target in zip(rankings, targets, strict=True)],
        dtype=np.int64,
    )


def oracle_ranks(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Rank from 0 of every target when candidates are ordered by ``scores`` ``[instances, candidates]``.

    Ties keep the pre-rank order.
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.argmax(order == targets[:, None], axis=1)
