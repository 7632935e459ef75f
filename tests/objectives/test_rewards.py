"""Rewards by hand-made cases."""

from __future__ import annotations

import pytest
from tiny import VOCABULARY

from dgr2.decoding.trajectory import Trajectory
from dgr2.errors import ConfigError
from dgr2.jobs.rl import outcome
from dgr2.objectives.rewards import Outcome, reward, total_reward

CASES = [
    # ranking, valid, target -> rank, format, first, invalid
    ("order kept, target in the middle", (0, 1, 2, 3), True, 2, (0.0, 0.0, 0.0, 0.0)),
    ("order kept, target first already", (0, 1, 2, 3), True, 0, (0.0, 1.0, 1.0, 0.0)),
    ("target first, others moved", (0, 3, 2, 1), True, 0, (0.0, 1.0, 1.0, 0.0)),
    ("improved to first", (2, 0, 1, 3), True, 2, (0.5, 1.0, 1.0, 0.0)),
    ("improved", (0, 2, 1, 3), True, 2, (0.25, 1.0, 0.0, 0.0)),
    ("worsened", (1, 2, 3, 0), True, 0, (-0.75, 0.0, 0.0, 0.0)),
    ("invalid, would have improved", (2, 0, 1, 3), False, 2, (0.0, 0.0, 0.0, 1.0)),
    ("duplicated, and worsened", (1, 0, 2, 3), False, 0, (-0.25, 0.0, 0.0, 1.0)),
]


@pytest.mark.parametrize("name, ranking, valid, target, expected", CASES, ids=[c[0] for c in CASES])
def test_reward_table(name, ranking, valid, target, expected):
    outcome = Outcome(ranking, valid, target)
    found = tuple(total_reward(outcome, {r: 1.0}) for r in ("rank", "format", "first", "invalid"))
    assert found == pytest.approx(expected)


def test_total_is_the_weighted_sum():
    outcome = Outcome((2, 0, 1, 3), True, 2)
    assert total_reward(outcome, {"rank": 2.0, "format": 0.5, "invalid": -1.0}) == pytest.approx(1.5)


def test_unknown_and_repeated_names_are_refused():
    with pytest.raises(ConfigError, match="there are first, format, invalid, rank"):
        total_reward(Outcome((0, 1), True, 0), {"ranks": 1.0})
    with pytest.raises(ConfigError, match="two rewards"):
        reward("rank")(lambda outcome: 0.0)


def test_an_answer_that_only_the_policy_opened_ranks_but_breaks_the_format():
    """Trace of one block of four, then B A and the end; with and without the end of the trace."""
    answer = [6, 5, VOCABULARY.eos]
    closed, left_open = (
        Trajectory(tokens=[11, 12, last, VOCABULARY.fill, *answer], answer_start=4, candidates=2)
        for last in (VOCABULARY.think_end, 13)
    )
    assert outcome(closed, 1, VOCABULARY) == Outcome((1, 0), True, 1)
    assert outcome(left_open, 1, VOCABULARY) == Outcome((1, 0), False, 1)
