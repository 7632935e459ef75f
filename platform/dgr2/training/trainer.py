"""A training stage as a Ray Train run: placed, watched, resumed by name, its last model copied out."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchTrainer

from dgr2.config import Config, OptimConfig
from dgr2.errors import DGR2Error
from dgr2.storage import atomic_dir
from dgr2.training.board import ProgressBoard
from dgr2.training.session import require_capacity
from dgr2.training.worker import train_worker

OnPost = Callable[[str, int, dict[str, float]], None]


@dataclass(frozen=True)
class TrainJob:
    """What a stage trains.

    Attributes:
        kind: Name of the stage.
        name: Name of the Ray Train run; the same name under the same storage continues an interrupted run,
            so it holds the stage's fingerprint.
        data, tokenizer: Folders that every worker can read.
        init: Checkpoint folder to start from, or None.
        storage: Where Ray Train keeps resumable checkpoints.
        output: Where the finished Hugging Face checkpoint goes.
        worker: Train function.
        extra: What it needs beyond the common settings, such as actor handles.
        cpus: Logical CPUs of a worker; None takes ``ray.threads_per_worker``.
        callbacks: Told what the workers report, in Ray Train's controller.
        max_failures: Restarts of a failed worker group; None takes ``ray.max_failures``.
    """

    kind: str
    name: str
    data: Path
    tokenizer: Path
    init: Path | None
    storage: Path
    output: Path
    worker: Callable[[dict[str, Any]], None] = train_worker
    extra: dict[str, Any] = field(default_factory=dict)
    cpus: float | None = None
    callbacks: tuple[UserCallback, ...] = ()
    max_failures: int | None = None


def train(job: TrainJob, config: Config, on_post: OnPost | None = None) -> dict[str, float]:
    """Run (or continue) a training stage; returns rank 0's last figures.

    Args:
        on_post: Called with phase, step and figures of what rank 0 posts; without it there is no board.

    Raises:
        CapacityError: when the cluster could never place the workers.
        DGR2Error: when training failed; the message names the first cause.
    """
    settings = config.ray
    cpus = settings.threads_per_worker if job.cpus is None else job.cpus
    gpus = 1 if settings.use_gpu else 0
    restarts = settings.max_failures if job.max_failures is None else job.max_failures
    require_capacity(settings, settings.num_workers * cpus, settings.num_workers * gpus, f"stage {job.kind}")
    board = ProgressBoard.remote() if on_post else None
    trainer = TorchTrainer(
        job.worker,
        train_loop_config={
            "kind": job.kind,
            "config": asdict(config),
            "data": str(job.data),
            "tokenizer": str(job.tokenizer),
            "init": str(job.init) if job.init else "",
            "threads": settings.threads_per_worker,
            "board": board,
            **job.extra,
        },
        scaling_config=ScalingConfig(
            num_workers=settings.num_workers,
            use_gpu=settings.use_gpu,
            resources_per_worker={"CPU": cpus, **({"GPU": 1} if gpus else {})},
        ),
        run_config=RunConfig(
            name=job.name,
            storage_path=str(job.storage),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=restarts, controller_failure_limit=1),
            callbacks=list(job.callbacks),
        ),
    )
    try:
        result = _fit(trainer, lambda: _drain(board, on_post, settings.timeout_s))
    except ray.train.TrainingFailedError as error:
        raise DGR2Error(f"stage {job.kind} failed: {_first_cause(error)}") from error
    finally:
        if board is not None and ray.is_initialized():
            ray.kill(board)
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as place, atomic_dir(job.output) as folder:
        shutil.copytree(Path(place) / "final", folder, dirs_exist_ok=True)
    shutil.rmtree(job.storage, ignore_errors=True)  # resumable state of a finished stage
    return dict(result.metrics or {})


def _fit(trainer: TorchTrainer, meanwhile: Callable[[], None]) -> ray.train.Result:
    """Run ``trainer.fit`` in a thread of its own and call ``meanwhile`` twice a second and once at the end.

    In the main thread Ray would take Ctrl-C over and exit; this way it interrupts the wait, as everywhere.
    """
    outcome: list[ray.train.Result | BaseException] = []

    def run() -> None:
        try:
            outcome.append(trainer.fit())
        except BaseException as error:  # handed to the caller's thread
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.5)
        meanwhile()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _drain(board: ray.actor.ActorHandle | None, on_post: OnPost | None, timeout: float) -> None:
    if board is None or on_post is None:
        return
    for post in ray.get(board.take.remote(), timeout=timeout):
        on_post(*post)


def _first_cause(error: BaseException) -> str:
    """The first line of the innermost cause that says something."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        error = next(iter(failures.values()))
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__


def phase_totals(kind: str, config: Config) -> dict[str, OptimConfig]:
    """Phases of a stage and how each is optimised, in order."""
    if kind == "teacher":
        return {"midtrain": config.teacher.midtrain, "sft": config.teacher.sft}
    return {"cft": config.cft.optim}
