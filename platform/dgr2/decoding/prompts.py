"""Keys and values of prompts that were prefilled, for other prompts that begin alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

SHORTEST = 32
"""Tokens in common below which a prompt is prefilled whole."""


def head(ids: np.ndarray) -> bytes:
    """What prompts must share to share anything; shorter prompts share nothing."""
    return ids[:SHORTEST].tobytes()


def shared_length(ids: np.ndarray, other: np.ndarray) -> int:
    """Tokens that ``ids`` can take over from ``other``: never its last one, whose hidden state is needed."""
    if head(ids) != head(other):
        return 0
    n = min(len(ids) - 1, len(other))
    differ = np.flatnonzero(ids[:n] != other[:n])
    length = int(differ[0]) if len(differ) else n
    return length if length >= SHORTEST else 0


@dataclass(frozen=True)
class Prefilled:
    """A prompt ``[length]`` and its keys and values, ``[layers, length, kv_heads, head_dim]`` each."""

    ids: np.ndarray
    keys: Tensor
    values: Tensor


class PromptStore:
    """The ``size`` prompts used last; each takes the memory of its tokens in a cache."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._prompts: OrderedDict[bytes, Prefilled] = OrderedDict()

    def find(self, ids: np.ndarray) -> tuple[Prefilled | None, int]:
        """The stored prompt that shares the most tokens with ``ids``, and how many; None where none does."""
        best, length = None, 0
        for key, stored in self._prompts.items():
            shared = shared_length(ids, stored.ids)
            if shared > length:
                best, length = key, shared
        if best is None:
            return None, 0
        self._prompts.move_to_end(best)
        return self._prompts[best], length

    def add(self, prefilled: Prefilled) -> None:
        """Keep a prompt; where there are too many, the one unused for longest goes."""
        key = prefilled.ids.tobytes()
        self._prompts[key] = prefilled
        self._prompts.move_to_end(key)
        if len(self._prompts) > self.size:
            self._prompts.popitem(last=False)


def better_wait(prompts: Sequence[np.ndarray], known: Sequence[int]) -> list[bool]:
    """Which of some prompts share more with an earlier one of them than is known already.

    Args:
        prompts: In the order of their arrival, none prefilled.
        known: Tokens of each that a store has.
    """
    leaders: list[np.ndarray] = []
    waits = []
    for ids, length in zip(prompts, known, strict=True):
        waits.append(any(shared_length(ids, leader) > length for leader in leaders))
        if not waits[-1]:
            leaders.append(ids)
    return waits
