"""The mathematics of a Qwen3 decoder, once: training runs it with gradients, inference on a static cache.

Weights and checkpoints are Hugging Face's; only the forward is ours, since theirs spends most of its time on
small element-wise operations at our widths. A parity test holds it to theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import Qwen3ForCausalLM

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(q, k, v) -> out``, all ``[n, width, heads, head_dim]`` (k and v with the key/value heads)."""


class Layer:
    """Weights of one decoder layer, projections with a common input concatenated."""

    def __init__(self, layer: nn.Module) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = torch.cat([p.weight for p in projections])
        self.qkv_bias = None
        if projections[0].bias is not None:
            self.qkv_bias = torch.cat([p.bias for p in projections])
        self.head_dim, self.eps = int(attention.head_dim), layer.input_layernorm.variance_epsilon
        self.heads, self.kv_heads = (p.out_features // self.head_dim for p in projections[:2])
        q_norm, k_norm = attention.q_norm.weight, attention.k_norm.weight
        self.qk_norm = torch.cat([q_norm.expand(self.heads, -1), k_norm.expand(self.kv_heads, -1)])
        self.output, self.output_bias = attention.o_proj.weight, attention.o_proj.bias
        self.gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        self.down = mlp.down_proj.weight
        self.input_norm = layer.input_layernorm.weight
        self.post_norm = layer.post_attention_layernorm.weight

    def compute(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, first: int) -> Tensor:
        """Output of the layer for the columns from ``first`` on: ``[n, width - first, hidden]``."""
        n, width, _ = x.shape
        qkv = F.linear(norm(x, self.input_norm, self.eps), self.qkv, self.qkv_bias)
        split = [self.heads + self.kv_heads, self.kv_heads]
        qk, v = qkv.view(n, width, sum(split), self.head_dim).split(split, dim=2)
        qk = rotate(F.rms_norm(qk, (self.head_dim,), None, self.eps) * self.qk_norm, cos, sin)
        q, k = qk.split([self.heads, self.kv_heads], dim=2)
        if first:
            q, x = q[:, first:], x[:, first:]
        x = x + F.linear(attend(q, k, v).reshape(n, x.shape[1], -1), self.output, self.output_bias)
        gate, up = F.linear(norm(x, self.post_norm, self.eps), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Transformer:
    """A view of a Hugging Face model's weights; gradients reach them unless built under ``no_grad``."""

    def __init__(self, model: Qwen3ForCausalLM) -> None:
        base = model.model
        self.eps = model.config.rms_norm_eps
        self.embedding, self.final_norm = base.embed_tokens.weight, base.norm.weight
        # a sharded layer gathers its weights when it computes
        self.layers = [layer if isinstance(layer, FSDPModule) else Layer(layer) for layer in base.layers]
        self.rotary = base.rotary_emb

    def tables(self, context: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding by position: ``[context, head_dim]`` each.

        The first half of the sines is negated, for :func:`rotate`.
        """
        positions = torch.arange(context, device=self.embedding.device)[None]
        with torch.no_grad():
            cos, sin = self.rotary(self.embedding[:1], positions)
            first, second = sin[0].chunk(2, dim=-1)
            return cos[0], torch.cat((-first, second), dim=-1)

    def forward(
        self,
        ids: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: Callable[[int], Attend],
        first: int = 0,
        recompute: bool = False,
    ) -> Tensor:
        """Hidden states ``[n, width - first, hidden]`` after the final norm.

        Args:
            ids: ``[n, width]``.
            cos, sin: ``[n, width, 1, head_dim]`` of each token's position, from :meth:`tables`.
            attend: Attention of a layer by its index; it knows masks and caches. The last layer's queries are
                those from column ``first`` on.
            first: First column whose hidden state is wanted: the last layer computes no others, though the
                keys and values of all.
            recompute: Keep each layer's input only, and compute the layer again for its gradient.
        """
        x = F.embedding(ids, self.embedding)
        for index, layer in enumerate(self.layers):
            start = first if index == len(self.layers) - 1 else 0
            if recompute:
                x = checkpoint(layer.compute, x, cos, sin, attend(index), start, use_reentrant=False)
            else:
                x = layer.compute(x, cos, sin, attend(index), start)
        return norm(x, self.final_norm, self.eps)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm of the last dimension."""
    weight = weight if weight.dtype == x.dtype else weight.to(x.dtype)  # under autocast
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, halves convention of Qwen3: ``x`` is ``[n, width, heads, head_dim]``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((second, first), dim=-1) * sin


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention with grouped key/value heads: ``[n, width, heads, head_dim]``.

    Args:
        mask: ``[n or 1, 1, width, keys]``, bool or to be added to the scores; None where every query sees
            every key.
    """
    n, width, heads, head_dim = q.shape
    if width == 1:  # the heads that share keys become queries of one head: no key is repeated in memory
        q = q.reshape(n, k.shape[2], -1, head_dim)
        out = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
        return out.reshape(n, 1, heads, head_dim)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, enable_gqa=True
    )
    return out.transpose(1, 2)
