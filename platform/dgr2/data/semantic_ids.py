"""Semantic ids: residual quantisation of item embeddings, collisions resolved by one more level."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from vector_quantize_pytorch import ResidualVQ

from dgr2.config.schema import SemanticIdConfig
from dgr2.data.source import Item
from dgr2.errors import ConfigError

logger = logging.getLogger(__name__)
TEXT_SHARE = 0.7  # weight of the text half of the embedding; the rest is co-purchase
VQ_PASSES = 200


@dataclass(frozen=True)
class SemanticIds:
    """``codes`` ``[items, levels + 1]``; shares of items with their own id before and after resolving."""

    codes: np.ndarray
    quantised_uniqueness: float
    uniqueness: float


def build_semantic_ids(
    items: list[Item], interactions: csr_matrix, config: SemanticIdConfig, seed: int
) -> SemanticIds:
    """Ids for the catalogue from its texts and the training interactions ``[users, items + 1]``.

    Raises:
        ConfigError: fewer ids than items.
    """
    room = config.codes ** (config.levels + 1)
    if room < len(items):
        raise ConfigError(
            f"{config.levels + 1} levels of {config.codes} codes name {room} items, the catalogue has "
            f"{len(items)}: raise semantic_ids.codes or semantic_ids.levels"
        )
    embedding = item_embedding(items, interactions, config.dimensions, seed)
    quantise = _residual_kmeans if config.method == "residual_kmeans" else _residual_vq
    codes, residual, centroids = quantise(embedding, config, seed)
    resolved = _resolve(codes, residual, centroids, config.codes, np.random.default_rng([seed, 21]))
    return SemanticIds(resolved, _uniqueness(codes), _uniqueness(resolved))


def _uniqueness(codes: np.ndarray) -> float:
    _, counts = np.unique(codes, axis=0, return_counts=True)
    return float((counts == 1).sum() / len(codes))


def item_embedding(items: list[Item], interactions: csr_matrix, dimensions: int, seed: int) -> np.ndarray:
    """``[items, dimensions]``: TF-IDF of title, brand, categories, and co-purchases, each reduced by SVD."""
    texts = [f"{i.title} {i.brand} {' '.join(i.categories)} {i.leaf}" for i in items]
    text = TfidfVectorizer(sublinear_tf=True, min_df=2 if len(items) > 100 else 1).fit_transform(texts)
    users = interactions[:, 1:]
    together = (users.T @ users).tocsr()
    together.data = np.log1p(together.data)
    half = dimensions // 2
    parts = [
        weight * _reduced(matrix, size, seed)
        for matrix, size, weight in ((text, dimensions - half, TEXT_SHARE), (together, half, 1 - TEXT_SHARE))
    ]
    return np.concatenate(parts, axis=1)


def _reduced(matrix: csr_matrix, size: int, seed: int) -> np.ndarray:
    size = min(size, min(matrix.shape) - 1)
    vectors = TruncatedSVD(size, random_state=seed).fit_transform(matrix)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


Quantised = tuple[np.ndarray, np.ndarray, np.ndarray]


def _residual_kmeans(embedding: np.ndarray, config: SemanticIdConfig, seed: int) -> Quantised:
    """Codes ``[items, levels]``, what the last level quantised, its centroids ``[codes, dimensions]``."""
    residual, codes = embedding, []
    for level in range(config.levels):
        clusters = min(config.codes, len(np.unique(residual, axis=0)))
        means = KMeans(clusters, n_init=1, random_state=seed + level).fit(residual)
        codes.append(means.labels_.astype(np.int64))
        last, centroids = residual, means.cluster_centers_
        residual = residual - centroids[means.labels_]
    return np.stack(codes, axis=1), last, centroids


def _residual_vq(embedding: np.ndarray, config: SemanticIdConfig, seed: int) -> Quantised:
    """The same by EMA codebooks with k-means start and reset of dead codes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResidualVQ(
            dim=embedding.shape[1],
            num_quantizers=config.levels,
            codebook_size=config.codes,
            decay=0.9,
            kmeans_init=True,
            threshold_ema_dead_code=1,
        )
        vectors = torch.tensor(embedding, dtype=torch.float32)[None]
        for _ in range(VQ_PASSES):
            model(vectors)
        model.eval()
        with torch.no_grad():
            _, indices, _ = model(vectors)
    codes = indices[0].numpy().astype(np.int64)
    books = model.codebooks.detach().numpy()
    residual = embedding.copy()
    for level in range(config.levels - 1):
        residual = residual - books[level][codes[:, level]]
    return codes, residual, books[-1]


def _resolve(
    codes: np.ndarray, residual: np.ndarray, centroids: np.ndarray, room: int, rng: np.random.Generator
) -> np.ndarray:
    """Append a level of random codes, each used once under a prefix.

    An item whose prefix is full moves to the nearest last code that has room; where none has, it takes
    any free prefix.
    """
    free: dict[tuple[int, ...], list[int]] = {}

    def places(prefix: tuple[int, ...]) -> list[int]:
        if prefix not in free:
            free[prefix] = rng.permutation(room).tolist()
        return free[prefix]

    resolved = np.zeros((len(codes), codes.shape[1] + 1), dtype=np.int64)
    moved = 0
    for row, code in enumerate(codes.tolist()):
        prefix = tuple(code)
        if not places(prefix):
            moved += 1
            near = np.argsort(((centroids - residual[row]) ** 2).sum(axis=1), kind="stable").tolist()
            options = ((*code[:-1], other) for other in near)
            prefix = next((p for p in options if places(p)), ()) or _any_free(places, codes.shape[1], room)
        resolved[row] = (*prefix, places(prefix).pop())
    if moved:
        logger.info("%d items moved to a neighbouring semantic id", moved)
    return resolved


def _any_free(places: Callable[[tuple[int, ...]], list[int]], levels: int, room: int) -> tuple[int, ...]:
    return next(prefix for prefix in np.ndindex(*[room] * levels) if places(prefix))
