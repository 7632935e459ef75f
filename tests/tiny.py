"""A vocabulary, a grid and models so small that every test can afford them."""

from __future__ import annotations

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from dgr2.config.schema import GridConfig, ModelConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.models.backbone import build_model

# 0 pad, 1 end, 2 mask, 3 think_end, 4 fill, 5..8 labels, 9..10 grades, 11..19 words
VOCABULARY = Vocabulary(
    size=20, pad=0, eos=1, mask=2, think_end=3, fill=4, labels=(5, 6, 7, 8), grades=(9, 10)
)
GRID = GridConfig(block_size=4, trace_blocks=2)
WORDS = np.arange(11, 20)


def tiny_model(seed: int = 0, scale: float = 1.0, vocabulary: Vocabulary = VOCABULARY) -> Qwen3ForCausalLM:
    """A random model; a larger ``scale`` makes its distributions sharper."""
    config = ModelConfig(hidden=32, layers=2, heads=4, kv_heads=2, mlp=48, context=96)
    model = build_model(config, vocabulary, seed).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(scale)
    return model


def tiny_prompts(count: int, seed: int = 0, shortest: int = 3, longest: int = 9) -> list[list[int]]:
    """Prompts of words, of different lengths."""
    random = np.random.default_rng(seed)
    return [random.choice(WORDS, random.integers(shortest, longest + 1)).tolist() for _ in range(count)]


def tiny_responses(count: int, seed: int = 0) -> list[list[int]]:
    """Responses on the grid: a trace that ends with its second block, then a permutation of the labels."""
    random = np.random.default_rng(seed + 1)
    v = VOCABULARY
    responses = []
    for _ in range(count):
        trace = [*random.choice(WORDS, 7).tolist(), v.think_end]
        answer = [*random.permutation(v.labels).tolist(), v.eos, v.eos, v.eos, v.eos]
        responses.append([int(t) for t in trace + answer])
    return responses
