"""On-policy distillation: the student decodes, the frozen teacher scores, the student follows.

A step: prompts -> the student's trajectories at version v (rollout workers) -> the teacher's top-k
log-probabilities of each response in one causal pass (teacher workers) -> the student's update at the states
it visited (Ray Train), which publishes version v + 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from datasets import load_from_disk

from dgr2.decoding.policy import DecodePolicy, ar_policy, rollout_policy, shipped_policy
from dgr2.decoding.shipped import Shipped
from dgr2.decoding.trajectory import Trajectory
from dgr2.jobs.online import OnlineLoop
from dgr2.jobs.run import StageContext
from dgr2.training.loop import step_indices, stream
from dgr2.training.online import STREAMS, micro_batches


def opd(context: StageContext) -> dict[str, float]:
    """Distil the teacher into the converted student on the student's own trajectories."""
    return distil(context, "opd", on_policy=True)


def opd_off_policy(context: StageContext) -> dict[str, float]:
    """The comparison: as many updates, on trajectories that the teacher wrote."""
    if not context.config.opd.compare_off_policy:
        return {}
    return distil(context, "opd_off_policy", on_policy=False)


def distil(context: StageContext, stage: str, on_policy: bool) -> dict[str, float]:
    """Run the distillation loop from the CFT student; its checkpoint goes by the stage's name."""
    run, config = context.run, context.config
    settings, optim = config.opd, config.opd.optim
    lists = load_from_disk(str(run.data / "instances" / "train"))
    prompts, candidates = lists["prompt_ids"][:], lists["candidates"][:]
    teacher = run.checkpoint("teacher")
    deployed = shipped_policy(replace(config.decode, readout=False), config.grid)
    if settings.temperature:
        deployed = rollout_policy(config.decode, config.grid, settings.temperature)
    policy = deployed if on_policy else ar_policy(True, settings.temperature)
    figures: dict[str, float] = {}
    with OnlineLoop(
        context, "opd", stage, run.checkpoint("cft"), teacher, None if on_policy else teacher
    ) as loop:
        for step in loop.steps():
            indices = step_indices(len(prompts), optim.batch_size, step, config.seed, STREAMS["opd"])
            asked = [prompts[i] for i in indices]
            counts = [len(candidates[i]) for i in indices]
            trajectories = loop.rollouts((step,), asked, counts, policy, optim.micro_batch_size)
            if not on_policy:
                random = stream(config.seed, STREAMS["opd"], 3, step)
                trajectories = [shuffled_steps(t, deployed, random) for t in trajectories]
            scores = loop.score(asked, trajectories, settings.top_k, optim.micro_batch_size)
            micro = micro_batches(asked, trajectories, optim.micro_batch_size, scores=scores)
            figures = loop.describe(trajectories)
            loop.submit(step, micro, float(sum(len(t.tokens) for t in trajectories)), figures)
    Shipped.of(config).save(run.checkpoint(stage))
    return figures


def shuffled_steps(trajectory: Trajectory, policy: DecodePolicy, random: np.random.Generator) -> Trajectory:
    """An AR response as if its blocks had been decoded in a random order, one token a step."""
    size = policy.block_size
    steps: list[int] = []
    for start in range(0, len(trajectory.tokens), size):
        count = min(size, len(trajectory.tokens) - start)
        steps += [0, *(1 + random.permutation(count - 1)).tolist()]
    return replace(trajectory, steps=steps, policy=policy.record())
