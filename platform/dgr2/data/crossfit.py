"""Training lists as a user outside the training data would get them.

Users are dealt into folds. A fold's retriever, follow statistics and expert are fitted without its users,
so what stands in a training list looks as it will at test time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dgr2.config.schema import Config, ExpertConfig
from dgr2.data.evidence import features
from dgr2.data.expert import Expert
from dgr2.data.retrieval import Candidates, Retriever
from dgr2.data.splits import Requests, fold_of_users, training_requests
from dgr2.data.statistics import ItemTable, Statistics


@dataclass(frozen=True)
class Fold:
    """Lists of one fold's users, and what was fitted without them.

    ``places`` ``[lists]`` is the target's index among the candidates, -1 where it is not among them;
    ``features`` ``[lists, K, 14]``.
    """

    requests: Requests
    candidates: Candidates
    places: np.ndarray
    features: np.ndarray
    retriever: Retriever
    statistics: Statistics

    @property
    def known(self) -> np.ndarray:
        """``[lists]`` whether the target is among the candidates."""
        return self.places >= 0


def cross_fit(
    training: list[list[int]], items: ItemTable, config: Config, on_fold: Callable[[], None]
) -> list[Fold]:
    """The folds, their lists sampled down to ``data.max_train_lists`` (known targets are kept first)."""
    folds = fold_of_users(len(training), config.data.folds, config.seed)
    built = []
    for number in range(config.data.folds):
        rng = np.random.default_rng([config.seed, 12, number])
        built.append(_fold(training, folds == number, items, config, rng))
        on_fold()
    return built


def _fold(
    training: list[list[int]], inside: np.ndarray, items: ItemTable, config: Config, rng: np.random.Generator
) -> Fold:
    others = [training[user] for user in np.flatnonzero(~inside).tolist()]
    retriever = Retriever.fit(others, len(items.leaf) - 1, config.retrieval)
    statistics = Statistics.fit(others, items)
    requests = training_requests(training, np.flatnonzero(inside))
    candidates = retriever.retrieve(requests.histories, config.data.candidates)
    rows = _sample(candidates, requests.targets, config.data.max_train_lists // config.data.folds, rng)
    requests = requests.take(rows)
    candidates = shorten(candidates.take(rows), requests.targets, config.traces.short_share, rng)
    places = find(candidates.items, requests.targets)
    values = features(
        requests.histories, candidates.items, candidates.scores, retriever.similarity, statistics, items
    )
    return Fold(requests, candidates, places, values, retriever, statistics)


def _sample(candidates: Candidates, targets: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of full lists, at most ``limit``: those with a known target first, in the order given."""
    rows = np.flatnonzero(candidates.full)
    known = find(candidates.items[rows], targets[rows]) >= 0
    ranked = rows[np.lexsort((rng.random(len(rows)), ~known))]
    return np.sort(ranked[:limit])


def shorten(
    candidates: Candidates, targets: np.ndarray, share: float, rng: np.random.Generator
) -> Candidates:
    """Cut a share of the lists to 2..K-1 candidates, order and known target kept."""
    rows, width = candidates.items.shape
    sizes = np.where(rng.random(rows) < share, rng.integers(2, max(width, 3), rows), width)
    keys = rng.random((rows, width)) - (candidates.items == targets[:, None])  # a known target is drawn first
    ranks = keys.argsort(axis=1).argsort(axis=1)
    chosen = ranks < sizes[:, None]
    front = np.argsort(~chosen, axis=1, kind="stable")
    kept = np.take_along_axis(chosen, front, axis=1)
    return Candidates(
        np.where(kept, np.take_along_axis(candidates.items, front, axis=1), 0),
        np.where(kept, np.take_along_axis(candidates.scores, front, axis=1), 0.0),
    )


def find(items: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """``[lists]`` index of the target in ``items`` ``[lists, K]``, -1 where it is not there."""
    hits = items == targets[:, None]
    return np.where(hits.any(axis=1), hits.argmax(axis=1), -1)


Features = Callable[[Fold], np.ndarray]


def raw_features(fold: Fold) -> np.ndarray:
    """The 14 features of a fold's lists."""
    return fold.features


def cross_fitted_experts(folds: list[Fold], of: Features, config: ExpertConfig, seed: int) -> list[Expert]:
    """One expert a fold, fitted on the known lists of the other folds."""
    return [fit_expert([f for f in folds if f is not fold], of, config, seed) for fold in folds]


def fit_expert(folds: list[Fold], of: Features, config: ExpertConfig, seed: int) -> Expert:
    """The expert of the known lists of these folds, on the features that ``of`` takes from a fold."""
    values = np.concatenate([of(fold)[fold.known] for fold in folds])
    present = np.concatenate([fold.candidates.items[fold.known] > 0 for fold in folds])
    places = np.concatenate([fold.places[fold.known] for fold in folds])
    return Expert.fit(values, present, places, config, seed)
