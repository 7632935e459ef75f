"""What the training part tells about items: who follows whom, how popular they are, how alike.

A ``Statistics`` is fitted on given sequences only; the cross-fit fits one a fold, without its users.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, load_npz, save_npz

from dgr2.data.source import Item


@dataclass(frozen=True)
class ItemTable:
    """Attributes of the catalogue as arrays ``[items + 1]``; index 0 stands for "no item".

    ``leaf``, ``path``, ``top`` (first three levels) and ``brand`` are codes from 1, 0 where unknown;
    ``log_price`` is the logarithm of the price in USD, NaN where unknown.
    """

    leaf: np.ndarray
    path: np.ndarray
    top: np.ndarray
    brand: np.ndarray
    log_price: np.ndarray

    @classmethod
    def build(cls, items: list[Item]) -> ItemTable:
        """Codes in the order of first appearance."""
        return cls(
            leaf=_codes([item.leaf for item in items]),
            path=_codes(["\t".join(item.categories) for item in items]),
            top=_codes(["\t".join(item.categories[:3]) for item in items]),
            brand=_codes([item.brand for item in items]),
            log_price=np.array([np.nan] + [np.log(item.price) if item.price else np.nan for item in items]),
        )

    def save(self, path: Path) -> None:
        """Write the arrays to one ``.npz``."""
        np.savez(path, **self.__dict__)

    @classmethod
    def load(cls, path: Path) -> ItemTable:
        """Read what ``save`` wrote."""
        with np.load(path) as arrays:
            return cls(**{name: arrays[name] for name in arrays.files})


def _codes(names: list[str]) -> np.ndarray:
    known: dict[str, int] = {"": 0}
    return np.array([0] + [known.setdefault(name, len(known)) for name in names], dtype=np.int64)


@dataclass(frozen=True)
class Statistics:
    """``follow[a, b]``: how often b came directly after a; ``kinds[a, b]``: the same for leaf categories."""

    follow: csr_matrix
    popularity: np.ndarray
    kinds: np.ndarray

    @classmethod
    def fit(cls, training: list[list[int]], table: ItemTable) -> Statistics:
        """Count over the sequences given and nothing else."""
        size = len(table.leaf)
        first = np.fromiter((a for s in training for a in s[:-1]), dtype=np.int64)
        second = np.fromiter((b for s in training for b in s[1:]), dtype=np.int64)
        follow = csr_matrix((np.ones(len(first)), (first, second)), shape=(size, size))
        bought = np.fromiter((item for s in training for item in s), dtype=np.int64)
        popularity = np.bincount(bought, minlength=size)
        leaves = int(table.leaf.max()) + 1
        kinds = np.zeros((leaves, leaves))
        np.add.at(kinds, (table.leaf[first], table.leaf[second]), 1.0)
        return cls(follow, popularity.astype(np.float64), kinds)

    def save(self, folder: Path) -> None:
        """Write ``follow.npz`` and ``counts.npz``."""
        folder.mkdir(parents=True, exist_ok=True)
        save_npz(folder / "follow.npz", self.follow)
        np.savez(folder / "counts.npz", popularity=self.popularity, kinds=self.kinds)

    @classmethod
    def load(cls, folder: Path) -> Statistics:
        """Read what ``save`` wrote."""
        with np.load(folder / "counts.npz") as counts:
            return cls(load_npz(folder / "follow.npz").tocsr(), counts["popularity"], counts["kinds"])
