"""What the training stages have in common: a bar a phase, the metric log, Ray around it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ray.train import UserCallback

from dgr2.jobs.run import StageContext, current_fingerprint
from dgr2.training.session import ray_session
from dgr2.training.trainer import TrainJob, phase_totals, train


def run_training(
    context: StageContext,
    kind: str,
    init: Path | None,
    extra: dict[str, Any] | None = None,
    callbacks: tuple[UserCallback, ...] = (),
) -> dict[str, float]:
    """Train stage ``kind`` from ``init`` and leave its checkpoint in the run folder.

    Args:
        extra, callbacks: as in :class:`dgr2.training.trainer.TrainJob`.
    """
    run, config = context.run, context.config
    totals = phase_totals(kind, config)
    job = TrainJob(
        kind=kind,
        name=current_fingerprint(run, config, kind),
        data=run.data,
        tokenizer=run.tokenizer,
        init=init,
        storage=run.train(kind),
        output=run.checkpoint(kind),
        extra=extra or {},
        callbacks=callbacks,
    )
    with ray_session(config.ray), ExitStack() as stack:
        bars: dict[str, object] = {}
        shown: dict[str, int] = {}

        def on_post(phase: str, step: int, figures: dict[str, float]) -> None:
            if phase not in bars:
                stack.close()  # the bar of the phase before
                bars[phase] = stack.enter_context(
                    context.progress.task(f"{kind} {phase}", total=totals[phase].steps, done=step - 1)
                )
                shown[phase] = step - 1
            bars[phase].advance(step - shown[phase], loss=figures["loss"])  # type: ignore[attr-defined]
            shown[phase] = step
            context.metrics.log(f"{kind}/{phase}" if phase != kind else kind, step, figures)

        return train(job, config, on_post)
