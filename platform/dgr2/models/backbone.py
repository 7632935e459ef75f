"""The backbone: Hugging Face's Qwen3 classes and checkpoint layout, from scratch or from a folder."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dgr2.config.schema import ModelConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.errors import ConfigError
from dgr2.models.packed import PackedRows
from dgr2.models.transformer import Transformer

SUPPORTED = ("qwen3",)
LOGITS = 2**26
"""Logits held for a loss at a time: a quarter of a GiB."""


def build_model(config: ModelConfig, vocabulary: Vocabulary, seed: int) -> Qwen3ForCausalLM:
    """A model from scratch, or the one in ``config.init`` with its embeddings grown to the vocabulary.

    New embedding rows start at the mean of the old ones plus small noise. The global random state is
    left as it was.

    Raises:
        ConfigError: when ``config.init`` holds no supported model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not config.init:
            return Qwen3ForCausalLM(
                Qwen3Config(
                    vocab_size=vocabulary.size,
                    hidden_size=config.hidden,
                    intermediate_size=config.mlp,
                    num_hidden_layers=config.layers,
                    num_attention_heads=config.heads,
                    num_key_value_heads=config.kv_heads,
                    head_dim=config.hidden // config.heads,
                    max_position_embeddings=config.context,
                    tie_word_embeddings=True,
                    bos_token_id=None,
                    eos_token_id=vocabulary.eos,
                    pad_token_id=vocabulary.pad,
                )
            )
        model = load_model(config.init)
        rows = model.get_input_embeddings().weight.shape[0]
        if vocabulary.size > rows:
            model.resize_token_embeddings(vocabulary.size, mean_resizing=True)
        model.config.eos_token_id = vocabulary.eos
        model.config.pad_token_id = vocabulary.pad
        return model


def load_model(folder: str | Path) -> Qwen3ForCausalLM:
    """Load a checkpoint from a local folder (safetensors only, fp32, SDPA attention).

    Raises:
        ConfigError: when the folder holds no readable or no supported model.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: config.json is missing")
    kind = AutoConfig.from_pretrained(folder, local_files_only=True).model_type
    if kind not in SUPPORTED:
        raise ConfigError(f"{folder} holds a {kind!r} model; supported are {', '.join(SUPPORTED)}")
    model = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model.eval()


def save_model(
    model: Qwen3ForCausalLM,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write the Hugging Face layout (config, safetensors, tokenizer), as ``from_pretrained`` reads it.

    Args:
        weights: Whole weights of a model whose own are sharded.
    """
    model.save_pretrained(folder, safe_serialization=True, state_dict=weights)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def hidden_states(model: Qwen3ForCausalLM, rows: PackedRows) -> Tensor:
    """Last hidden states ``[batch, length, hidden]`` of packed rows; differentiable, no cache.

    Those of the prompt but its last token predict nothing and are zero. With the model's gradient
    checkpointing on, each layer is computed again for its gradient.
    """
    return model.compute(rows) if isinstance(model, FSDPModule) else compute_hidden_states(model, rows)


def compute_hidden_states(model: Qwen3ForCausalLM, rows: PackedRows) -> Tensor:
    """:func:`hidden_states` of a model whose root weights are whole."""
    transformer = Transformer(model)
    cos, sin = transformer.tables(int(rows.positions.max()) + 1)
    first = max(rows.prompt - 1, 0)
    hidden = transformer.forward(
        rows.ids,
        cos[rows.positions][:, :, None],
        sin[rows.positions][:, :, None],
        lambda _: rows.attend,
        first,
        recompute=model.is_activation_checkpointing and torch.is_grad_enabled(),
    )
    return F.pad(hidden, (0, 0, first, 0))


def log_probabilities(model: Qwen3ForCausalLM, hidden: Tensor, vocabulary: Vocabulary) -> Tensor:
    """fp32 log-probabilities ``[..., vocabulary]`` of hidden states; mask and padding ids are impossible."""
    logits = model.lm_head(hidden).float()
    return torch.log_softmax(suppress(logits, vocabulary), dim=-1)


def cross_entropies(
    model: Qwen3ForCausalLM, hidden: Tensor, targets: Tensor, vocabulary: Vocabulary, chunk: int = LOGITS
) -> Tensor:
    """``-log p`` of ``targets [n]`` under hidden states ``[n, hidden]``: ``[n]``, in nats.

    Logits are made ``chunk`` at a time; where one chunk does not hold them all, each is made anew for its
    gradient, so that memory does not grow with the vocabulary times the tokens.
    """
    rows = max(1, chunk // model.lm_head.weight.shape[0])

    def losses(hidden: Tensor, targets: Tensor) -> Tensor:
        return -log_probabilities(model, hidden, vocabulary).gather(-1, targets[:, None])[:, 0]

    if len(hidden) <= rows:
        return losses(hidden, targets)
    parts = zip(hidden.split(rows), targets.split(rows), strict=True)
    return torch.cat([checkpoint(losses, *part, use_reentrant=False) for part in parts])


def suppress(logits: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Logits with the mask and padding ids and spare embedding rows at minus infinity."""
    blocked = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    blocked[[vocabulary.mask, vocabulary.pad]] = True
    blocked[vocabulary.size :] = True
    return logits.masked_fill(blocked, float("-inf"))
