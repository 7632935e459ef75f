"""Reinforcement learning: groups of the student's own trajectories, rewarded by where the true item ended up.

A step: prompts whose target is among the candidates -> a group of trajectories each at version v (rollout
workers) -> rewards; groups without spread are replaced by fresh prompts -> one clipped policy-gradient update
on the trajectories' exact likelihood (Ray Train), which publishes version v + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from datasets import load_from_disk

from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.policy import native_policy, rollout_policy
from dgr2.decoding.shipped import Shipped
from dgr2.decoding.trajectory import Trajectory
from dgr2.evaluation.answer import parse_answer
from dgr2.jobs.online import OnlineLoop
from dgr2.jobs.run import StageContext
from dgr2.objectives.rewards import Outcome, total_reward
from dgr2.objectives.rl import group_advantages
from dgr2.training.loop import stream
from dgr2.training.online import STREAMS, micro_batches


@dataclass
class Group:
    """Rollouts of one prompt and what they earned."""

    prompt: list[int]
    trajectories: list[Trajectory]
    rewards: np.ndarray

    @property
    def informative(self) -> bool:
        """Whether the rewards differ: otherwise there is nothing to learn from the group."""
        return float(self.rewards.std()) > 1e-6


def rl(context: StageContext) -> dict[str, float]:
    """Train the distilled student on the re-ranking reward."""
    run, config = context.run, context.config
    settings, optim = config.rl, config.rl.optim
    lists = load_from_disk(str(run.data / "instances" / "reward"))
    prompts, candidates, targets = lists["prompt_ids"][:], lists["candidates"][:], lists["target"][:]
    weights = dict(zip(settings.rewards, settings.reward_weights, strict=True))
    decode = native_policy if settings.decode == "native" else rollout_policy
    policy = decode(config.decode, config.grid, settings.temperature)
    figures: dict[str, float] = {}
    with OnlineLoop(context, "rl", "rl", run.checkpoint("opd")) as loop:

        def roll_out(step: int, attempt: int, wanted: int) -> list[Group]:
            random = stream(config.seed, STREAMS["rl"], 1, step, attempt)
            chosen = random.choice(len(prompts), size=min(wanted, len(prompts)), replace=False).tolist()
            asked = [prompts[i] for i in chosen for _ in range(settings.group)]
            counts = [len(candidates[i]) for i in chosen for _ in range(settings.group)]
            found = loop.rollouts((step, attempt), asked, counts, policy, optim.micro_batch_size)
            groups = []
            for place, i in enumerate(chosen):
                own = found[place * settings.group : (place + 1) * settings.group]
                target = candidates[i].index(targets[i])
                earned = [total_reward(outcome(t, target, loop.vocabulary), weights) for t in own]
                groups.append(Group(prompts[i], own, np.array(earned)))
            return groups

        for step in loop.steps():
            wanted = optim.batch_size // settings.group
            drawn: list[Group] = []
            kept: list[Group] = []
            for attempt in range(1 + settings.refills):
                if len(kept) < wanted:
                    fresh = roll_out(step, attempt, wanted - len(kept))
                    drawn += fresh
                    kept += [g for g in fresh if g.informative]
            trajectories = [t for g in kept for t in g.trajectories]
            advantages = (
                group_advantages(np.stack([g.rewards for g in kept])).ravel().tolist() if kept else []
            )
            asked = [g.prompt for g in kept for _ in g.trajectories]
            micro = micro_batches(asked, trajectories, optim.micro_batch_size, advantages=advantages)
            decided = sum(t.forced.count(False) for t in trajectories)
            figures = loop.describe([t for g in drawn for t in g.trajectories]) | {
                "reward": float(np.mean([g.rewards for g in drawn])),
                "informative": len([g for g in drawn if g.informative]) / len(drawn),
            }
            loop.submit(step, micro, float(decided), figures)
    Shipped.of(config).save(run.checkpoint("rl"))
    return figures


def outcome(trajectory: Trajectory, target: int, vocabulary: Vocabulary) -> Outcome:
    """A trajectory as the rewards see it.

    Where the policy opened the answer, the ranking counts, but the format does not hold: else nothing would
    keep the student from leaving its trace open.
    """
    answer = parse_answer(trajectory.tokens, vocabulary, trajectory.candidates, trajectory.answer_start)
    closed = vocabulary.think_end in trajectory.tokens
    return Outcome(answer.ranking, answer.valid and closed, target)
