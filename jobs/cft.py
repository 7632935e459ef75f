"""Conversion fine-tuning: the teacher's weights become a block-diffusion student that keeps its AR mode."""

from __future__ import annotations

from typing import Any

from ray.train import UserCallback

from dgr2.decoding.shipped import Shipped
from dgr2.jobs.run import StageContext
from dgr2.jobs.training_stage import run_training


def cft(
    context: StageContext, extra: dict[str, Any] | None = None, callbacks: tuple[UserCallback, ...] = ()
) -> dict[str, float]:
    """Convert the teacher's checkpoint; decoding parameters travel in the student's folder.

    Args:
        extra, callbacks: What a trial of a sweep adds to the training job.
    """
    figures = run_training(context, "cft", context.run.checkpoint("teacher"), extra, callbacks)
    Shipped.of(context.config).save(context.run.checkpoint("cft"))
    return figures
