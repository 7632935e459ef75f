"""Answers with slips: what is shown stays a permutation, and every target is the best candidate left."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from dgr2.objectives.slips import Slips, draw_slips

CLEAN = torch.tensor([[9, 9, 9, 9, 24, 21, 23, 22, 1, 1], [9, 9, 9, 9, 22, 23, 21, 1, 1, 1]])
STARTS, COUNTS = torch.tensor([4, 4]), torch.tensor([4, 3])


def shown_as(*ranks: int) -> Slips:
    """The first row of CLEAN with the candidate of each rank in that slot."""
    position = 4 + torch.arange(4)[None]
    return Slips(position, torch.ones(1, 4, dtype=torch.bool), torch.tensor([ranks]))


def test_by_hand() -> None:
    """Best first: 24 21 23 22; shown: 21 24 22 23."""
    slips, clean = shown_as(1, 0, 3, 2), CLEAN[:1]
    assert slips.shown(clean)[0].tolist() == [9, 9, 9, 9, 21, 24, 22, 23, 1, 1]
    assert slips.next_best(clean)[0].tolist() == [9, 9, 9, 9, 24, 24, 23, 23, 1, 1]
    masked = torch.zeros_like(clean, dtype=torch.bool)
    masked[0, [4, 6, 7, 8]] = True
    assert slips.best_left(clean, masked)[0, 4:].tolist() == [21, 24, 23, 22, 1, 1]
    masked[0, 5] = True
    assert torch.equal(slips.best_left(clean, masked), clean)


def test_targets_are_the_best_left_whatever_is_shown() -> None:
    clean, best = CLEAN[:1], CLEAN[0, 4:8].tolist()
    for ranks in itertools.permutations(range(4)):
        slips = shown_as(*ranks)
        shown, left_to_right = slips.shown(clean)[0], slips.next_best(clean)[0]
        for slot in range(4):
            left = [label for label in best if label not in shown[4 : 4 + slot].tolist()]
            assert left_to_right[4 + slot] == left[0]
        for size in range(5):
            for hidden in itertools.combinations(range(4, 8), size):
                masked = torch.zeros_like(clean, dtype=torch.bool)
                masked[0, list(hidden)] = True
                targets = slips.best_left(clean, masked)[0]
                visible = shown[~masked[0]].tolist()
                assert targets[list(hidden)].tolist() == [label for label in best if label not in visible]
                assert torch.equal(targets[~masked[0]], shown[~masked[0]])


def test_nothing_slips_at_share_zero_and_much_at_share_one() -> None:
    starts, counts = STARTS.repeat(500), COUNTS.repeat(500)
    none = draw_slips(starts, counts, 10, 0.0, np.random.default_rng(0))
    clean = CLEAN.repeat(500, 1)
    assert torch.equal(none.shown(clean), clean)
    every = draw_slips(starts, counts, 10, 1.0, np.random.default_rng(0))
    shown = every.shown(clean)
    assert torch.equal(shown.sort(1).values, clean.sort(1).values)  # still the same candidates
    assert torch.equal(shown[:, :4], clean[:, :4]) and torch.equal(shown[:, 8:], clean[:, 8:])
    assert shown[1::2, 7].eq(1).all()  # a shorter list keeps its end
    first = (shown[::2, 4:5] == CLEAN[0, 4:8]).float().mean(0)
    torch.testing.assert_close(first, torch.full((4,), 0.25), atol=0.07, rtol=0)


def test_rows_without_an_answer_stay_as_they_are() -> None:
    slips = draw_slips(torch.tensor([10, 4]), COUNTS, 10, 1.0, np.random.default_rng(1))
    assert torch.equal(slips.shown(CLEAN)[0], CLEAN[0])
    assert torch.equal(slips.next_best(CLEAN)[0], CLEAN[0])
    assert torch.equal(slips.best_left(CLEAN, torch.ones_like(CLEAN, dtype=torch.bool))[0], CLEAN[0])
