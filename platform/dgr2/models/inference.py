"""Inference on a static key/value cache: the mathematics of Hugging Face's Qwen3, without its overhead.

A *slot* is one row of the cache. Keys and values lie at their absolute position, so a noisy block and its
clean version share places: the clean version, computed when the block is committed, overwrites the draft,
and the cache stays exact. What a query sees is one number, its *limit*: it sees the keys at positions
``< limit``. A clean token at position p has limit p + 1, a noisy token the end of its block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.data.vocabulary import Vocabulary
from dgr2.models.backbone import suppress
from dgr2.models.transformer import Attend, Transformer, attention


class InferenceModel:
    """Weights of a Qwen3 model and a static cache of ``slots`` rows of ``context`` tokens."""

    @torch.no_grad()
    def __init__(self, model: Qwen3ForCausalLM, vocabulary: Vocabulary, slots: int, context: int) -> None:
        self.transformer = Transformer(model)
        self.slots, self.context = slots, context
        self.head = model.lm_head.weight.detach()
        self.blocked = suppress(torch.zeros_like(self.head[:, 0]), vocabulary)
        self.cos, self.sin = self.transformer.tables(context)
        layers = self.transformer.layers
        shape = (len(layers), slots, context, layers[0].kv_heads, layers[0].head_dim)
        self.keys = torch.zeros(shape, dtype=self.head.dtype, device=self.head.device)
        self.values = torch.zeros_like(self.keys)

    @torch.inference_mode()
    def forward(
        self, slots: Sequence[int], ids: np.ndarray, positions: np.ndarray, limits: np.ndarray, first: int = 0
    ) -> Tensor:
        """Run tokens of some slots through the model and write their keys and values.

        Args:
            slots: ``n`` rows of the cache.
            ids: ``[n, width]`` token ids.
            positions: ``[n, width]`` absolute positions, consecutive within a row.
            limits: ``[n, width]``; a query sees the keys at positions below its limit.
            first: First column whose hidden state is wanted.

        Returns:
            Hidden states ``[n, width - first, hidden]`` after the final norm.
        """
        device, (n, width), span = self.head.device, ids.shape, int(limits.max())
        mask = None
        if limits.min() < span:  # else every query sees every key: no mask, the fast path
            mask = torch.from_numpy((np.arange(span) < limits[..., None])[:, None]).to(device)
        if n == 1:  # views instead of gathers
            start = int(positions[0, 0])
            write: tuple[object, object] = (slice(slots[0], slots[0] + 1), slice(start, start + width))
            read: object = write[0]
            cos, sin = self.cos[None, start : start + width], self.sin[None, start : start + width]
        else:
            rows, places = torch.tensor(slots, device=device), torch.from_numpy(positions).to(device)
            write = (rows[:, None], places)
            read = slice(0, n) if list(slots) == list(range(n)) else rows
            cos, sin = self.cos[places], self.sin[places]

        def attend(layer: int) -> Attend:
            keys, values = self.keys[layer], self.values[layer]

            def cached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                keys[write], values[write] = k, v
                seen = None if mask is None else mask[:, :, width - q.shape[1] :]
                return attention(q, keys[:, :span][read], values[:, :span][read], seen)

            return cached

        return self.transformer.forward(
            torch.from_numpy(ids).to(device), cos[:, :, None], sin[:, :, None], attend, first
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
    def log_probabilities(self, hidden: Tensor, temperature: float = 1.0) -> np.ndarray:
        """fp32 log-probabilities ``[..., vocabulary]``; the mask and padding ids are impossible."""
        logits = F.linear(hidden, self.head).float() + self.blocked
        if temperature not in (0.0, 1.0):
            logits = logits / temperature
        return torch.log_softmax(logits, dim=-1).cpu().numpy()
