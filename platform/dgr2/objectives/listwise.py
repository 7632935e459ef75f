"""Listwise term on the answer's anchor: the whole order from one state, as a readout decodes it."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.data.vocabulary import Vocabulary
from dgr2.models.backbone import log_probabilities
from dgr2.models.packed import PackedRows
from dgr2.objectives.ar import answer_slots

NEVER = -1e4
"""Score of padding: finite, so that gradients are."""


def plackett_luce_losses(scores: Tensor, counts: Tensor) -> Tensor:
    """What an order costs behind its first place, in nats, each place discounted as in DCG: ``[batch]``.

    The likelihood of Plackett and Luce draws place after place from the candidates left, ``softmax`` of their
    scores (ListMLE, Xia et al., ICML 2008). The first place is left out: the next-token loss has it.

    Args:
        scores: ``[batch, slots]`` score of the candidate in each place.
        counts: ``[batch]`` number of candidates; later places are padding.
    """
    place = torch.arange(scores.shape[1])
    real = place < counts[:, None]
    scores = scores.masked_fill(~real, NEVER)
    left = scores.flip(1).logcumsumexp(1).flip(1)  # of the candidates at this place and behind
    discount = 1 / torch.log2(place + 2.0)
    losses = torch.where(real, left - scores, 0.0)
    return (losses * discount)[:, 1:].sum(1)


def listwise_loss(
    model: Qwen3ForCausalLM,
    hidden: Tensor,
    rows: PackedRows,
    answers: Tensor,
    starts: Tensor,
    counts: Tensor,
    vocabulary: Vocabulary,
) -> Tensor:
    """Sum of :func:`plackett_luce_losses` over the rows whose answer is a permutation, at its anchor.

    The anchor's scores are those of the clean stream, as AR decoding and block decoding read them.

    Args:
        answers: ``[batch, response]`` responses with the order to learn.
        starts: ``[batch]`` where the answers begin; those that have none start at the width.
        counts: ``[batch]`` number of candidates.
    """
    labels = torch.tensor(vocabulary.labels)
    position, real = answer_slots(starts, counts, len(labels), answers.shape[1])
    tokens = answers.gather(1, position.clamp_max(answers.shape[1] - 1))
    column = (tokens[..., None] == labels) & real[..., None]
    placed = column.sum(1)  # how often each label stands in the answer
    is_order = (placed.sum(1) == counts) & (placed.amax(1) == 1)
    if not bool(is_order.any()):
        return hidden.new_zeros(())
    anchors = rows.clean(hidden)[is_order, starts[is_order]]
    logp = log_probabilities(model, anchors, vocabulary)[:, labels]
    scores = logp.gather(1, column[is_order].int().argmax(-1))
    return plackett_luce_losses(scores, counts[is_order]).sum()
