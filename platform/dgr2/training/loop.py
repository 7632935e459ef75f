"""The optimisation loop: pure PyTorch, resumable to the bit, the same however workers split a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from transformers import Qwen3ForCausalLM

from dgr2.config.schema import OptimConfig
from dgr2.errors import DGR2Error
from dgr2.models.sharding import gathered, is_sharded
from dgr2.training.tasks import Sums, Task


@dataclass(frozen=True)
class Phase:
    """A task and how it is optimised."""

    name: str
    task: Task
    optim: OptimConfig
    stream: int
    """Keeps the random numbers of phases apart."""


def stream(seed: int, *key: int) -> np.random.Generator:
    """A generator for one consumer, derived from the run's seed and a key: never the global state."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *key])))


def step_indices(size: int, batch: int, step: int, seed: int, phase: int) -> list[int]:
    """Examples of a step: a cursor over seeded epoch permutations, the same for every number of workers."""
    chosen: list[int] = []
    cursor = step * batch
    while len(chosen) < batch:
        epoch, offset = divmod(cursor, size)
        order = stream(seed, phase, 1, epoch).permutation(size)
        part = order[offset : offset + batch - len(chosen)]
        chosen += part.tolist()
        cursor += len(part)
    return chosen


def learning_rate(optim: OptimConfig, step: int) -> float:
    """Linear warm-up, then cosine decay to a tenth of the peak."""
    warmup = max(1, round(optim.warmup * optim.steps))
    if step < warmup:
        return optim.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, optim.steps - warmup)
    return optim.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def make_optimizer(model: nn.Module, optim: OptimConfig) -> torch.optim.AdamW:
    """AdamW; matrices decay, norms do not."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": optim.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=optim.learning_rate,
        betas=(0.9, 0.98),
        foreach=True,
    )


def fit(
    model: Qwen3ForCausalLM,
    phase: Phase,
    optimizer: torch.optim.Optimizer,
    seed: int,
    start: int,
    on_step: Callable[[int, Sums], None],
    rank: int = 0,
    world: int = 1,
    mixed_precision: bool = False,
) -> None:
    """Run a phase from step ``start`` to its end; ``on_step(done, figures)`` follows every optimizer step.

    The loss of a step is a sum over all its tokens divided by one global denominator, so the gradient does
    not depend on micro-batches or workers (up to fp32 rounding).
    """
    task, optim = phase.task, phase.optim
    model.train()
    for step in range(start, optim.steps):
        indices = step_indices(task.size, optim.batch_size, step, seed, phase.stream)
        denominator = task.denominator(indices)
        prepared = task.prepare(indices, step, optim.steps, stream(seed, phase.stream, 2, step))
        optimizer.zero_grad(set_to_none=True)
        sums: Sums = {}
        for rows, weight in rank_batches([task.tokens(index) for index in indices], rank, world, optim):
            if not weight and not is_sharded(model):
                continue
            with torch.autocast(model.device.type, torch.bfloat16, enabled=mixed_precision):
                loss, figures = task.loss(model, indices, rows, prepared)
            (weight * loss / denominator).backward()
            for name, value in figures.items():
                sums[name] = sums.get(name, 0.0) + weight * value / denominator
        if world > 1:
            sum_gradients(model)
            sums = sum_figures(sums)
        norm = clip_gradients(model, optim.clip, step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(optim, step)
        optimizer.step()
        on_step(step + 1, {**sums, "grad_norm": norm, "learning_rate": learning_rate(optim, step)})
    model.eval()


def rank_batches(
    widths: Sequence[int], rank: int, world: int, optim: OptimConfig
) -> list[tuple[slice, float]]:
    """A rank's forwards of a step and their weights, as many on every rank.

    One that has fewer than others ends with forwards of weight 0, which count for nothing.
    """
    share = -(-len(widths) // world)
    of_ranks = [
        list(micro_slices(widths, min(r * share, len(widths)), min((r + 1) * share, len(widths)), optim))
        for r in range(world)
    ]
    own, most = of_ranks[rank], max(map(len, of_ranks))
    idle = own[-1] if own else of_ranks[0][0]
    return [(rows, 1.0) for rows in own] + [(idle, 0.0)] * (most - len(own))


def micro_slices(widths: Sequence[int], start: int, stop: int, optim: OptimConfig) -> Iterator[slice]:
    """Cut examples ``start`` to ``stop`` of a step into forwards, by number and by padded tokens.

    Args:
        widths: Tokens of every example of the step; a forward pads its examples to the widest.
    """
    first, widest = start, 0
    for index in range(start, stop):
        widest = max(widest, widths[index])
        count = index - first
        over = optim.micro_batch_tokens and (count + 1) * widest > optim.micro_batch_tokens
        if count and (count == optim.micro_batch_size or over):
            yield slice(first, index)
            first, widest = index, widths[index]
    if first < stop:
        yield slice(first, stop)


def clip_gradients(model: nn.Module, largest: float, step: int) -> float:
    """Scale gradients down to a norm of at most ``largest``; returns the norm before.

    Raises:
        DGR2Error: it is not finite: a step would destroy the weights for good.
    """
    norm = float(gathered(nn.utils.clip_grad_norm_(model.parameters(), largest)))
    if not math.isfinite(norm):
        raise DGR2Error(f"the gradient is not finite at step {step + 1}: lower the learning rate")
    return norm


def sum_gradients(model: nn.Module) -> None:
    """Sum gradients over workers in one flat message; losses are globally normalised already.

    Those of a sharded model are summed by its backward.
    """
    if is_sharded(model):
        return
    parameters = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat(
        [(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in parameters]
    )
    dist.all_reduce(flat)
    offset = 0
    for p in parameters:
        p.grad = flat[offset : offset + p.numel()].view_as(p).clone()
        offset += p.numel()


def sum_figures(figures: Sums) -> Sums:
    """Figures summed over workers; one that had no micro-batch brings none."""
    of_ranks: list[Sums] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_ranks, figures)
    total: Sums = {}
    for own in of_ranks:
        for name, value in own.items():
            total[name] = total.get(name, 0.0) + value
    return total
