"""Inference on a static key/value cache: the mathematics of Hugging Face's Qwen3, without its overhead.

A *slot* is one row of the cache. Keys and values lie at their absolute position, so a noisy block and its
clean version share places: the clean version, computed when the block is committed, overwrites the draft,
and the cache stays exact. What a query sees is one number, its *limit*: it sees the keys at positions
``< limit``. A clean token at position p has limit p + 1, a noisy token the end of its block.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.data.vocabulary import Vocabulary
from dgr2.errors import ConfigError
from dgr2.models.backbone import suppress
from dgr2.models.transformer import Attend, Transformer, attention


class InferenceModel:
    """Weights of a Qwen3 model and a static cache of ``slots`` rows of ``context`` tokens.

    Args:
        compiled: Run forwards through ``torch.compile``. Six programs serve all shapes; they are made here,
            in some ten seconds each, or read from PyTorch's cache on disk.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Qwen3ForCausalLM,
        vocabulary: Vocabulary,
        slots: int,
        context: int,
        compiled: bool = False,
    ) -> None:
        self.transformer = Transformer(model)
        self.slots, self.context = slots, context
        self.head = model.lm_head.weight.detach()
        self.blocked = suppress(torch.zeros_like(self.head[:, 0]), vocabulary)
        self.cos, self.sin = self.transformer.tables(context)
        layers = self.transformer.layers
        shape = (slots, context, layers[0].kv_heads, layers[0].head_dim)
        # a tensor a layer: a compiled forward that wrote into a part of a tensor would copy the whole of it
        self.keys = [torch.zeros(shape, dtype=self.head.dtype, device=self.head.device) for _ in layers]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self._program = torch.compile(self._compute, options={"cpp_wrapper": True}) if compiled else None
        if compiled:
            self._compile()

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
        first_ones = n > 1 and list(slots) == list(range(n))  # their part of the cache need not be gathered
        if self._program is not None:
            tensors = self._tensors(slots, ids, positions, limits, span)
            return self._program(*tensors, first_ones)[:, first:]
        mask = None
        if limits.min() < span:  # else every query sees every key: no mask, the fast path
            mask = self._mask(limits, span)
        if n == 1:  # views instead of gathers
            start = int(positions[0, 0])
            write: tuple[object, object] = (slice(slots[0], slots[0] + 1), slice(start, start + width))
            read: object = write[0]
            cos, sin = self.cos[None, start : start + width], self.sin[None, start : start + width]
        else:
            rows, places = torch.tensor(slots, device=device), torch.from_numpy(positions).to(device)
            write = (rows[:, None], places)
            read = slice(0, n) if first_ones else rows
            cos, sin = self.cos[places], self.sin[places]

        return self._run(torch.from_numpy(ids).to(device), cos, sin, write, read, mask, span, first)

    def _run(
        self,
        ids: Tensor,
        cos: Tensor,
        sin: Tensor,
        write: tuple[object, object],
        read: object,
        mask: Tensor | None,
        span: int,
        first: int = 0,
    ) -> Tensor:
        """Hidden states; keys and values are put to ``write``, and seen from ``read`` below ``span``."""

        def attend(layer: int) -> Attend:
            keys, values = self.keys[layer], self.values[layer]

            def cached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                keys[write], values[write] = k, v
                seen = None if mask is None else mask[:, :, ids.shape[1] - q.shape[1] :]
                return attention(q, keys[:, :span][read], values[:, :span][read], seen)

            return cached

        return self.transformer.forward(ids, cos[:, :, None], sin[:, :, None], attend, first)

    def _tensors(
        self, slots: Sequence[int], ids: np.ndarray, positions: np.ndarray, limits: np.ndarray, span: int
    ) -> list[Tensor]:
        """Arguments of :meth:`_compute`."""
        arrays = (ids, np.array(slots), positions)
        tensors = [torch.from_numpy(array).to(self.head.device) for array in arrays]
        return [*tensors, self._mask(limits, span)]

    def _mask(self, limits: np.ndarray, span: int) -> Tensor:
        """What is added to scores ``[n, 1, width, span]``: 0 below a query's limit, else minus infinity.

        SDPA would make it of a bool mask anew in every layer.
        """
        seen = (np.arange(span) < limits[..., None])[:, None]
        mask = np.where(seen, np.float32(0.0), np.float32(-np.inf))
        return torch.from_numpy(mask).to(self.head.device, self.head.dtype)

    @torch.inference_mode()
    def _compile(self) -> None:
        """Make the programs: for a row, several and the first several; for a token and several."""
        for table in (*self.keys, *self.values):
            _any_size(table, 0, 1)
        for table in (self.cos, self.sin):
            _any_size(table, 0)
        kinds = [(1, False)] if self.slots == 1 else [(1, False), (2, False), (2, True)]
        for n, first_ones in kinds:
            # sizes that are equal by chance would be taken to be equal always: here none are
            several, span = [size for size in range(3, 9) if size not in (self.slots, self.context)][:2]
            for width in (1, several):
                positions = np.arange(span - width, span)[None].repeat(n, 0)
                tensors = self._tensors(range(n), np.zeros_like(positions), positions, positions + 1, span)
                for tensor in tensors:
                    _any_size(tensor, *range(tensor.dim()))
                self._program(*tensors, first_ones)

    def _compute(
        self, ids: Tensor, slots: Tensor, positions: Tensor, mask: Tensor, first_ones: bool
    ) -> Tensor:
        """:meth:`forward` without a decision that depends on values.

        Args:
            mask: ``[n, 1, width, span]``, added to the scores.
            first_ones: The slots are the first ones.
        """
        write, read = (slots[:, None], positions), slice(0, len(ids)) if first_ones else slots
        cos, sin = self.cos[positions], self.sin[positions]
        return self._run(ids, cos, sin, write, read, mask, mask.shape[-1])

    @torch.inference_mode()
    def read(self, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a slot's first tokens, copied: ``[layers, length, kv_heads, head_dim]`` each."""
        kept = [torch.stack([layer[slot, :length] for layer in cache]) for cache in (self.keys, self.values)]
        return kept[0], kept[1]

    @torch.inference_mode()
    def write(self, slot: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values, as :meth:`read` gave them, at the beginning of a slot."""
        length = keys.shape[1]
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.keys[layer][slot, :length], self.values[layer][slot, :length] = k, v

    @torch.inference_mode()
    def log_probabilities(self, hidden: Tensor, temperature: float = 1.0) -> np.ndarray:
        """fp32 log-probabilities ``[..., vocabulary]``; the mask and padding ids are impossible."""
        logits = F.linear(hidden, self.head).float() + self.blocked
        if temperature not in (0.0, 1.0):
            logits = logits / temperature
        return torch.log_softmax(logits, dim=-1).cpu().numpy()


def require_compiler() -> None:
    """Refuse to compile where nothing could.

    Raises:
        ConfigError: no C++ compiler is found.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"compiling needs a C++ compiler, and there is no '{compiler}': install one, or name it in CXX"
        )


def _any_size(tensor: Tensor, *dims: int) -> None:
    """Have ``torch.compile`` make one program for all sizes above one of these dimensions."""
    for dim in dims:
        if tensor.shape[dim] > 1:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
