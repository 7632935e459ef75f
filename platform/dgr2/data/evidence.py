"""Measured evidence for a candidate: 14 features for the expert, 8 of them in buckets for the prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from dgr2.data.splits import interaction_matrix
from dgr2.data.statistics import ItemTable, Statistics

FEATURES = (
    "score",
    "score_ratio",
    "rank",
    "popularity",
    "same_leaf",
    "path_share",
    "top_share",
    "same_brand",
    "brand_share",
    "price_distance",
    "similarity_last",
    "similarity_recent",
    "follow",
    "history_length",
)
# Token name of a piece of evidence, the feature behind it and the sign that makes large values good,
# by importance for the expert: the first of equally strong ones is cited in a trace.
EVIDENCE = (
    ("follow", "follow", 1),
    ("score", "score_ratio", 1),
    ("near", "similarity_last", 1),
    ("recent", "similarity_recent", 1),
    ("brand", "brand_share", 1),
    ("kind", "path_share", 1),
    ("price", "price_distance", -1),
    ("popular", "popularity", 1),
)
RECENT = 5


def features(
    histories: list[list[int]],
    candidates: np.ndarray,
    scores: np.ndarray,
    similarity: csr_matrix,
    statistics: Statistics,
    table: ItemTable,
) -> np.ndarray:
    """The 14 features.

    Args:
        histories: oldest first, at least one item each.
        candidates: ``[lists, width]`` item ids, 0 is padding.
        scores: ``[lists, width]`` first-stage scores.
        similarity: ``[items + 1, items + 1]`` of the retriever fitted on the same sequences.

    Returns:
        ``[lists, width, 14]`` float32 in the order of ``FEATURES``; NaN where a price is unknown.
    """
    rows, width = candidates.shape
    recent = np.zeros((rows, RECENT), dtype=np.int64)
    for row, history in enumerate(histories):
        tail = history[: -RECENT - 1 : -1]
        recent[row, : len(tail)] = tail
    lengths = np.array([len(history) for history in histories], dtype=np.float64)
    weights = interaction_matrix(histories, len(table.leaf) - 1)
    last = recent[:, 0]
    near = np.stack([_lookup(similarity, recent[:, age], candidates) for age in range(RECENT)])
    columns = {
        "score": scores,
        "score_ratio": scores / np.maximum(scores.max(axis=1, keepdims=True), 1e-9),
        "rank": np.broadcast_to(np.arange(1.0, width + 1), (rows, width)),
        "popularity": np.log1p(statistics.popularity[candidates]),
        "same_leaf": _same(table.leaf, last, candidates),
        "path_share": _share(weights, table.path, candidates) / lengths[:, None],
        "top_share": _share(weights, table.top, candidates) / lengths[:, None],
        "same_brand": _same(table.brand, last, candidates),
        "brand_share": _share(weights, table.brand, candidates) / lengths[:, None],
        "price_distance": np.abs(table.log_price[candidates] - _mean_price(weights, table)[:, None]),
        "similarity_last": near[0],
        "similarity_recent": near.max(axis=0),
        "follow": np.log1p(_lookup(statistics.follow, last, candidates)),
        "history_length": np.broadcast_to(lengths[:, None], (rows, width)),
    }
    return np.stack([columns[name] for name in FEATURES], axis=-1).astype(np.float32)


def _lookup(matrix: csr_matrix, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """``matrix[rows[i], columns[i, j]]``."""
    picked = matrix[np.repeat(rows, columns.shape[1]), columns.ravel()]
    return np.asarray(picked, dtype=np.float64).reshape(columns.shape)


def _same(codes: np.ndarray, last: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    return ((codes[candidates] == codes[last][:, None]) & (codes[candidates] > 0)).astype(np.float64)


def _share(weights: csr_matrix, codes: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """How many history items carry the candidate's code, ``[lists, width]``."""
    size = len(codes)
    onehot = csr_matrix((np.ones(size), (np.arange(size), codes)), shape=(size, int(codes.max()) + 1))
    counts = _lookup((weights @ onehot).tocsr(), np.arange(len(candidates)), codes[candidates])
    return np.where(codes[candidates] > 0, counts, 0.0)


def _mean_price(weights: csr_matrix, table: ItemTable) -> np.ndarray:
    known = np.isfinite(table.log_price)
    count = weights @ known.astype(np.float64)
    total = weights @ np.where(known, table.log_price, 0.0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass(frozen=True)
class Buckets:
    """Edges of the evidence levels: ``edges[e]`` are the lower bounds of levels 1, 2, … of evidence e."""

    edges: tuple[tuple[float, ...], ...]

    @classmethod
    def fit(cls, values: np.ndarray, levels: int) -> Buckets:
        """Quantiles of training candidates ``[…, 14]``; a frequent lowest value gets level 0 for itself."""
        flat = values.reshape(-1, len(FEATURES))
        edges = []
        for _, feature, sign in EVIDENCE:
            column = sign * flat[:, FEATURES.index(feature)].astype(np.float64)
            edges.append(_edges(column[np.isfinite(column)], levels))
        return cls(tuple(edges))

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Levels ``[lists, width, 8]`` of features ``[lists, width, 14]``; unknown values get level 0."""
        levels = np.zeros((*values.shape[:-1], len(EVIDENCE)), dtype=np.int64)
        for index, (_, feature, sign) in enumerate(EVIDENCE):
            column = sign * values[..., FEATURES.index(feature)].astype(np.float64)
            found = np.searchsorted(np.array(self.edges[index]), column, side="right")
            levels[..., index] = np.where(np.isfinite(column), found, 0)
        return levels


def shown_features(levels: np.ndarray) -> np.ndarray:
    """What a prompt shows of a candidate, as features ``[lists, width, 9]``: the 8 levels and its place."""
    place = np.broadcast_to(np.arange(levels.shape[1])[None, :, None], (*levels.shape[:-1], 1))
    return np.concatenate([levels, place], axis=-1).astype(np.float32)


def _edges(column: np.ndarray, levels: int) -> tuple[float, ...]:
    if len(column) == 0:
        return ()
    lowest = column.min()
    if (column == lowest).mean() > 1 / levels:
        rest = column[column > lowest]
        if len(rest) == 0:
            return ()
        quantiles = np.quantile(rest, np.arange(levels - 1) / (levels - 1))
    else:
        quantiles = np.quantile(column, np.arange(1, levels) / levels)
    return tuple(float(edge) for edge in np.unique(quantiles))
