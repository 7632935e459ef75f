"""The measured reading of a history: what it repeats, its latest items, and what tends to follow.

``often {category} {brand} last {id} {id}… then {category} [or {category}…]``. The prompt shows it behind the
older history items; steps 1 and 2 of a trace restate it, so the model reasons from what it was given.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from dgr2.config.schema import GridConfig
from dgr2.data.prompt import ABSENT, TokenTable
from dgr2.data.statistics import ItemTable, Statistics

FOLLOWERS = 4  # categories that the reading can name as likely next


def candidate_tokens(evidence: int) -> int:
    """A candidate's share of a trace: its label, its evidence, its grade."""
    return evidence + 2


@dataclass(frozen=True)
class Reading:
    """Token ids of a history's reading, and how many of the latest items it cites."""

    tokens: list[int]
    cited: int


@dataclass(frozen=True)
class HistoryReader:
    """Reads histories in at most ``room`` tokens, from their latest ``shown`` items."""

    tokens: TokenTable
    items: ItemTable
    shown: int
    room: int
    kind_names: np.ndarray
    """``[leaves, field_tokens]`` token ids of every leaf category."""

    @classmethod
    def build(cls, tokens: TokenTable, items: ItemTable, shown: int, room: int) -> HistoryReader:
        """Take the name of a category from any item that has it."""
        names = np.full((int(items.leaf.max()) + 1, tokens.category.shape[1]), ABSENT)
        names[items.leaf] = tokens.category
        return cls(tokens, items, shown, room, names)

    @staticmethod
    def room_on(grid: GridConfig, candidates: int, evidence: int) -> int:
        """Tokens that a trace leaves for the reading beside its end and K candidates with their evidence."""
        return grid.trace_blocks * grid.block_size - candidate_tokens(evidence) * candidates - 1

    def read(self, histories: list[list[int]], statistics: Statistics) -> list[Reading]:
        """The reading of every history; exactly ``room`` tokens where there are enough items to cite."""
        likely = np.argsort(-statistics.kinds[:, 1:], axis=1, kind="stable")[:, :FOLLOWERS] + 1
        last = self.items.leaf[np.array([history[-1] for history in histories])]
        return [self._read(history, likely[leaf]) for history, leaf in zip(histories, last, strict=True)]

    def _read(self, history: list[int], likely: np.ndarray) -> Reading:
        recent = history[-self.shown :][::-1]
        often, last, then, other = self.tokens.words
        pattern = [often, self.kind_names[_commonest(self.items.leaf[recent])]]
        brand = _commonest(self.items.brand[recent])
        carrier = next(item for item in recent if self.items.brand[item] == brand)
        pattern += [self.tokens.brand[carrier], last, self.tokens.codes[recent[0]]]
        following = [then, self.kind_names[likely[0]]]
        spare = self.room - sum(len(_present(part)) for part in pattern + following)
        width = self.tokens.codes.shape[1]
        further = max(0, min(spare // width, len(recent) - 1))
        pattern += [self.tokens.codes[item] for item in recent[1 : 1 + further]]
        for kind in likely[1:]:
            following += [other, self.kind_names[kind]]
        tokens = [int(t) for part in pattern + following for t in _present(part)]
        return Reading(tokens[: self.room], 1 + further)


def _present(part: np.ndarray) -> np.ndarray:
    return part[part != ABSENT]


def _commonest(codes: np.ndarray) -> int:
    """The most frequent code; the latest wins ties (codes come latest first)."""
    return Counter(codes.tolist()).most_common(1)[0][0]
