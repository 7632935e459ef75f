"""The function that every Ray Train worker runs: phases one after the other, resumable anywhere."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Qwen3ForCausalLM

from dgr2.config import Config, RayConfig, load_config
from dgr2.data.vocabulary import Vocabulary
from dgr2.errors import StorageError
from dgr2.models.backbone import build_model, load_model, save_model
from dgr2.models.sharding import gathered, load_optimizer, shard
from dgr2.training.device import take_device
from dgr2.training.loop import Phase, fit, make_optimizer
from dgr2.training.memory import keep_freed_memory
from dgr2.training.tasks import Cft, Midtraining, Sft, Sums
from dgr2.training.validation import Validation

STATE, MODEL = "state.pt", "model.safetensors"


def build_phases(kind: str, config: Config, data: Path, vocabulary: Vocabulary) -> list[Phase]:
    """The phases of a training stage: ``teacher`` or ``cft``."""
    if kind == "teacher":
        return [
            Phase("midtrain", Midtraining(data, vocabulary), config.teacher.midtrain, 1),
            Phase("sft", Sft(data, vocabulary, config), config.teacher.sft, 2),
        ]
    return [Phase("cft", Cft(data, vocabulary, config), config.cft.optim, 3)]


def train_worker(job: dict[str, Any]) -> None:
    """Train function for :class:`ray.train.torch.TorchTrainer`.

    Args:
        job: ``kind``, ``config`` (resolved, plain), ``data``, ``tokenizer``, ``init`` (checkpoint folder or
            empty), ``threads`` and ``board`` (progress actor). Paths must be readable by every worker.
            With ``validate_every`` rank 0 measures ``validation`` (its resolved configuration) every so many
            steps and at each checkpoint, and the figures are reported.
    """
    keep_freed_memory()
    torch.set_num_threads(int(job["threads"]))  # Ray's own default is one
    config: Config = load_config(None, base=job["config"], inputs=False)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    tokenizer = AutoTokenizer.from_pretrained(job["tokenizer"], local_files_only=True)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, config.data.candidates)
    model = load_model(job["init"]) if job["init"] else build_model(config.model, vocabulary, config.seed)
    model.to(take_device(config.ray.use_gpu))
    phases = build_phases(job["kind"], config, Path(job["data"]), vocabulary)
    every = int(job.get("validate_every", 0))
    measures = every and (rank == 0 or config.ray.shard)  # a sharded model computes on all workers at once
    validation = Validation(Path(job["data"]), vocabulary, job["validation"]) if measures else None

    resumed = read_checkpoint(ray.train.get_checkpoint())
    done_phases, done_steps = (resumed["phase"], resumed["step"]) if resumed else (0, 0)
    if resumed:
        model.load_state_dict(resumed["model"])
        model.tie_weights()
    save_memory(model, config.ray)
    for index, phase in enumerate(phases):
        if index < done_phases:
            continue
        start = done_steps if index == done_phases else 0
        optimizer = make_optimizer(model, phase.optim)
        if resumed and start:
            load_optimizer(optimizer, resumed["optimizer"])

        def on_step(
            step: int, figures: Sums, index: int = index, phase: Phase = phase, optimizer: Any = optimizer
        ) -> None:
            last = step == phase.optim.steps
            due = last or step % phase.optim.checkpoint_every == 0
            looked = bool(every) and (due or step % every == 0)
            if looked and validation is not None:
                figures = {**figures, **validation.figures(model), "step": float(step)}
            if rank == 0:
                job["board"].post.remote(phase.name, step, figures)
            if due:
                report(
                    model, optimizer, index, step, figures, rank, last and index == len(phases) - 1, tokenizer
                )
            elif looked:
                ray.train.report(figures)

        fit(
            model, phase, optimizer, config.seed, start, on_step, rank, world, config.model.mixed_precision
        )  # fmt: skip


def report(
    model: Qwen3ForCausalLM,
    optimizer: torch.optim.Optimizer,
    phase: int,
    step: int,
    figures: Sums,
    rank: int,
    final: bool,
    tokenizer: Any,
) -> None:
    """Report a resumable checkpoint; the last one holds the model for use.

    Every rank calls this: it is a barrier.
    """
    state = training_state(model, optimizer)
    if rank != 0:
        ray.train.report(figures)
        return
    folder = Path(tempfile.mkdtemp(prefix="dgr2-checkpoint-"))
    if final:
        save_model(model, folder / "final", tokenizer, state["weights"])
    write_checkpoint(folder, state, phase, step)
    ray.train.report(figures, checkpoint=ray.train.Checkpoint.from_directory(folder))
    for file in sorted(folder.rglob("*"), reverse=True):  # the report has copied it
        file.unlink() if file.is_file() else file.rmdir()
    folder.rmdir()


def save_memory(model: Qwen3ForCausalLM, config: RayConfig) -> None:
    """Apply ``ray.recompute_layers`` and ``ray.shard`` to a model with its weights."""
    if config.recompute_layers:
        model.activation_checkpointing_enable()
    if config.shard:
        shard(model)


def training_state(model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Whole ``weights`` and ``optimizer`` state. All workers must call it: sharded ones are gathered."""
    tied = bool(model.config.tie_word_embeddings)
    weights = {name: t for name, t in model.state_dict().items() if name != "lm_head.weight" or not tied}
    return {"weights": gathered(weights), "optimizer": gathered(optimizer.state_dict())}


def write_checkpoint(folder: Path, state: dict[str, Any], phase: int, step: int) -> None:
    """Weights as safetensors, optimizer state as tensors only, position as JSON."""
    save_file({name: t.contiguous() for name, t in state["weights"].items()}, folder / MODEL)
    torch.save(state["optimizer"], folder / STATE)
    (folder / "position.json").write_text(json.dumps({"phase": phase, "step": step}))


def read_checkpoint(checkpoint: ray.train.Checkpoint | None) -> dict[str, Any] | None:
    """What :func:`write_checkpoint` wrote, or None when there is no checkpoint yet."""
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as place:
        folder = Path(place)
        try:
            position = json.loads((folder / "position.json").read_text())
            weights = load_file(folder / MODEL)
            optimizer = torch.load(folder / STATE, weights_only=True, map_location="cpu")
        except (OSError, ValueError, RuntimeError) as error:
            raise StorageError(
                f"checkpoint {folder} is damaged ({error}): remove it to start the stage anew"
            ) from error
    if "lm_head.weight" not in weights:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return {**position, "model": weights, "optimizer": optimizer}
