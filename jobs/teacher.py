"""The AR teacher: mid-training on item cards and histories, then SFT on reasoning traces."""

from __future__ import annotations

from dgr2.jobs.run import StageContext
from dgr2.jobs.training_stage import run_training


def teacher(context: StageContext) -> dict[str, float]:
    """Train the teacher from ``model.init`` or from scratch."""
    return run_training(context, "teacher", None)
