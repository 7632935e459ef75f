"""The decode follows the load by what was measured."""

from __future__ import annotations

import pytest
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts

from dgr2.decoding.decoder import Decoder
from dgr2.decoding.load import LoadTable, narrower, powers
from dgr2.decoding.policy import DecodePolicy

SHIPPED = DecodePolicy("policy", 16, 0.6, "prefix", 0.9)


def test_the_fastest_policy_of_the_next_larger_load_is_chosen():
    wide, _, narrow, ar = narrower(SHIPPED)
    seconds = {1: [1.0, 2.0, 3.0], 4: [0.9, 0.5, 0.7], 8: [0.9, 0.68, 0.7], 16: [0.8, 0.6, 0.2]}
    table = LoadTable((wide, narrow, ar), seconds)
    chosen = [table.choose(rows) for rows in (1, 2, 4, 5, 16, 99)]
    assert chosen == [wide, narrow, narrow, ar, ar, ar]
    assert LoadTable((SHIPPED,), {}).choose(3) is SHIPPED


def test_narrower_policies_keep_the_rules():
    wide, half, quarter, ar = narrower(SHIPPED)
    assert wide is SHIPPED and (half.block_size, quarter.block_size) == (8, 4)
    assert quarter.answer == "prefix" and ar.name == "ar" and ar.rules
    found = narrower(DecodePolicy("native", 4))
    assert [(p.name, p.block_size) for p in found] == [("native", 4), ("native", 2), ("ar", 1)]
    assert not found[-1].rules


@pytest.mark.parametrize("largest, loads", [(1, [1]), (4, [1, 4]), (16, [1, 4, 16]), (20, [1, 4, 16, 20])])
def test_loads_to_measure(largest, loads):
    assert powers(largest) == loads


def test_measuring_fills_the_table():
    decoder = Decoder(tiny_model(81), VOCABULARY, GRID)
    policies = narrower(DecodePolicy("policy", 4, 0.3, "prefix", 0.3))
    table = LoadTable.measure(decoder, policies, tiny_prompts(2), [4, 3], [1, 3], rounds=1)
    assert set(table.seconds) == {1, 3}
    assert all(len(row) == len(policies) and min(row) > 0 for row in table.seconds.values())
    assert table.choose(2) in policies
