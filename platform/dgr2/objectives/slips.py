"""Answers with slips, so that a model learns to go on from a wrong answer.

A reference answer shows only states without a mistake. After its first mistake a decoder is in states that
training never showed, and the order that it has learnt makes it repeat a candidate which should have stood
elsewhere. So a share of the candidates is shown in a slot drawn at random, and the target of a slot is the
best candidate that is left. This is imitation learning with noise on the expert's actions (DART,
arXiv 1703.09327), the expert being selection sort over the reference order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dgr2.objectives.ar import answer_slots


@dataclass
class Slips:
    """The answers of a batch in the order in which they are shown.

    Attributes:
        position: ``[batch, slots]`` response position of each answer slot.
        real: bool ``[batch, slots]``, False past the last candidate of a row and in rows without an answer.
        ranks: ``[batch, slots]`` reference rank (0 is best) of the candidate that a slot shows.
    """

    position: Tensor
    real: Tensor
    ranks: Tensor

    def rows(self, rows: slice) -> Slips:
        """Some rows of the batch."""
        return Slips(self.position[rows], self.real[rows], self.ranks[rows])

    def shown(self, clean: Tensor) -> Tensor:
        """``clean`` ``[batch, response]`` with its answers as shown."""
        return self._placed(clean, self.ranks)

    def next_best(self, clean: Tensor) -> Tensor:
        """Targets left to right, ``[batch, response]``: the best candidate that no slot to the left shows."""
        return self._placed(clean, self.ranks.flip(1).cummin(1).values.flip(1))

    def best_left(self, clean: Tensor, masked: Tensor) -> Tensor:
        """Targets in place, ``[batch, response]``: masked slots get the candidates not visible, best first.

        Args:
            masked: bool ``[batch, response]``.
        """
        hidden = masked.gather(1, self.position.clamp_max(clean.shape[1] - 1)) & self.real
        slots = self.ranks.shape[1]
        left = torch.where(hidden, self.ranks, slots).sort(1).values
        turn = (hidden.cumsum(1) - 1).clamp_min(0)  # how many masked slots stand before a slot
        return self._placed(clean, torch.where(hidden, left.gather(1, turn), self.ranks))

    def _placed(self, clean: Tensor, ranks: Tensor) -> Tensor:
        placed = clean.clone()
        row, slot = self.real.nonzero(as_tuple=True)
        placed[row, self.position[row, slot]] = clean[row, self.position[row, ranks[row, slot]]]
        return placed


def draw_slips(
    starts: Tensor, counts: Tensor, width: int, share: float, random: np.random.Generator
) -> Slips:
    """Move a share of the candidates to a slot drawn at random; the others keep their order.

    Args:
        starts: ``[batch]`` where answers begin, ``width`` where there is none.
        counts: ``[batch]`` number of candidates.
        width: Length of the (padded) responses.
        share: Probability that a candidate is moved.
    """
    slots = int(counts.max())
    draws = torch.tensor(random.random((2, len(starts), slots)))
    position, real = answer_slots(starts, counts, slots, width)
    keys = torch.where(real & (draws[0] < share), draws[1] * counts[:, None] - 0.5, torch.arange(slots))
    return Slips(position, real, keys.argsort(dim=1, stable=True))
