"""The held-out lists as evaluation sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from datasets import load_from_disk

from dgr2.errors import DataError, StorageError


@dataclass(frozen=True)
class HeldOut:
    """Parallel lists over the instances whose target is among the candidates."""

    users: list[int]
    histories: list[list[int]]
    candidates: list[list[int]]
    """Item ids in pre-rank order."""
    targets: list[int]
    """Position of the target among the candidates, from 0."""
    scores: list[list[float]]
    """First-stage score of every candidate."""
    orders: list[list[int]]
    """Candidate positions in the order of the LambdaMART expert, best first."""
    prompts: list[list[int]]
    oracle: list[list[float]]
    """Best possible score of every candidate; empty lists where the source knows none."""

    def __len__(self) -> int:
        return len(self.users)

    @classmethod
    def load(cls, folder: Path) -> HeldOut:
        """Read ``instances/test`` of a run's data folder."""
        path = folder / "instances" / "test"
        if not path.exists():
            raise StorageError(f"{path} is missing; run the prepare stage first")
        table = load_from_disk(str(path))
        columns = {name: table[name][:] for name in table.column_names}
        pairs = list(zip(columns["candidates"], columns["target"], strict=True))
        everything = cls(
            users=columns["user"],
            histories=columns["history"],
            candidates=columns["candidates"],
            targets=[items.index(target) if target in items else -1 for items, target in pairs],
            scores=columns["scores"],
            orders=columns["order"],
            prompts=columns["prompt_ids"],
            oracle=columns["oracle"],
        )
        held_out = everything.take([i for i, target in enumerate(everything.targets) if target >= 0])
        if not held_out.users:
            raise DataError(
                "no test instance has its target among the candidates; give the first stage more data"
            )
        return held_out

    def take(self, index: Sequence[int]) -> HeldOut:
        """The instances at ``index``, in that order."""
        return HeldOut(**{f.name: [getattr(self, f.name)[i] for i in index] for f in fields(self)})

    @property
    def counts(self) -> list[int]:
        """Number of candidates of every instance."""
        return [len(candidates) for candidates in self.candidates]

    @property
    def width(self) -> int:
        """Largest number of candidates."""
        return max(self.counts)

    @property
    def has_oracle(self) -> bool:
        """Whether the source knows the best possible ranking of every instance."""
        return all(self.oracle)

    def digest(self) -> str:
        """Hash of what is decoded and how it is judged."""
        sha = hashlib.sha256()
        for column in (self.prompts, self.counts, self.targets):
            flat = [value for entry in column for value in (entry if isinstance(entry, list) else [entry])]
            sha.update(np.asarray(flat, dtype=np.int64).tobytes())
        return sha.hexdigest()[:16]


def evenly(total: int, wanted: int) -> list[int]:
    """``wanted`` positions spread evenly over ``total`` (all of them when ``wanted`` is 0 or too large)."""
    if wanted <= 0 or wanted >= total:
        return list(range(total))
    return [int(i) for i in np.linspace(0, total - 1, wanted).round()]
