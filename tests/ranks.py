"""Training as one of several workers, in a module that a spawned process can import."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tiny import VOCABULARY, tiny_model

from dgr2.config.schema import Config, OptimConfig, RayConfig
from dgr2.models.sharding import load_optimizer
from dgr2.training.loop import Phase, fit, make_optimizer
from dgr2.training.tasks import Cft, Midtraining, Sft, Sums, Task
from dgr2.training.worker import save_memory, training_state

OPTIM = OptimConfig(steps=6, batch_size=6, micro_batch_size=6, learning_rate=3e-3, checkpoint_every=2)


def make_task(kind: str, data: Path, config: Config) -> Task:
    """A task on the data of a folder."""
    if kind == "midtrain":
        return Midtraining(data, VOCABULARY)
    return {"sft": Sft, "cft": Cft}[kind](data, VOCABULARY, config)


def train_as_rank(
    rank: int, world: int, folder: Path, data: Path, config: Config, how: RayConfig | None = None
) -> None:
    """Two steps as one of ``world`` workers, interrupted between them.

    Rank 0 leaves the weights and what it logged in ``folder``.

    Args:
        how: ``shard`` and ``recompute_layers``; the defaults where not given.
    """
    torch.set_num_threads(1)
    if world > 1:
        meet = f"file://{folder}/meet"
        torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    # budgets that give the two workers of a step different numbers of forwards
    optim = replace(OPTIM, steps=2, batch_size=5, micro_batch_tokens=70)
    phase = Phase("cft", make_task("cft", data, config), optim, 1)
    logged: list[Sums] = []
    state: dict[str, Any] = {}
    for start in range(2):
        model = tiny_model(34 + start)
        if start:
            model.load_state_dict(state["weights"], strict=False)
            model.tie_weights()
        save_memory(model, how or RayConfig())
        optimizer = make_optimizer(model, optim)
        if start:
            load_optimizer(optimizer, state["optimizer"])

        def stop(_: int, figures: Sums) -> None:
            nonlocal state
            logged.append(figures)
            state = training_state(model, optimizer)  # noqa: B023 - called within the turn
            if len(logged) == 1:
                raise StopIteration

        with suppress(StopIteration):
            fit(model, phase, optimizer, 0, start, stop, rank, world)
    if rank == 0:
        torch.save({"weights": state["weights"], "logged": logged}, folder / f"{world}.pt")
