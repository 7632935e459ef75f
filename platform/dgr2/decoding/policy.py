"""Decode policies: which masked positions are committed after a forward, and which tokens they take.

Positions are chosen by their *distributions* alone, never by the sampled token. That makes the product of
the recorded probabilities the exact likelihood of a trajectory, which RL needs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dgr2.config.schema import DecodeConfig, GridConfig
from dgr2.errors import ConfigError

ANSWER_POLICIES = ("threshold", "prefix")


@dataclass(frozen=True)
class DecodePolicy:
    """How a response is decoded; travels with every trajectory.

    Attributes:
        name: ``ar``, ``native`` or ``policy``: the row it is reported in.
        block_size: Tokens a block; 1 leaves only anchors.
        threshold: Tau of the trace; a position is committed when its largest probability exceeds it.
        answer: ``threshold`` (no rule looks across answer slots) or ``prefix`` (the longest confident prefix
            of the open slots, no identifier twice; identifiers already placed are masked out).
        answer_threshold: Tau in answer blocks, of either rule.
        fused: Draft the next block in the forward that commits the last one (its anchor still masked).
        temperature: 0 is greedy; otherwise tokens are drawn from the tempered distribution.
        permutation: AR decoding only: an answer slot takes candidates not yet emitted.
    """

    name: str
    block_size: int
    threshold: float = 0.9
    answer: str = "threshold"
    answer_threshold: float = 0.5
    fused: bool = True
    temperature: float = 0.0
    permutation: bool = False

    def __post_init__(self) -> None:
        if self.answer not in ANSWER_POLICIES:
            raise ConfigError(f"answer policy {self.answer!r} is not one of {', '.join(ANSWER_POLICIES)}")
        if self.block_size < 1:
            raise ConfigError("decode block size must be positive")

    @property
    def rules(self) -> bool:
        """Whether a rule looks across answer slots (the answer is opened, filled and kept a permutation)."""
        return self.permutation if self.name == "ar" else self.answer != "threshold"

    def record(self) -> dict[str, Any]:
        """JSON-able description."""
        return asdict(self)


def ar_policy(permutation: bool = True, temperature: float = 0.0) -> DecodePolicy:
    """One token a forward, left to right."""
    return DecodePolicy(
        name="ar", block_size=1, temperature=temperature, permutation=permutation, fused=False
    )


def shipped_policy(decode: DecodeConfig, grid: GridConfig, temperature: float = 0.0) -> DecodePolicy:
    """The policy that serving uses."""
    return DecodePolicy(
        name="policy",
        block_size=grid.block_size,
        threshold=decode.threshold,
        answer=decode.answer_policy,
        answer_threshold=decode.answer_threshold,
        fused=decode.fused,
        temperature=temperature,
    )


def native_policy(decode: DecodeConfig, grid: GridConfig, temperature: float = 0.0) -> DecodePolicy:
    """Plain threshold decoding at the shipped taus, no rule across answer slots, anchors included."""
    return replace(shipped_policy(decode, grid, temperature), name="native", answer="threshold")


def threshold_positions(
    confidence: np.ndarray, masked: np.ndarray, threshold: float, at_least_one: bool
) -> np.ndarray:
    """Positions whose largest probability exceeds the threshold, or the surest one when none does.

    Args:
        confidence: ``[block]`` largest probability of each position.
        masked: bool ``[block]``.
        at_least_one: False where the forward commits something else already (the anchor).
    """
    chosen = np.flatnonzero(masked & (confidence > threshold))
    if not len(chosen) and at_least_one:
        chosen = np.array([int(np.argmax(np.where(masked, confidence, -1.0)))])
    return chosen


def restricted(label_logp: np.ndarray, gone: Collection[int]) -> np.ndarray:
    """Log-probabilities ``[..., candidates]``, those in ``gone`` removed, the rest renormalised."""
    left = np.array(label_logp, dtype=np.float64)
    if gone:
        left[..., list(gone)] = -np.inf
    top = left.max(axis=-1, keepdims=True)
    return left - top - np.log(np.exp(left - top).sum(axis=-1, keepdims=True))


def prefix_length(
    label_logp: np.ndarray, placed: Collection[int], threshold: float, taken: Collection[int]
) -> int:
    """Length of the longest confident prefix of open answer slots, none repeated.

    Args:
        label_logp: ``[slots, candidates]`` of the open slots, left to right.
        placed: Candidates visible in the state.
        threshold: Tau of the answer.
        taken: Best candidates of slots that this same forward commits further left (the anchor).
    """
    best_so_far = set(taken)
    logp = restricted(label_logp, placed)
    best, confidence = logp.argmax(axis=-1), np.exp(logp.max(axis=-1))
    for length, (candidate, p) in enumerate(zip(best.tolist(), confidence.tolist(), strict=True)):
        if p <= threshold or candidate in best_so_far:
            return length
        best_so_far.add(candidate)
    return len(best)
