"""One interface for interactions: a catalogue, user sequences and, where it is known, the best ranker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dgr2.config.schema import Config
from dgr2.errors import DataError


@dataclass(frozen=True)
class Item:
    """A catalogue item. ``item_id`` counts from 1; ``categories`` run from root to leaf; price in USD."""

    item_id: int
    title: str
    brand: str
    categories: tuple[str, ...]
    price: float | None

    @property
    def leaf(self) -> str:
        """Most specific category, empty when the item has none."""
        return self.categories[-1] if self.categories else ""


class Oracle(Protocol):
    """The best possible ranker: knows the process that made the data."""

    def score(self, users: np.ndarray, histories: list[list[int]], candidates: np.ndarray) -> np.ndarray:
        """True probability that a candidate is the next item of the user.

        Args:
            users: ``[lists]`` indices into ``Source.sequences``.
            histories: items before the one to predict, oldest first.
            candidates: ``[lists, width]`` item ids, 0 where a list is shorter.

        Returns:
            ``[lists, width]`` probabilities, 0 for padding.
        """
        ...


@dataclass(frozen=True)
class Source:
    """Items with ids 1..n in order, one sequence a user (item ids, oldest first, no repeats)."""

    items: list[Item]
    users: list[int]
    sequences: list[list[int]]
    oracle: Oracle | None = None


def check_source(source: Source) -> None:
    """Refuse data that no stage can use: no items, no users, nobody with a held-out item."""
    if not source.items:
        raise DataError("the catalogue has no items: items.jsonl needs one JSON object a line")
    if not source.sequences:
        raise DataError("there are no user sequences: sequences.txt needs lines 'user item item ...'")
    longest = max(len(sequence) for sequence in source.sequences)
    if longest < 5:
        raise DataError(
            f"the longest sequence has {longest} items: leave-one-out needs users with at least 5 "
            "(two to start from, one to learn from, one to validate and one to test)"
        )


def load_source(config: Config) -> Source:
    """The source that ``data.source`` names, checked."""
    from dgr2.data.folder import read_folder
    from dgr2.data.shop import build_shop

    if config.data.source == "shop":
        source = build_shop(config.data.users, config.data.items, config.seed)
    elif config.data.source == "folder":
        source = read_folder(config.data.path)
    else:
        raise DataError(f"data.source is {config.data.source!r}: choose 'shop' or 'folder'")
    check_source(source)
    return source
