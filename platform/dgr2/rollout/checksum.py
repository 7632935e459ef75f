"""A checksum of weights that both ends of their way compute; needs nothing but arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from dgr2.errors import StorageError

State = Mapping[str, np.ndarray]


def checksum(state: State) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = np.ascontiguousarray(state[name])
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def verify(state: State, expected: str, what: str) -> None:
    """Refuse weights that are not those that were sent.

    Raises:
        StorageError: naming both checksums.
    """
    found = checksum(state)
    if found != expected:
        raise StorageError(f"{what} arrived damaged: checksum {found[:12]}, not {expected[:12]}")
