"""Decode policies: which masked positions are committed after a forward, and which tokens they take.

Positions are chosen by their *distributions* alone, never by the sampled token. That makes the product of
the recorded probabilities the exact likelihood of a trajectory, which RL needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dgr2.config.schema import DecodeConfig, GridConfig
from dgr2.errors import ConfigError

ANSWER_POLICIES = ("threshold", "prefix", "conflict")
CommitRule = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
"""``(logp [block, vocabulary], masked bool [block], level) -> positions`` to commit, none if none is sure."""


@dataclass(frozen=True)
class DecodePolicy:
    """How a response is decoded; travels with every trajectory.

    Attributes:
        name: ``ar``, ``native`` or ``policy``: the row it is reported in.
        block_size: Tokens a block; 1 leaves only anchors.
        threshold: Level of the commit rule in the trace (tau of the rule ``threshold``).
        answer: ``threshold`` (no rule looks across answer slots), or one that keeps an answer a permutation,
            identifiers already placed masked out: ``prefix`` commits the longest confident prefix of the open
            slots, no identifier twice; ``conflict`` every confident slot, and of two with the same best
            identifier the surer one.
        answer_threshold: Level in answer blocks; tau of ``prefix`` and ``conflict``.
        fused: Draft the next block in the forward that commits the last one (its anchor still masked).
        temperature: 0 is greedy; otherwise tokens are drawn from the tempered distribution.
        permutation: AR decoding only: an answer slot takes candidates not yet emitted.
        commit: Rule that chooses the positions; see ``COMMIT_RULES``.
        readout: The answer is the order of its anchor's probabilities, without another forward.
        verify: The commit forward of a block, which is the AR model, takes back what AR decoding would not
            have written: the response is that of AR decoding, token for token (in distribution, where tokens
            are drawn). A block is drafted in one forward then, whatever the commit rule and the levels.
    """

    name: str
    block_size: int
    threshold: float = 0.9
    answer: str = "threshold"
    answer_threshold: float = 0.5
    fused: bool = True
    temperature: float = 0.0
    permutation: bool = False
    commit: str = "threshold"
    readout: bool = False
    verify: bool = False

    def __post_init__(self) -> None:
        if self.answer not in ANSWER_POLICIES:
            raise ConfigError(f"answer policy {self.answer!r} is not one of {', '.join(ANSWER_POLICIES)}")
        if self.commit not in COMMIT_RULES:
            raise ConfigError(f"commit rule {self.commit!r} is not one of {', '.join(COMMIT_RULES)}")
        if self.block_size < 1:
            raise ConfigError("decode block size must be positive")
        if self.temperature > 0 and self.readout:
            raise ConfigError("a readout is the order of probabilities: it cannot be sampled")

    @property
    def rules(self) -> bool:
        """Whether a rule looks across answer slots (the answer is opened, filled and kept a permutation)."""
        return self.permutation if self.name == "ar" else self.answer != "threshold"

    def record(self) -> dict[str, Any]:
        """JSON-able description."""
        return dict(vars(self))


def ar_policy(permutation: bool = True, temperature: float = 0.0, readout: bool = False) -> DecodePolicy:
    """One token a forward, left to right."""
    return DecodePolicy(
        name="ar",
        block_size=1,
        temperature=temperature,
        permutation=permutation,
        fused=False,
        readout=readout,
    )


def shipped_policy(decode: DecodeConfig, grid: GridConfig) -> DecodePolicy:
    """The policy that serving uses."""
    return replace(rollout_policy(decode, grid, 0.0), readout=decode.readout, verify=decode.verify)


def rollout_policy(decode: DecodeConfig, grid: GridConfig, temperature: float) -> DecodePolicy:
    """The shipped policy slot by slot and without verification: every token is the student's own decision."""
    return DecodePolicy(
        name="policy",
        block_size=grid.block_size,
        threshold=decode.threshold,
        answer=decode.answer_policy,
        answer_threshold=decode.answer_threshold,
        fused=decode.fused,
        temperature=temperature,
        commit=decode.commit,
    )


def native_policy(decode: DecodeConfig, grid: GridConfig, temperature: float = 0.0) -> DecodePolicy:
    """The plain commit rule at the shipped levels, no rule across answer slots, anchors included."""
    return replace(rollout_policy(decode, grid, temperature), name="native", answer="threshold")


def threshold_rule(logp: np.ndarray, masked: np.ndarray, level: float) -> np.ndarray:
    """Positions whose largest probability exceeds tau."""
    return np.flatnonzero(masked & (_confidence(logp) > level))


def entropy_rule(logp: np.ndarray, masked: np.ndarray, level: float) -> np.ndarray:
    """Lowest entropies first, while those beside the largest one sum to at most ``level`` nats.

    The sum bounds what independent draws lose against the joint distribution (EB-Sampler, arXiv 2505.24857).
    """
    logp = logp.astype(np.float64)
    p = np.exp(logp)
    entropy = -np.sum(p * np.where(p > 0, logp, 0.0), axis=-1)
    order = _best_first(-entropy, masked)
    sums = np.cumsum(entropy[order])
    return np.sort(order[sums - entropy[order] <= level])


def factor_rule(logp: np.ndarray, masked: np.ndarray, level: float) -> np.ndarray:
    """The n surest, for the largest n with (n + 1)(1 - n-th confidence) < ``level`` (arXiv 2505.22618)."""
    confidence = _confidence(logp)
    order = _best_first(confidence, masked)
    fits = (np.arange(len(order)) + 2) * (1 - confidence[order]) < level
    return np.sort(order[: np.flatnonzero(fits)[-1] + 1]) if fits.any() else order[:0]


def static_rule(logp: np.ndarray, masked: np.ndarray, level: float) -> np.ndarray:
    """The ``level`` surest positions, whatever their confidence."""
    return np.sort(_best_first(_confidence(logp), masked)[: max(1, int(level))])


def left_to_right_rule(logp: np.ndarray, masked: np.ndarray, level: float) -> np.ndarray:
    """Masked positions from the left, up to the first whose largest probability does not exceed tau."""
    order = np.flatnonzero(masked)
    unsure = np.flatnonzero(_confidence(logp)[order] <= level)
    return order[: unsure[0]] if len(unsure) else order


COMMIT_RULES: dict[str, CommitRule] = {
    "threshold": threshold_rule,
    "entropy": entropy_rule,
    "factor": factor_rule,
    "static": static_rule,
    "left_to_right": left_to_right_rule,
}


def commit_positions(
    rule: str, logp: np.ndarray, masked: np.ndarray, level: float, at_least_one: bool
) -> np.ndarray:
    """Positions that a forward commits, in ascending order.

    Args:
        rule: A name of ``COMMIT_RULES``.
        logp: ``[block, vocabulary]``.
        masked: bool ``[block]``.
        level: Parameter of the rule.
        at_least_one: False where the forward commits something else already (the anchor). Else the surest
            position is committed when the rule takes none, or the first one of ``left_to_right``.
    """
    chosen = COMMIT_RULES[rule](logp, masked, level)
    if not len(chosen) and at_least_one:
        places = np.flatnonzero(masked)
        surest = 0 if rule == "left_to_right" else int(np.argmax(_confidence(logp)[places]))
        chosen = places[surest : surest + 1]
    return chosen


def _confidence(logp: np.ndarray) -> np.ndarray:
    return np.exp(logp.max(axis=-1))


def _best_first(score: np.ndarray, masked: np.ndarray) -> np.ndarray:
    places = np.flatnonzero(masked)
    return places[np.argsort(-score[places], kind="stable")]


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


def conflict_free(
    label_logp: np.ndarray, placed: Collection[int], threshold: float, taken: Collection[int]
) -> list[int]:
    """Confident open slots, ascending; of several with the same best identifier only the surest.

    Arguments as of :func:`prefix_length`.
    """
    logp = restricted(label_logp, placed)
    best, confidence = logp.argmax(axis=-1), np.exp(logp.max(axis=-1))
    gone, chosen = set(taken), []
    for slot in np.argsort(-confidence, kind="stable").tolist():
        if confidence[slot] > threshold and int(best[slot]) not in gone:
            gone.add(int(best[slot]))
            chosen.append(slot)
    return sorted(chosen)


def surest_first(label_logp: np.ndarray, gone: Collection[int]) -> list[tuple[int, int]]:
    """``(slot, candidate)`` of every slot, the surest pair first, no candidate twice.

    Args:
        label_logp: ``[slots, candidates]``.
        gone: Candidates that no slot may take; the others are as many as the slots at least.
    """
    p, pairs = np.exp(label_logp), []
    p[:, list(gone)] = -1.0
    for _ in range(len(p)):
        slot, candidate = divmod(int(p.argmax()), p.shape[1])
        p[slot] = p[:, candidate] = -1.0
        pairs.append((slot, candidate))
    return pairs


def readout_order(label_logp: np.ndarray) -> list[int]:
    """Candidates by their log-probabilities ``[candidates]`` at the answer's anchor, best first."""
    return np.argsort(-label_logp, kind="stable").tolist()
