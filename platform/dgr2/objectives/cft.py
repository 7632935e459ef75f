"""Conversion fine-tuning: the any-order likelihood of a block, by exact-k masks and complementary copies.

For a block with n maskable positions (its anchor comes from the clean stream and is not counted), k is
uniform on 1..n, S a uniform subset of size k. Copy A masks S, copy B its complement, and the block costs
``(n/k) / 2 * sum_S CE + (n/(n-k)) / 2 * sum_notS CE``, or ``sum CE`` from copy A alone where k = n.
Its expectation is the any-order negative log-likelihood (see the brute-force test).

Additions, each off at 0: extra fully masked blocks, anchors masked in fully masked blocks (the state that a
fused commit-and-draft forward sees), weights and set terms on answer blocks, position bias (Efficient-DLM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.config.schema import CftConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.models.backbone import cross_entropies, log_probabilities
from dgr2.models.packed import PackedRows
from dgr2.objectives.ar import answer_slots

COPIES = 2


@dataclass
class Noise:
    """What each copy masks and what a masked token weighs.

    Attributes:
        masked: bool ``[copies, batch, response]``: shown as the mask id.
        weights: ``[copies, batch, response]``: weight of the token's cross-entropy, 0 where it has none.
    """

    masked: Tensor
    weights: Tensor


def draw_noise(
    valid: Tensor, answer: Tensor, block_size: int, config: CftConfig, random: np.random.Generator
) -> Noise:
    """Draw the masks of one batch.

    Args:
        valid: bool ``[batch, response]``, response a whole number of blocks.
        answer: bool ``[batch, response]``: tokens of answer blocks.
        block_size: Tokens a block.
        config: Shares and weights.
        random: Generator of this step; the draw of a row does not depend on how rows are split over workers.
    """
    batch, width = valid.shape
    shape = (batch, width // block_size, block_size)
    maskable = valid.cpu().numpy().reshape(shape).copy()
    maskable[..., 0] = False
    in_answer = answer.cpu().numpy().reshape(shape)[..., 0]
    n = maskable.sum(-1)
    k = 1 + np.floor(random.random(n.shape) * n).astype(int)
    extra = random.random(n.shape) < np.where(
        in_answer, config.full_mask_share_answer, config.full_mask_share
    )
    k = np.minimum(np.where(extra, n, k), n)

    first = _subset(maskable, k, n, config.position_bias, random)
    if config.position_bias:  # the complement would cancel the bias: a second, independent draw instead
        second = _subset(maskable, k, n, config.position_bias, random)
        second_k = k
    else:
        second, second_k = maskable & ~first, n - k
    full = (k == n) & (n > 0)
    anchored = full & (random.random(n.shape) < config.anchor_mask_share)
    # a fully masked block whose anchor is masked too keeps the other copy for the same state, anchor known
    second = np.where(anchored[..., None], maskable, second)
    second_k = np.where(anchored, n, second_k)

    def weight(size: np.ndarray) -> np.ndarray:
        return np.divide(n, size, out=np.zeros(n.shape), where=size > 0)

    alone = second_k == 0
    first_weight = weight(k) * np.where(alone, 1.0, 0.5)
    second_weight = weight(second_k) * 0.5
    scale = np.where(in_answer, config.answer_weight, 1.0)
    weights = np.stack(
        [first * (first_weight * scale)[..., None], second * (second_weight * scale)[..., None]]
    )
    masked = np.stack([first, second])
    masked[0, ..., 0] |= anchored
    return Noise(
        torch.tensor(masked.reshape(COPIES, batch, width)),
        torch.tensor(weights.reshape(COPIES, batch, width)).float(),
    )


def _subset(
    maskable: np.ndarray, k: np.ndarray, n: np.ndarray, bias: float, random: np.random.Generator
) -> np.ndarray:
    """A subset of k maskable positions a block: uniform, or by Gumbel top-k with later ones favoured."""
    keys = random.random(maskable.shape)
    if bias:
        gumbel = -np.log(-np.log(keys.clip(1e-12, 1 - 1e-12)))
        ratio = 1 - k / np.maximum(n, 1)
        keys = -(gumbel + bias * ratio[..., None] * np.arange(maskable.shape[-1]))
    keys = np.where(maskable, keys, np.inf)
    rank = keys.argsort(-1).argsort(-1)
    return maskable & (rank < k[..., None])


def diffusion_loss(
    model: Qwen3ForCausalLM,
    hidden: Tensor,
    rows: PackedRows,
    targets: Sequence[Tensor],
    noise: Noise,
    vocabulary: Vocabulary,
    shift: bool = False,
) -> Tensor:
    """Weighted sum of the cross-entropies of the masked tokens of all copies (a scalar; not normalised).

    Args:
        targets: ``[batch, response]`` a copy: what its masked tokens stand for.
    """
    total = hidden.new_zeros(())
    for copy in range(rows.copies):
        keep = noise.weights[copy] > 0
        states = rows.copy(hidden, copy)
        if shift:  # the anchor is never predicted here, so no row reaches across a block boundary
            states = states.roll(1, dims=1)
        losses = cross_entropies(model, states[keep], targets[copy][keep], vocabulary)
        total = total + (losses * noise.weights[copy][keep]).sum()
    return total


def set_terms(
    model: Qwen3ForCausalLM,
    hidden: Tensor,
    rows: PackedRows,
    shown: Tensor,
    noise: Noise,
    starts: Tensor,
    counts: Tensor,
    block_size: int,
    config: CftConfig,
    vocabulary: Vocabulary,
    shift: bool = False,
) -> Tensor:
    """Set terms on masked answer slots, so that permutations come from the model (a scalar sum over slots).

    Exclusivity ``-log(1 - mass on identifiers already placed)``; at most one ``sum_v relu(mass_v - 1)^2``
    over the masked slots of a block; in-set ``-log(mass on the candidates)``.

    Args:
        shown: ``[batch, response]`` the responses before masking.
        starts: ``[batch]`` response position where the answer begins.
        counts: ``[batch]`` number of candidates.
    """
    slots = len(vocabulary.labels)
    labels = torch.tensor(vocabulary.labels)
    position, real = answer_slots(starts, counts, slots, shown.shape[1])
    position = position.clamp_max(shown.shape[1] - 1)
    block = position.div(block_size, rounding_mode="floor")
    same, before = block[:, :, None] == block[:, None, :], block[:, None, :] < block[:, :, None]
    identifiers = shown.gather(1, position)  # the label in each slot
    column = (identifiers[..., None] == labels).int().argmax(-1)
    total = hidden.new_zeros(())
    for copy in range(rows.copies):
        masked = noise.masked[copy].gather(1, position) & real
        open_slots = masked & (position % block_size != 0)  # an anchor is not predicted in place
        if not bool(open_slots.any()):
            continue
        source = position - 1 if shift else position
        states = rows.copy(hidden, copy).gather(
            1, source.clamp_min(0)[..., None].expand(-1, -1, hidden.shape[-1])
        )
        p = log_probabilities(model, states, vocabulary)[..., labels].exp()  # [batch, slots, labels]
        candidate = torch.arange(slots)[None] < counts[:, None]
        p = p * candidate[:, None, :]
        visible = (before | (same & ~masked[:, None, :])) & real[:, None, :]
        taken = torch.einsum(
            "bij,bijv->biv", visible.float(), _one_hot(column, slots)[:, None].expand(-1, slots, -1, -1)
        )
        placed_mass = (p * taken).sum(-1)
        exclusivity = -torch.log1p(-placed_mass.clamp_max(1 - 1e-4))
        crowd = torch.einsum("bij,bjv->biv", (same & open_slots[:, None, :]).float(), p)
        at_most_one = torch.relu(crowd - 1).square().sum(-1)
        in_set = -torch.log(p.sum(-1).clamp_min(1e-6))
        term = config.exclusivity * exclusivity + config.at_most_one * at_most_one + config.in_set * in_set
        total = total + (term * open_slots).sum()
    return total


def _one_hot(index: Tensor, size: int) -> Tensor:
    return torch.nn.functional.one_hot(index, size).float()
