"""Inference on a static key/value cache: the mathematics of Hugging Face's Qwen3, without its overhead.

A *slot* is one row of the cache. Keys and values lie at their absolute position, so a noisy block and its
clean version share places: the clean version, computed when the block is committed, overwrites the draft,
and the cache stays exact. What a query sees is one number, its *limit*: it sees the keys at positions
``< limit``. A clean token at position p has limit p + 1, a noisy token the end of its block.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.data.vocabulary import Vocabulary
from dgr2.models.backbone import suppress
from dgr2.models.transformer import Transformer, attention


class InferenceModel:
    """Weights of a Qwen3 model and a static cache of ``slots`` rows of ``context`` tokens."""

    @torch.no_grad()
    def __init__(self, model: Qwen3ForCausalLM, vocabulary: Vocabulary, slots: int, context: int) -> None:
        self.transformer = Transformer(model)
        self.slots, self.context = slots, context
        self.head = model.lm_head.weight.detach()
        self.blocked = suppress(torch.zeros_like(self.head[:, 0]), vocabulary)
        self.cos, self.sin = self.transformer.tables(context)
        shape = (
            len(self.transformer.layers),
            slots,
            context,
            self.transformer.kv_heads,
            self.transformer.head_dim,
        )
        self.keys = torch.zeros(shape, dtype=self.head.dtype, device=self.head.device)
        self.values = torch.zeros_like(self.keys)

    @torch.inference_mode()
    def forward(self, rows: Tensor, ids: Tensor, positions: Tensor, limits: Tensor, first: int = 0) -> Tensor:
        """Run tokens of some slots through the model and write their keys and values.

        Args:
            rows: ``[n]`` slots.
            ids: ``[n, width]`` token ids.
            positions: ``[n, width]`` absolute positions, consecutive within a row.
            limits: ``[n, width]``; a query sees the keys at positions below its limit.
            first: First column whose hidden state is wanted.

        Returns:
            Hidden states ``[n, width - first, hidden]`` after the final norm.
        """
        n, width = ids.shape
        span = int(limits.max())
        mask = None
        if int(limits.min()) < span:  # else every query sees every key: no mask, the fast path
            mask = (torch.arange(span, device=ids.device) < limits[..., None])[:, None]
        if n == 1:
            row, start = int(rows[0]), int(positions[0, 0])
            write: tuple[object, object] = (slice(row, row + 1), slice(start, start + width))
            read: object = slice(row, row + 1)
        else:
            write = (rows[:, None], positions)
            read = slice(0, n) if bool((rows == torch.arange(n, device=rows.device)).all()) else rows

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys[write], values[write] = k, v
            seen = None if mask is None else mask[:, :, width - q.shape[1] :]
            return attention(q, keys[:, :span][read], values[:, :span][read], seen)

        return self.transformer.forward(
            ids, self.cos[positions][:, :, None], self.sin[positions][:, :, None], attend, first
        )

    @torch.inference_mode()
    def read(self, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a slot's first tokens, copied: ``[layers, length, kv_heads, head_dim]`` each."""
        return self.keys[:, slot, :length].clone(), self.values[:, slot, :length].clone()

    @torch.inference_mode()
    def write(self, slot: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values, as :meth:`read` gave them, at the beginning of a slot."""
        length = keys.shape[1]
        self.keys[:, slot, :length], self.values[:, slot, :length] = keys, values

    @torch.inference_mode()
    def log_probabilities(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        """fp32 log-probabilities ``[..., vocabulary]``; the mask and padding ids are impossible."""
        logits = F.linear(hidden, self.head).float() + self.blocked
        if temperature not in (0.0, 1.0):
            logits = logits / temperature
        return torch.log_softmax(logits, dim=-1)
