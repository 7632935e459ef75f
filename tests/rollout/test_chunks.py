"""Chunks and their seeds."""

from __future__ import annotations

import pytest

from dgr2.errors import ConfigError
from dgr2.rollout.chunks import chunk_seed, chunks


def test_every_key_has_its_own_seed() -> None:
    seeds = {chunk_seed(seed, step, chunk) for seed in range(4) for step in range(20) for chunk in range(20)}
    assert len(seeds) == 1600 and max(seeds) < 2**63
    assert chunk_seed(3, 1, 2) == chunk_seed(3, 1, 2)
    assert len({chunk_seed(1), chunk_seed(1, 0), chunk_seed(1, 0, 0), chunk_seed(10), chunk_seed(0, 1)}) == 5


def test_chunks_cover_all_in_order() -> None:
    assert [list(c) for c in chunks([1, 2, 3, 4, 5], 2)] == [[1, 2], [3, 4], [5]]
    assert list(chunks([], 2)) == []
    with pytest.raises(ConfigError):
        list(chunks([1], 0))
