"""Seconds of a training step: AR, conversion as we pack it, and conversion in the public layout.

The public layout (BD3-LM, arXiv 2503.09573; Fast-dLLM v2, arXiv 2509.26328) puts the whole sequence in twice,
noisy and clean, for every noisy copy. Ours duplicates the response only, and all copies share a clean stream.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.benchmarks.figures import Figures, Summary
from dgr2.benchmarks.shapes import LABELS, find_shape, responses, words
from dgr2.config.schema import CftConfig, OptimConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.models.backbone import hidden_states, log_probabilities
from dgr2.models.packed import PackedRows, pack
from dgr2.objectives.ar import answer_starts, token_losses
from dgr2.objectives.cft import Noise, diffusion_loss, draw_noise, set_terms
from dgr2.telemetry import time_turns
from dgr2.training.loop import clip_gradients, make_optimizer

PROMPT, RESPONSE, BLOCK, ROWS = 768, 256, 16, 2
"""Tokens of a prompt, a response and a block; rows of a step."""


def bench_train(shape: str, repeats: int, summary: Summary) -> Figures:
    """Step times and their ratios, forward, backward and optimizer."""
    model, vocabulary = find_shape(shape).build(summary.seed)
    batch = Batch(vocabulary, summary.seed)
    losses = {"ar": ar_loss, "cft": packed_loss, "cft_duplicated": duplicated_loss}
    steps = {name: _step(model, partial(loss, model, batch)) for name, loss in losses.items()}
    timed = time_turns(steps, repeats)
    seconds = {name: turns.seconds for name, turns in timed.items()}
    return {
        **{f"{name}_step_seconds": summary.median(spent, "s") for name, spent in seconds.items()},
        "cft_vs_ar": summary.ratio(seconds["cft"], seconds["ar"]),
        "cft_vs_duplicated": summary.ratio(seconds["cft_duplicated"], seconds["cft"]),
    }


class Batch:
    """A synthetic batch of prompts, responses and the noise of two copies."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        seed: int,
        rows: int = ROWS,
        prompt: int = PROMPT,
        response: int = RESPONSE,
    ) -> None:
        self.vocabulary, self.config, self.prompt = vocabulary, CftConfig(), prompt
        self.prompts: list[list[int]] = words((rows, prompt), vocabulary, seed).tolist()
        self.clean = torch.from_numpy(responses(rows, response, BLOCK, vocabulary, seed))
        self.valid = torch.ones_like(self.clean, dtype=torch.bool)
        self.starts = answer_starts(self.clean, vocabulary, BLOCK)
        self.counts = torch.full((rows,), LABELS)
        answer = torch.arange(response)[None] >= self.starts[:, None]
        self.noise: Noise = draw_noise(self.valid, answer, BLOCK, self.config, np.random.default_rng(seed))
        self.noisy = [self.clean.masked_fill(masked, vocabulary.mask) for masked in self.noise.masked]


def ar_loss(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Next-token loss of the responses."""
    rows = pack(batch.prompts, batch.clean, batch.valid, [], batch.vocabulary.pad, BLOCK)
    hidden = hidden_states(model, rows)
    return token_losses(model, hidden, rows, batch.clean, batch.valid, batch.vocabulary).sum()


def packed_loss(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Conversion as it is trained: AR, diffusion and set terms on one clean stream and two noisy copies."""
    vocabulary = batch.vocabulary
    rows = pack(batch.prompts, batch.clean, batch.valid, batch.noisy, vocabulary.pad, BLOCK)
    hidden = hidden_states(model, rows)
    loss = token_losses(model, hidden, rows, batch.clean, batch.valid, vocabulary).sum()
    loss = loss + diffusion_loss(model, hidden, rows, [batch.clean] * 2, batch.noise, vocabulary)
    sets = set_terms(
        model, hidden, rows, batch.clean, batch.noise, batch.starts, batch.counts, BLOCK, batch.config,
        vocabulary,
    )  # fmt: skip
    return loss + sets


def duplicated_loss(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """AR and diffusion losses in the public layout: a row ``[noisy sequence | clean sequence]`` a copy."""
    vocabulary, (count, response) = batch.vocabulary, batch.clean.shape
    length = batch.prompt + response
    prompts = torch.tensor(batch.prompts)
    clean = torch.cat([prompts, batch.clean], dim=1)
    ids = torch.cat([torch.cat([prompts, noisy, clean], dim=1) for noisy in batch.noisy])
    positions = torch.arange(length).repeat(2)[None].expand(len(ids), -1)
    rows = PackedRows(
        ids, positions, duplicated_mask(length, BLOCK), 0, 2 * length, 0, BLOCK, torch.ones_like(ids)
    )
    hidden = hidden_states(model, rows)
    weights, targets = batch.noise.weights.flatten(0, 1), batch.clean.repeat(len(batch.noisy), 1)
    total = hidden.new_zeros(())
    # the clean halves of all copies are the same: one of them gives the AR loss
    successors = hidden[:count, length + batch.prompt - 1 : -1]
    logp = log_probabilities(model, successors, vocabulary)
    total = total - logp.gather(-1, batch.clean[..., None]).sum()
    keep = weights > 0
    logp = log_probabilities(model, hidden[:, batch.prompt : length][keep], vocabulary)
    return total - (logp.gather(-1, targets[keep][:, None])[:, 0] * weights[keep]).sum()


def duplicated_mask(length: int, block_size: int) -> Tensor:
    """Who sees whom in ``[noisy | clean]``: bool ``[1, 1, 2 * length, 2 * length]`` (query, key)."""
    position = torch.arange(length)
    block = position // block_size
    same, earlier = block[:, None] == block[None], block[:, None] > block[None]
    causal = position[:, None] >= position[None]
    top = torch.cat([same, earlier], dim=1)
    bottom = torch.cat([torch.zeros_like(same), causal], dim=1)
    return torch.cat([top, bottom])[None, None]


def _step(model: Qwen3ForCausalLM, loss: Callable[[], Tensor]) -> Callable[[int], None]:
    optim = OptimConfig()
    optimizer = make_optimizer(model, optim)

    def step(turn: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        (loss() / (ROWS * RESPONSE)).backward()
        clip_gradients(model, optim.clip, turn)
        optimizer.step()

    return step
