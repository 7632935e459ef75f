"""Rewards of a decoded ranking, by name: add one with ``@reward("name")`` and list it in ``rl.rewards``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dgr2.errors import ConfigError


@dataclass(frozen=True)
class Outcome:
    """A decoded answer to be rewarded.

    Attributes:
        ranking: Candidate indices (pre-rank order counts from 0), best first: identifiers in order of first
            appearance, then the rest in pre-rank order.
        valid: Whether the raw answer was a permutation of the candidates.
        target: Index of the true next item in pre-rank order.
    """

    ranking: tuple[int, ...]
    valid: bool
    target: int

    @property
    def before(self) -> int:
        """Rank of the target before re-ranking, from 1."""
        return self.target + 1

    @property
    def after(self) -> int:
        """Rank of the target after re-ranking, from 1."""
        return self.ranking.index(self.target) + 1


Reward = Callable[[Outcome], float]
REWARDS: dict[str, Reward] = {}


def reward(name: str) -> Callable[[Reward], Reward]:
    """Register a reward."""

    def register(function: Reward) -> Reward:
        if name in REWARDS:
            raise ConfigError(f"two rewards are called {name!r}")
        REWARDS[name] = function
        return function

    return register


@reward("rank")
def rank_gain(outcome: Outcome) -> float:
    """(rank before - rank after) / K (GR2, arXiv 2602.07774); an invalid answer gains nothing, may lose."""
    gain = (outcome.before - outcome.after) / len(outcome.ranking)
    return gain if outcome.valid else min(gain, 0.0)


@reward("format")
def conditional_format(outcome: Outcome) -> float:
    """1 for a valid answer that lifts the target or keeps it first.

    Copying the input order earns nothing else (conditional reward, arXiv 2606.31984).
    """
    return float(outcome.valid and (outcome.after < outcome.before or outcome.after == 1))


@reward("first")
def first(outcome: Outcome) -> float:
    """1 when the target is ranked first by a valid answer."""
    return float(outcome.valid and outcome.after == 1)


@reward("invalid")
def invalid(outcome: Outcome) -> float:
    """1 for an answer that is no permutation; give it a negative weight."""
    return float(not outcome.valid)


def total_reward(outcome: Outcome, weights: dict[str, float]) -> float:
    """Weighted sum of the named rewards.

    Raises:
        ConfigError: for a name that is not registered.
    """
    unknown = set(weights) - set(REWARDS)
    if unknown:
        raise ConfigError(
            f"no reward is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(REWARDS))}"
        )
    return sum(weight * REWARDS[name](outcome) for name, weight in weights.items())
