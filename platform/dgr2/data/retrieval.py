"""First stage: item-to-item neighbours of ``implicit`` over a recency-weighted history."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from implicit.nearest_neighbours import (
    BM25Recommender,
    CosineRecommender,
    ItemItemRecommender,
    TFIDFRecommender,
)
from scipy.sparse import csr_matrix, load_npz, save_npz

from dgr2.config.schema import RetrievalConfig
from dgr2.data.splits import interaction_matrix
from dgr2.errors import ConfigError

MODELS = {"bm25": BM25Recommender, "tfidf": TFIDFRecommender, "cosine": CosineRecommender}


@dataclass(frozen=True)
class Candidates:
    """Lists ``[lists, K]`` in pre-rank order: ``items`` (0 where fewer were found) and their ``scores``."""

    items: np.ndarray
    scores: np.ndarray

    @property
    def full(self) -> np.ndarray:
        """``[lists]`` whether all K places are taken."""
        return np.asarray((self.items > 0).all(axis=1))

    def take(self, rows: np.ndarray) -> Candidates:
        """The lists at ``rows``."""
        return Candidates(self.items[rows], self.scores[rows])


class Retriever:
    """A fitted first stage; ``similarity`` is ``[items + 1, items + 1]``, row 0 and column 0 empty."""

    def __init__(self, model: ItemItemRecommender, recency: float) -> None:
        self.model = model
        self.recency = recency

    @property
    def similarity(self) -> csr_matrix:
        return self.model.similarity

    @classmethod
    def fit(cls, training: list[list[int]], item_count: int, config: RetrievalConfig) -> Retriever:
        """Fit on the sequences given and on nothing else."""
        if config.model not in MODELS:
            raise ConfigError(f"retrieval.model is {config.model!r}: choose one of {', '.join(MODELS)}")
        model = MODELS[config.model](K=config.neighbours, num_threads=1)
        with warnings.catch_warnings():
            # implicit transposes to COO itself and then warns its caller about it
            warnings.simplefilter("ignore")
            model.fit(interaction_matrix(training, item_count), show_progress=False)
        model.similarity.sort_indices()
        return cls(model, config.recency)

    def retrieve(self, histories: list[list[int]], count: int) -> Candidates:
        """The ``count`` best unseen items of every history."""
        weights = interaction_matrix(histories, self.similarity.shape[0] - 1, self.recency)
        items = np.zeros((len(histories), count), dtype=np.int64)
        scores = np.zeros((len(histories), count))
        for row in range(len(histories)):
            part = slice(weights.indptr[row], weights.indptr[row + 1])
            found, values = self.model.scorer.recommend(
                np.array([0, part.stop - part.start], dtype=np.int32),
                weights.indices[part],
                weights.data[part],
                K=count,
                remove_own_likes=True,
            )
            keep = (values > 0) & (found > 0)
            items[row, : keep.sum()] = found[keep]
            scores[row, : keep.sum()] = values[keep]
        return Candidates(items, scores)

    def score(self, histories: list[list[int]], items: np.ndarray) -> np.ndarray:
        """First-stage scores ``[lists, width]`` of given candidates (0 is padding)."""
        weights = interaction_matrix(histories, self.similarity.shape[0] - 1, self.recency)
        rows = np.repeat(np.arange(len(histories)), items.shape[1])
        return np.asarray((weights @ self.similarity)[rows, items.ravel()]).reshape(items.shape)

    def save(self, folder: Path) -> None:
        """Write ``similarity.npz``."""
        folder.mkdir(parents=True, exist_ok=True)
        save_npz(folder / "similarity.npz", self.similarity)

    @classmethod
    def load(cls, folder: Path, config: RetrievalConfig) -> Retriever:
        """The retriever that ``save`` wrote."""
        from implicit._nearest_neighbours import NearestNeighboursScorer

        model = MODELS[config.model](K=config.neighbours, num_threads=1)
        model.similarity = load_npz(folder / "similarity.npz").tocsr()
        model.scorer = NearestNeighboursScorer(model.similarity)
        return cls(model, config.recency)
