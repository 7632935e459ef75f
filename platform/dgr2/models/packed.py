"""Packed training rows ``[prompt | clean response | noisy copy 1 | noisy copy 2 ...]``.

Only the response is duplicated and all noisy copies share one clean stream, which is strictly causal and
therefore *is* the AR model. A noisy block sees itself in both directions and the clean tokens of earlier
blocks; it never sees its own clean tokens, nor another copy. Prompts are padded on the left, so that the
response columns line up and one mask serves every row of a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from dgr2.models.grid import BlockGrid
from dgr2.models.transformer import attention


@lru_cache(maxsize=32)
def packed_mask(prompt: int, response: int, copies: int, block_size: int) -> Tensor:
    """Who sees whom, before padding: bool ``[length, length]`` (query, key).

    The length is prompt + (1 + copies) * response.
    """
    columns = torch.arange(prompt + (1 + copies) * response)
    in_response = columns - prompt
    segment = torch.where(
        in_response < 0, -1, in_response.div(response, rounding_mode="floor")
    )  # 0 clean, 1.. noisy
    position = torch.where(segment < 0, columns, prompt + in_response % response)
    block = torch.where(segment < 0, -1, (in_response % response).div(block_size, rounding_mode="floor"))
    q_segment, k_segment = segment[:, None], segment[None, :]
    q_block, k_block = block[:, None], block[None, :]
    clean_key = k_segment <= 0
    causal = (q_segment <= 0) & clean_key & (position[None, :] <= position[:, None])
    earlier = (q_segment > 0) & clean_key & (k_block < q_block)
    within = (q_segment > 0) & (k_segment == q_segment) & (k_block == q_block)
    return causal | earlier | within


SPAN = 128
"""Queries of a span at most: shorter ones compute less that nobody sees, in more calls."""


@dataclass(frozen=True)
class Span:
    """Neighbouring queries and the keys that they look at.

    Attributes:
        start, stop: Columns of the queries.
        clean: Clean columns, from the first on, that any of them sees.
        mask: bool ``[batch or 1, 1, queries, keys]``; behind the clean keys, noisy queries have their own.
    """

    start: int
    stop: int
    clean: int
    mask: Tensor


@dataclass
class PackedRows:
    """A batch of rows, ready for :func:`dgr2.models.backbone.hidden_states`.

    Attributes:
        ids: ``[batch, length]`` token ids.
        positions: ``[batch, length]``; a noisy token has the position of the clean token it stands for.
        mask: bool ``[batch or 1, 1, length, length]``.
        prompt: Width of the (left-padded) prompt part.
        response: Width of one copy of the response, a whole number of blocks.
        copies: Number of noisy copies of the whole response.
        block_size: Size of the blocks behind the clean response.
        response_valid: bool ``[batch, response]``, False where a shorter response was padded.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    prompt: int
    response: int
    copies: int
    block_size: int
    response_valid: Tensor

    @cached_property
    def spans(self) -> list[Span]:
        """The rows cut into spans; a noisy block is never cut."""
        clean, length = self.prompt + self.response, self.ids.shape[1]
        step = max(SPAN // self.block_size, 1) * self.block_size
        starts = [*range(0, clean, SPAN), *range(clean, length, step)]
        return [self._span(start, stop, clean) for start, stop in pairwise([*starts, length])]

    def _span(self, start: int, stop: int, clean: int) -> Span:
        mask = self.mask[:, :, start:stop]
        known = int(mask[..., :clean].flatten(0, 2).any(0).nonzero()[-1:].sum()) + 1
        own = mask[..., start:stop] if start >= clean else mask[..., :0]
        return Span(start, stop, known, torch.cat([mask[..., :known], own], dim=-1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the last columns ``q [batch, queries, heads, head_dim]`` over all, span by span.

        What no query of a span sees is not computed: what follows in a causal row, and other noisy blocks.
        """
        clean, dropped = self.prompt + self.response, self.ids.shape[1] - q.shape[1]
        sizes = [clean, *(span.stop - span.start for span in self.spans if span.start >= clean)]
        (k, *own_k), (v, *own_v) = k.split(sizes, dim=1), v.split(sizes, dim=1)
        parts = []
        for span in self.spans:
            keys, values = k[:, : span.clean], v[:, : span.clean]
            if span.start >= clean:
                keys, values = torch.cat([keys, own_k.pop(0)], 1), torch.cat([values, own_v.pop(0)], 1)
            if dropped < span.stop:
                first = max(span.start, dropped)
                queries = q[:, first - dropped : span.stop - dropped]
                parts.append(attention(queries, keys, values, span.mask[:, :, first - span.start :]))
        return torch.cat(parts, dim=1)

    def clean(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[batch, response, ...]`` that predict each clean token: its left neighbour's."""
        return hidden[:, self.prompt - 1 : self.prompt - 1 + self.response]

    def noisy(self, hidden: Tensor) -> Tensor:
        """Hidden states of everything behind the clean response: ``[batch, noisy, ...]``."""
        return hidden[:, self.prompt + self.response :]

    def copy(self, hidden: Tensor, index: int) -> Tensor:
        """Hidden states of noisy copy ``index`` (0-based): ``[batch, response, ...]``."""
        start = self.prompt + (1 + index) * self.response
        return hidden[:, start : start + self.response]


def pad_responses(responses: Sequence[Sequence[int]], pad: int, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Responses padded on the right to a multiple: ``ids`` and ``valid``, both ``[batch, response]``."""
    width = BlockGrid(multiple).padded(max(len(r) for r in responses))
    ids = torch.full((len(responses), width), pad, dtype=torch.long)
    valid = torch.zeros(len(responses), width, dtype=torch.bool)
    for row, response in enumerate(responses):
        ids[row, : len(response)] = torch.as_tensor(response, dtype=torch.long)
        valid[row, : len(response)] = True
    return ids, valid


def pack(
    prompts: Sequence[Sequence[int]],
    clean: Tensor,
    valid: Tensor,
    noisy: Sequence[Tensor],
    pad: int,
    block_size: int,
) -> PackedRows:
    """Put prompts, the clean response and its noisy copies into one row each.

    Args:
        prompts: Token ids of each prompt, at least one token.
        clean: ``[batch, response]`` clean ids, padded on the right.
        valid: bool ``[batch, response]``.
        noisy: Noisy copies of ``clean``, same shape.
        pad: Id in padded places.
        block_size: Size of the blocks of the noisy copies.
    """
    response = clean.shape[1]
    prompt = _Prompts.of(prompts, pad)
    response_positions = prompt.lengths[:, None] + torch.arange(response)[None]
    ids = torch.cat([prompt.ids, clean, *noisy], dim=1)
    positions = torch.cat([prompt.positions] + [response_positions] * (1 + len(noisy)), dim=1)

    width = prompt.ids.shape[1]
    mask = packed_mask(width, response, len(noisy), block_size)[None, None]
    if not bool(prompt.valid.all()) or not bool(valid.all()):
        key_valid = torch.cat([prompt.valid] + [valid] * (1 + len(noisy)), dim=1)
        mask = _without_padding(mask, key_valid)
    return PackedRows(ids, positions, mask, width, response, len(noisy), block_size, valid)


def block_positions(blocks: Tensor, size: int) -> Tensor:
    """Response positions of blocks ``[batch, states]``: ``[batch, states * size]``; -1 counts as block 0."""
    return (blocks.clamp_min(0)[..., None] * size + torch.arange(size)).flatten(1)


def pack_blocks(
    prompts: Sequence[Sequence[int]], clean: Tensor, blocks: Tensor, states: Tensor, pad: int
) -> PackedRows:
    """Put prompts, the clean response and single noisy blocks, each row its own ones, into one row each.

    Args:
        prompts: Token ids of each prompt, at least one token.
        clean: ``[batch, response]`` clean ids, whole blocks.
        blocks: ``[batch, states]`` index of the block that each state shows, -1 where a row has fewer states.
        states: ``[batch, states, block]`` ids of each state.
        pad: Id in padded places.
    """
    (batch, response), (_, count, size) = clean.shape, states.shape
    prompt = _Prompts.of(prompts, pad)
    width = prompt.ids.shape[1]
    offsets = block_positions(blocks, size)
    positions = [prompt.positions] + [
        prompt.lengths[:, None] + offset for offset in (torch.arange(response)[None], offsets)
    ]
    ids = torch.cat([prompt.ids, clean, states.flatten(1)], dim=1)
    clean_width, length = width + response, ids.shape[1]
    mask = torch.zeros(batch, 1, length, length, dtype=torch.bool)
    mask[:, :, :clean_width, :clean_width] = packed_mask(width, response, 0, size)
    key_block = torch.cat([torch.full((width,), -1), torch.arange(response) // size])
    query_block = blocks.repeat_interleave(size, dim=1)
    mask[:, 0, clean_width:, :clean_width] = key_block < query_block[..., None]
    state = torch.arange(count).repeat_interleave(size)
    mask[:, 0, clean_width:, clean_width:] = state[:, None] == state
    key_valid = torch.ones(batch, length, dtype=torch.bool)
    key_valid[:, :width] = prompt.valid
    valid = torch.ones_like(clean, dtype=torch.bool)
    return PackedRows(
        ids, torch.cat(positions, dim=1), _without_padding(mask, key_valid), width, response, 0, size, valid
    )


@dataclass
class _Prompts:
    """Prompts padded on the left."""

    ids: Tensor
    positions: Tensor
    lengths: Tensor
    valid: Tensor

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], pad: int) -> _Prompts:
        lengths = torch.tensor([len(p) for p in prompts])
        width = int(lengths.max())
        ids = torch.full((len(prompts), width), pad, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.as_tensor(prompt, dtype=torch.long)
        places = torch.arange(width)[None] - (width - lengths)[:, None]
        return cls(ids, places.clamp_min(0), lengths, places >= 0)


def _without_padding(mask: Tensor, key_valid: Tensor) -> Tensor:
    """Nobody sees padding, but a padded query still sees itself: a row without any key is NaN."""
    return (mask & key_valid[:, None, None, :]) | torch.eye(mask.shape[-1], dtype=torch.bool)
