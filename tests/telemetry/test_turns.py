"""What is compared takes turns."""

from __future__ import annotations

from functools import partial

from dgr2.telemetry import time_turns


def test_turns_alternate_after_an_unmeasured_round():
    order, after = [], []

    def call(name, turn):
        order.append(f"{name}{turn}")
        return turn

    timed = time_turns({name: partial(call, name) for name in "ab"}, 3, lambda: after.append(len(order)))
    assert order == ["a0", "b0"] + ["a0", "b0"] + ["b1", "a1"] + ["a2", "b2"]
    assert after == [4, 6, 8]
    for turns in timed.values():
        assert turns.results == [0, 1, 2]
        assert len(turns.seconds) == 3 and min(turns.seconds) >= 0
