"""Fixed chunks with seeds of their own: a result does not depend on who decodes what, nor on when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

from dgr2.errors import ConfigError

T = TypeVar("T")


def chunk_seed(seed: int, *key: int) -> int:
    """A seed of 63 bits from the run's seed and a key such as (step, chunk)."""
    text = ",".join(str(int(part)) for part in (seed, *key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Consecutive pieces of ``size`` items; the last one may be shorter.

    Raises:
        ConfigError: ``size`` is not positive.
    """
    if size < 1:
        raise ConfigError(f"a chunk of {size} items is not positive")
    for start in range(0, len(items), size):
        yield items[start : start + size]
