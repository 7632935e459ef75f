"""Commit rules on hand-made distributions, and what answer rules choose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgr2.decoding.policy import (
    COMMIT_RULES,
    DecodePolicy,
    commit_positions,
    conflict_free,
    prefix_length,
    readout_order,
    surest_first,
)
from dgr2.errors import ConfigError


def block(*confidences: float) -> np.ndarray:
    """Three tokens a position: one of the given probability, the rest shared."""
    return np.log([[p, (1 - p) / 2, (1 - p) / 2] for p in confidences])


BLOCK = block(0.6, 0.95, 0.99, 0.7, 0.9)
MASKED = np.array([True, True, True, True, False])


@pytest.mark.parametrize(
    "rule, level, expected",
    [
        ("threshold", 0.9, [1, 2]),
        ("threshold", 0.999, [2]),
        ("left_to_right", 0.5, [0, 1, 2, 3]),
        ("left_to_right", 0.65, [0]),
        ("static", 1, [2]),
        ("static", 3, [1, 2, 3]),
        ("static", 9, [0, 1, 2, 3]),
        ("factor", 0.1, [2]),  # 2 (1 - .99) < .1, 3 (1 - .95) is not
        ("factor", 0.16, [1, 2]),
        ("factor", 1e-6, [2]),
        ("entropy", 0.0, [2]),
        ("entropy", 0.1, [1, 2]),  # .063 nats beside those of the second
        ("entropy", 0.3, [1, 2, 3]),
    ],
)
def test_rules_by_hand(rule, level, expected):
    assert commit_positions(rule, BLOCK, MASKED, level, at_least_one=True).tolist() == expected


def test_nothing_is_taken_where_an_anchor_is_committed_anyway():
    for rule in ("threshold", "left_to_right", "factor"):
        level = 1e-9 if rule == "factor" else 1.0
        assert not len(commit_positions(rule, BLOCK, MASKED, level, at_least_one=False))


@given(
    st.sampled_from(list(COMMIT_RULES)),
    st.lists(st.floats(0.4, 0.999), min_size=1, max_size=8),
    st.integers(1, 255),
    st.floats(0.0, 4.0),
)
def test_rules_take_masked_positions_in_order_and_at_least_one(rule, confidences, bits, level):
    masked = np.array([bool(bits >> i & 1) for i in range(len(confidences))])
    if not masked.any():
        masked[0] = True
    chosen = commit_positions(rule, block(*confidences), masked, level, at_least_one=True)
    assert len(chosen) and masked[chosen].all() and (np.diff(chosen) > 0).all()


SLOTS = np.log(
    [
        [0.97, 0.01, 0.01, 0.01],
        [0.99, 0.004, 0.003, 0.003],  # wants the same candidate, surer
        [0.3, 0.3, 0.2, 0.2],
        [0.02, 0.02, 0.95, 0.01],
    ]
)


def test_of_two_slots_with_the_same_best_only_the_surer_is_taken():
    assert conflict_free(SLOTS, [], 0.9, []) == [1, 3]
    assert conflict_free(SLOTS, [], 0.9, [0]) == [3]  # the anchor takes it
    assert conflict_free(SLOTS, [], 0.999, []) == []
    assert prefix_length(SLOTS, [], 0.9, []) == 1


def test_the_surest_slot_takes_its_candidate_first():
    logp = np.log([[0.5, 0.4, 0.1], [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
    assert surest_first(logp, []) == [(1, 0), (2, 2), (0, 1)]
    assert surest_first(logp[:2], [0]) == [(0, 1), (1, 2)]
    assert surest_first(logp[:0], [1]) == []


def test_readout_is_the_order_of_the_probabilities():
    assert readout_order(np.log([0.1, 0.4, 0.4, 0.1])) == [1, 2, 0, 3]


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="commit rule 'best'"):
        DecodePolicy("policy", 4, commit="best")
    with pytest.raises(ConfigError, match="cannot be sampled"):
        DecodePolicy("policy", 4, readout=True, temperature=1.0)
