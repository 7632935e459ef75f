"""Leave-one-out: what is training, what is held out, and which lists each part is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

HELD_OUT = 2  # the last item is the test target, the one before it the validation target
FIRST_CUT = 2  # history items before the first training target


@dataclass(frozen=True)
class Requests:
    """Lists to retrieve: a user (index into the sequences), the history (oldest first), the next item."""

    users: np.ndarray
    histories: list[list[int]]
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.histories)

    def take(self, rows: np.ndarray) -> Requests:
        """The lists at ``rows``."""
        return Requests(self.users[rows], [self.histories[i] for i in rows], self.targets[rows])


def training_part(sequences: list[list[int]]) -> list[list[int]]:
    """Every sequence without its validation and test targets."""
    return [sequence[:-HELD_OUT] for sequence in sequences]


def training_requests(training: list[list[int]], users: np.ndarray) -> Requests:
    """Every cut point of the users' training parts that leaves at least two history items."""
    rows = [(u, cut) for u in users.tolist() for cut in range(FIRST_CUT, len(training[u]))]
    return Requests(
        np.array([u for u, _ in rows], dtype=np.int64),
        [training[u][:cut] for u, cut in rows],
        np.array([training[u][cut] for u, cut in rows], dtype=np.int64),
    )


def held_out_requests(sequences: list[list[int]], part: str) -> Requests:
    """One list a user: ``valid`` (before the last but one item) or ``test`` (before the last one)."""
    back = {"valid": HELD_OUT, "test": 1}[part]
    users = np.array([u for u, s in enumerate(sequences) if len(s) > HELD_OUT], dtype=np.int64)
    return Requests(
        users,
        [sequences[u][:-back] for u in users.tolist()],
        np.array([sequences[u][-back] for u in users.tolist()], dtype=np.int64),
    )


def fold_of_users(count: int, folds: int, seed: int) -> np.ndarray:
    """``[users]`` fold of every user, balanced, from the seed alone."""
    order = np.random.default_rng([seed, 11]).permutation(count)
    return (order % folds).astype(np.int64)


def interaction_matrix(histories: list[list[int]], item_count: int, decay: float = 1.0) -> csr_matrix:
    """``[histories, items + 1]`` weights ``decay**age``; age 0 is the latest item, column 0 stays empty."""
    lengths = np.array([len(history) for history in histories], dtype=np.int64)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.fromiter((item for h in histories for item in h), dtype=np.int32, count=int(indptr[-1]))
    ages = np.repeat(indptr[1:], lengths) - 1 - np.arange(indptr[-1])
    data = np.power(decay, ages).astype(np.float64)
    return csr_matrix((data, indices, indptr), shape=(len(histories), item_count + 1))
