"""The embedded shop: reproducible, exactly scored by its oracle, and hard enough."""

from __future__ import annotations

import numpy as np
import pytest

from dgr2.config.schema import Config
from dgr2.data.crossfit import cross_fit, find, fit_expert, raw_features
from dgr2.data.evidence import features
from dgr2.data.retrieval import Retriever
from dgr2.data.shop import build_shop
from dgr2.data.splits import held_out_requests, training_part
from dgr2.data.statistics import ItemTable, Statistics
from dgr2.errors import DataError


def test_same_seed_same_shop():
    first, second, third = build_shop(50, 40, 3), build_shop(50, 40, 3), build_shop(50, 40, 4)
    assert first.items == second.items and first.sequences == second.sequences
    assert first.sequences != third.sequences
    assert all(5 <= len(s) <= 14 and len(set(s)) == len(s) for s in first.sequences)


def test_oracle_is_a_distribution_over_unseen_items():
    shop = build_shop(30, 40, 0)
    histories = [s[:-1] for s in shop.sequences]
    everything = np.tile(np.arange(1, 41), (30, 1))
    scores = shop.oracle.score(np.arange(30), histories, everything)
    assert np.allclose(scores.sum(axis=1), 1.0)
    assert all(scores[u, np.array(h) - 1].max() == 0 for u, h in enumerate(histories))


def test_smallest_shop_works_and_smaller_is_refused():
    assert len(build_shop(20, 20, 0).items) == 20
    with pytest.raises(DataError, match="data.items"):
        build_shop(20, 19, 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_room_between_first_stage_expert_and_oracle(seed):
    config = Config(seed=seed)
    shop = build_shop(config.data.users, config.data.items, seed)
    training, items = training_part(shop.sequences), ItemTable.build(shop.items)
    folds = cross_fit(training, items, config, lambda: None)
    expert = fit_expert(folds, raw_features, config.expert, seed)
    retriever = Retriever.fit(training, len(shop.items), config.retrieval)
    requests = held_out_requests(shop.sequences, "test")
    lists = retriever.retrieve(requests.histories, config.data.candidates)
    places = find(lists.items, requests.targets)
    rows = np.flatnonzero(lists.full & (places >= 0))
    requests, lists, places = requests.take(rows), lists.take(rows), places[rows]
    statistics = Statistics.fit(training, items)
    values = features(requests.histories, lists.items, lists.scores, retriever.similarity, statistics, items)
    oracle = shop.oracle.score(requests.users, requests.histories, lists.items)
    pre_rank = (places == 0).mean()
    of_expert = (expert.score(values).argmax(axis=1) == places).mean()
    best = (oracle.argmax(axis=1) == places).mean()
    assert len(rows) >= 1100
    assert 0.25 <= pre_rank <= 0.33
    assert pre_rank + 0.06 <= of_expert <= best - 0.05
    assert best >= pre_rank + 0.15
