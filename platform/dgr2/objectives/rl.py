"""Policy gradient on the trajectory's own likelihood (GRPO with DAPO's changes, arXiv 2503.14476).

A trajectory's likelihood is the product over its steps of p(committed token | state at that step); positions
are chosen by distributions alone, so nothing is missing from it. Advantages are normalised within the group
of rollouts of one prompt, groups without spread carry no signal and are left out, the ratio is clipped higher
above than below, and the loss is averaged over all decided tokens of the step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dgr2.config.schema import RlConfig


def group_advantages(rewards: np.ndarray) -> np.ndarray:
    """Rewards ``[groups, rollouts]`` as advantages of the same shape; a group without spread gets zeros."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    spread = rewards.std(axis=1, keepdims=True)
    return np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-6)


def policy_loss(
    new: Tensor, old: Tensor, advantages: Tensor, decided: Tensor, config: RlConfig
) -> tuple[Tensor, dict[str, float]]:
    """Clipped surrogate, summed over decided tokens (not normalised).

    Args:
        new, old: ``[batch, response]`` log-probabilities under the current and the behaviour weights.
        advantages: ``[batch]``.
        decided: bool ``[batch, response]``.

    Returns:
        The loss sum and sums for the log: ``ratio``, ``clipped`` and ``kl`` (k3, not back-propagated).
    """
    difference = new - old
    ratio = difference.exp()
    weight = advantages[:, None]
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    loss = -torch.minimum(ratio * weight, clipped * weight)
    with torch.no_grad():
        outside = ((ratio * weight) > (clipped * weight)) & decided
        kl = ((-difference).exp() - 1 + difference)[decided].sum()
    return (loss * decided).sum(), {
        "ratio": ratio.detach()[decided].sum().item(),
        "clipped": float(outside.sum()),
        "kl": kl.item(),
    }
