"""What a training phase optimises: a task turns examples into a loss sum and its global denominator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from datasets import Dataset, load_from_disk
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.config.schema import Config
from dgr2.data.vocabulary import Vocabulary
from dgr2.models.backbone import hidden_states
from dgr2.models.grid import BlockGrid
from dgr2.models.packed import pack, pad_responses
from dgr2.objectives.ar import answer_starts, token_losses, until_eos
from dgr2.objectives.cft import COPIES, Noise, diffusion_loss, draw_noise, set_terms
from dgr2.objectives.listwise import listwise_loss
from dgr2.objectives.slips import Slips, draw_slips

Sums = dict[str, float]


class Task(Protocol):
    """One objective over one set of examples."""

    size: int
    """Number of examples."""

    def denominator(self, indices: Sequence[int]) -> float:
        """What the loss sum of these examples is divided by: the same on every worker of a step."""

    def tokens(self, index: int) -> int:
        """Tokens of an example in a forward, noisy copies counted."""

    def prepare(self, indices: Sequence[int], step: int, steps: int, random: np.random.Generator) -> object:
        """Draw what the whole global batch needs at random, before it is split over workers."""

    def loss(
        self, model: Qwen3ForCausalLM, indices: Sequence[int], rows: slice, prepared: object
    ) -> tuple[Tensor, Sums]:
        """Loss sum of ``indices[rows]`` and detached sums for the log."""


class Midtraining:
    """Next-token prediction on item cards and histories; every token but the first counts."""

    def __init__(self, folder: Path, vocabulary: Vocabulary) -> None:
        self.sequences: list[list[int]] = load_from_disk(str(folder / "midtrain"))["input_ids"][:]
        self.size, self.vocabulary = len(self.sequences), vocabulary

    def denominator(self, indices: Sequence[int]) -> float:
        return float(sum(len(self.sequences[i]) - 1 for i in indices))

    def tokens(self, index: int) -> int:
        return len(self.sequences[index])

    def prepare(self, indices: Sequence[int], step: int, steps: int, random: np.random.Generator) -> None:
        return None

    def loss(
        self, model: Qwen3ForCausalLM, indices: Sequence[int], rows: slice, prepared: object
    ) -> tuple[Tensor, Sums]:
        chosen = [self.sequences[i] for i in indices[rows]]
        clean, valid = pad_responses([s[1:] for s in chosen], self.vocabulary.pad)
        packed = pack([s[:1] for s in chosen], clean, valid, [], self.vocabulary.pad, 1)
        losses = token_losses(model, hidden_states(model, packed), packed, clean, valid, self.vocabulary)
        total = losses.sum()
        return total, {"loss": total.item()}


class _Lists:
    """Lists with responses, of training or validation: prompts and responses of the re-ranking task."""

    noisy_copies = 0

    def __init__(self, folder: Path, vocabulary: Vocabulary, config: Config, part: str = "train") -> None:
        lists: Dataset = load_from_disk(str(folder / "instances" / part))
        self.prompts: list[list[int]] = lists["prompt_ids"][:]
        self.responses: list[list[int]] = lists["response_ids"][:]
        self.counts = torch.tensor([len(c) for c in lists["candidates"][:]])
        self.size, self.vocabulary, self.config = len(self.prompts), vocabulary, config
        self.block_size = config.grid.block_size

    def tokens(self, index: int) -> int:
        response = BlockGrid(self.block_size).padded(len(self.responses[index]))
        return len(self.prompts[index]) + (1 + self.noisy_copies) * response

    def batch(self, indices: Sequence[int]) -> tuple[list[list[int]], Tensor, Tensor, Tensor]:
        """Prompts, clean responses, their validity, and where the answers start."""
        clean, valid = pad_responses(
            [self.responses[i] for i in indices], self.vocabulary.pad, self.block_size
        )
        return (
            [self.prompts[i] for i in indices],
            clean,
            valid,
            answer_starts(clean, self.vocabulary, self.block_size),
        )


class Sft(_Lists):
    """Supervised fine-tuning on traces, reasoning tokens weighted less than answer tokens."""

    def _weights(self, clean: Tensor, valid: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        teacher = self.config.teacher
        keep = until_eos(clean, valid, self.vocabulary)
        answer = torch.arange(clean.shape[1])[None] >= starts[:, None]
        weights = torch.where(answer, teacher.answer_weight, teacher.reason_weight)
        return keep, weights

    def denominator(self, indices: Sequence[int]) -> float:
        _, clean, valid, starts = self.batch(indices)
        keep, weights = self._weights(clean, valid, starts)
        return float((weights * keep).sum())

    def prepare(self, indices: Sequence[int], step: int, steps: int, random: np.random.Generator) -> Slips:
        _, clean, _, starts = self.batch(indices)
        counts = self.counts[list(indices)]
        return draw_slips(starts, counts, clean.shape[1], self.config.teacher.slip_share, random)

    def loss(
        self, model: Qwen3ForCausalLM, indices: Sequence[int], rows: slice, prepared: object
    ) -> tuple[Tensor, Sums]:
        assert isinstance(prepared, Slips)
        slips = prepared.rows(rows)
        prompts, clean, valid, starts = self.batch(indices[rows])
        keep, weights = self._weights(clean, valid, starts)
        packed = pack(prompts, slips.shown(clean), valid, [], self.vocabulary.pad, self.block_size)
        hidden = hidden_states(model, packed)
        losses = token_losses(model, hidden, packed, slips.next_best(clean), keep, self.vocabulary)
        total = (losses * weights[keep]).sum()
        return total, {"loss": total.item()}


class Cft(_Lists):
    """Conversion fine-tuning: AR term on the clean stream, diffusion and set terms on two noisy copies."""

    noisy_copies = COPIES

    def denominator(self, indices: Sequence[int]) -> float:
        return float(sum(len(self.responses[i]) for i in indices))

    def curriculum(self, step: int, steps: int) -> int:
        """Block size at a step: the sizes in equal parts of the first half, then the last one."""
        sizes = self.config.cft.block_curriculum
        return sizes[min(step * 2 * (len(sizes) - 1) // max(steps, 1), len(sizes) - 1)]

    def prepare(
        self, indices: Sequence[int], step: int, steps: int, random: np.random.Generator
    ) -> tuple[int, Noise, Slips]:
        block_size, cft = self.curriculum(step, steps), self.config.cft
        _, clean, valid, starts = self.batch(indices)
        answer = torch.arange(clean.shape[1])[None] >= starts[:, None]
        noise = draw_noise(valid, answer, block_size, cft, random)
        counts = self.counts[list(indices)]
        return block_size, noise, draw_slips(starts, counts, clean.shape[1], cft.slip_share, random)

    def loss(
        self, model: Qwen3ForCausalLM, indices: Sequence[int], rows: slice, prepared: object
    ) -> tuple[Tensor, Sums]:
        assert isinstance(prepared, tuple)
        block_size, noise, slips = prepared
        cft, shift = self.config.cft, self.config.cft.alignment == "shift"
        prompts, clean, valid, starts = self.batch(indices[rows])
        width = clean.shape[1]
        noise = Noise(noise.masked[:, rows, :width], noise.weights[:, rows, :width])
        slips = slips.rows(rows)
        shown = slips.shown(clean)
        noisy = [shown.masked_fill(masked, self.vocabulary.mask) for masked in noise.masked]
        packed = pack(prompts, shown, valid, noisy, self.vocabulary.pad, block_size)
        hidden = hidden_states(model, packed)
        keep = until_eos(clean, valid, self.vocabulary)
        ar = token_losses(model, hidden, packed, slips.next_best(clean), keep, self.vocabulary).sum()
        targets = [slips.best_left(clean, masked) for masked in noise.masked]
        diffusion = diffusion_loss(model, hidden, packed, targets, noise, self.vocabulary, shift)
        counts = self.counts[list(indices[rows])]
        sets = set_terms(
            model, hidden, packed, shown, noise, starts, counts, block_size, cft, self.vocabulary, shift
        )
        order = listwise_loss(model, hidden, packed, clean, starts, counts, self.vocabulary)
        total = ar + cft.listwise_weight * order + cft.alpha * (diffusion + sets)
        return total, {
            "loss": total.item(),
            "ar": ar.item(),
            "diffusion": diffusion.item(),
            "sets": sets.item(),
            "listwise": order.item(),
        }
