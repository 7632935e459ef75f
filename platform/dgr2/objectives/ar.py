"""Next-token objective on the clean stream: mid-training, SFT, and the AR term of the conversion."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.data.vocabulary import Vocabulary
from dgr2.models.backbone import cross_entropies
from dgr2.models.packed import PackedRows


def answer_starts(clean: Tensor, vocabulary: Vocabulary, block_size: int) -> Tensor:
    """Where each response's answer begins: ``[batch]``, the block boundary after the end of the trace.

    A response without an end of trace has no answer: its start is the width of ``clean``.
    """
    ends = clean == vocabulary.think_end
    first = torch.where(ends.any(dim=1), ends.int().argmax(dim=1) + 1, clean.shape[1])
    return (first + block_size - 1).div(block_size, rounding_mode="floor") * block_size


def answer_slots(starts: Tensor, counts: Tensor, slots: int, width: int) -> tuple[Tensor, Tensor]:
    """Response position of each answer slot and whether there is one, both ``[batch, slots]``.

    Args:
        starts: ``[batch]`` where answers begin, ``width`` where there is none.
        counts: ``[batch]`` number of candidates.
        slots: Slots a row; those past its last candidate are not real.
        width: Length of the (padded) responses; positions may lie past it where no slot is.
    """
    slot = torch.arange(slots)[None]
    position = starts[:, None] + slot
    return position, (slot < counts[:, None]) & (position < width)


def until_eos(clean: Tensor, valid: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Positions up to and including the first EOS: bool ``[batch, response]``; what follows is layout."""
    eos = clean == vocabulary.eos
    return valid & (eos.int().cumsum(dim=1) - eos.int() == 0)


def token_losses(
    model: Qwen3ForCausalLM,
    hidden: Tensor,
    rows: PackedRows,
    clean: Tensor,
    keep: Tensor,
    vocabulary: Vocabulary,
) -> Tensor:
    """Cross-entropies ``[kept]`` of the clean tokens in ``keep``, row-major; the head runs on these only."""
    return cross_entropies(model, rows.clean(hidden)[keep], clean[keep], vocabulary)
