"""Semantic ids are unique, reproducible and refuse a catalogue that they cannot name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dgr2.config.schema import SemanticIdConfig
from dgr2.data.semantic_ids import _resolve, build_semantic_ids
from dgr2.data.shop import build_shop
from dgr2.data.splits import interaction_matrix, training_part
from dgr2.errors import ConfigError

SMALL = SemanticIdConfig(codes=8, dimensions=12)


@pytest.mark.parametrize("method", ["residual_kmeans", "residual_vq"])
def test_unique_and_reproducible(method):
    shop = build_shop(100, 60, 0)
    interactions = interaction_matrix(training_part(shop.sequences), 60)
    config = replace(SMALL, method=method)
    first = build_semantic_ids(shop.items, interactions, config, 0)
    second = build_semantic_ids(shop.items, interactions, config, 0)
    assert first.uniqueness == 1.0
    assert len(np.unique(first.codes, axis=0)) == 60
    assert first.codes.min() >= 0 and first.codes.max() < 8
    assert np.array_equal(first.codes, second.codes)


def test_full_prefixes_spill_to_the_nearest_free_one():
    codes = np.zeros((7, 1), dtype=np.int64)
    centroids = np.array([[0.0], [5.0], [1.0]])
    resolved = _resolve(codes, np.zeros((7, 1)), centroids, 3, np.random.default_rng(0))
    assert len(np.unique(resolved, axis=0)) == 7
    assert resolved[:, 0].tolist() == [0, 0, 0, 2, 2, 2, 1]


def test_too_few_codes():
    shop = build_shop(100, 60, 0)
    interactions = interaction_matrix(shop.sequences, 60)
    with pytest.raises(ConfigError, match="raise semantic_ids.codes"):
        build_semantic_ids(shop.items, interactions, SemanticIdConfig(codes=3), 0)
