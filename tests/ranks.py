"""Training as one of several workers, in a module that a spawned process can import."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from tiny import VOCABULARY, tiny_model

from dgr2.config.schema import Config, OptimConfig
from dgr2.training.loop import Phase, fit, make_optimizer
from dgr2.training.tasks import Cft, Midtraining, Sft, Sums, Task

OPTIM = OptimConfig(steps=6, batch_size=6, micro_batch_size=6, learning_rate=3e-3, checkpoint_every=2)


def make_task(kind: str, data: Path, config: Config) -> Task:
    """A task on the data of a folder."""
    if kind == "midtrain":
        return Midtraining(data, VOCABULARY)
    return {"sft": Sft, "cft": Cft}[kind](data, VOCABULARY, config)


def train_as_rank(rank: int, world: int, folder: Path, data: Path, config: Config) -> None:
    """Two steps as one of ``world`` workers; rank 0 leaves its weights and what it logged in ``folder``."""
    torch.set_num_threads(1)
    if world > 1:
        meet = f"file://{folder}/meet"
        torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    optim = replace(OPTIM, steps=2)
    logged: list[Sums] = []
    model = tiny_model(34)
    phase = Phase("cft", make_task("cft", data, config), optim, 1)
    optimizer = make_optimizer(model, optim)
    fit(model, phase, optimizer, 0, 0, lambda _, figures: logged.append(figures), rank, world)
    if rank == 0:
        torch.save({"weights": model.state_dict(), "logged": logged}, folder / f"{world}.pt")
