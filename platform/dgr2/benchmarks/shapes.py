"""Model shapes and synthetic batches for benchmarks that need no run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from dgr2.config.schema import ModelConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.errors import ConfigError
from dgr2.models.backbone import build_model

CPU = torch.device("cpu")
LABELS = 10
# ids: pad, end, mask, end of trace, fill, then labels, grades and words
_FIRST_WORD = 5 + 2 * LABELS


@dataclass(frozen=True)
class Shape:
    """A model from scratch and the vocabulary it reads."""

    model: ModelConfig
    vocabulary: int

    def build(self, seed: int, device: torch.device = CPU) -> tuple[Qwen3ForCausalLM, Vocabulary]:
        """A random model, in fp32 on a CPU and in bfloat16 elsewhere, and its vocabulary."""
        labels, grades = range(5, 5 + LABELS), range(5 + LABELS, _FIRST_WORD)
        vocabulary = Vocabulary(self.vocabulary, 0, 1, 2, 3, 4, tuple(labels), tuple(grades))
        model = build_model(self.model, vocabulary, seed).eval()
        return model if device == CPU else model.to(device, torch.bfloat16), vocabulary


SHAPES = {
    "small": Shape(ModelConfig(hidden=128, layers=4, heads=4, kv_heads=2, mlp=384, context=2048), 1024),
    "qwen3-0.6b": Shape(
        ModelConfig(hidden=1024, layers=28, heads=16, kv_heads=8, mlp=3072, context=4096), 151936
    ),
    "qwen3-8b": Shape(
        ModelConfig(hidden=4096, layers=36, heads=32, kv_heads=8, mlp=12288, context=4096), 151936
    ),
}


def find_shape(name: str) -> Shape:
    """A shape by its name.

    Raises:
        ConfigError: there is none.
    """
    if name not in SHAPES:
        raise ConfigError(f"no shape is called '{name}'; there are {', '.join(SHAPES)}")
    return SHAPES[name]


def find_device(name: str) -> torch.device:
    """A device by its name.

    Raises:
        ConfigError: this machine has none.
    """
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"--device is cpu or cuda, not '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this machine has no GPU that torch can use")
    return torch.device(name)


def words(shape: tuple[int, ...], vocabulary: Vocabulary, seed: int) -> np.ndarray:
    """Random ids of words."""
    return np.random.default_rng(seed).integers(_FIRST_WORD, vocabulary.size, size=shape)


def responses(count: int, length: int, block_size: int, vocabulary: Vocabulary, seed: int) -> np.ndarray:
    """Responses ``[count, length]``: a trace to the last block, then a permutation of the labels and EOS."""
    random = np.random.default_rng(seed)
    found = words((count, length), vocabulary, seed + 1)
    start = length - block_size
    found[:, start - 1] = vocabulary.think_end
    found[:, start:] = vocabulary.eos
    for row in found:
        row[start : start + LABELS] = random.permutation(vocabulary.labels)
    return found
