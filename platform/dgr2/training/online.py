"""The student's side of the online loops: a long-lived Ray Train worker group that pulls batches of rollouts.

A batch is cut into micro-batches keyed by (step, chunk); micro-batch i belongs to rank i modulo the world
size, and every gradient is divided by the batch's one global denominator. After its update rank 0 publishes
the next weight version; the controller waits for it before it rolls out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.train
import torch
from torch import Tensor
from transformers import AutoTokenizer, Qwen3ForCausalLM

from dgr2.config import Config, OptimConfig, load_config
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.replay import build_replay, replay_logprobs
from dgr2.decoding.trajectory import Trajectory
from dgr2.errors import StaleWeightsError
from dgr2.models.backbone import hidden_states, load_model
from dgr2.models.sharding import is_sharded, load_optimizer
from dgr2.objectives.cft import Noise, set_terms
from dgr2.objectives.listwise import listwise_loss
from dgr2.objectives.opd import TeacherScores, draw_states, opd_loss, pack_states
from dgr2.objectives.rl import policy_loss
from dgr2.rollout.weights import checksum, export_weights
from dgr2.training.device import take_device
from dgr2.training.loop import (
    clip_gradients,
    learning_rate,
    make_optimizer,
    stream,
    sum_figures,
    sum_gradients,
)
from dgr2.training.memory import keep_freed_memory
from dgr2.training.tasks import Sums
from dgr2.training.worker import read_checkpoint, report, save_memory

STREAMS = {"opd": 11, "rl": 12}


@dataclass
class MicroBatch:
    """Rollouts that go through the student together.

    Attributes:
        scores: The teacher's ``(ids, top, tail)`` of each response (OPD).
        advantages: One a rollout (RL).
    """

    prompts: list[list[int]]
    trajectories: list[Trajectory]
    scores: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)


@dataclass
class OnlineBatch:
    """All rollouts of a step, decoded by weights of ``version``.

    Attributes:
        tokens: Global denominator: response tokens (OPD) or decided tokens (RL) of the whole step.
    """

    version: int
    micro: list[MicroBatch]
    tokens: float


def online_optim(kind: str, config: Config) -> OptimConfig:
    """How the student of loop ``opd`` or ``rl`` is optimised."""
    return config.opd.optim if kind == "opd" else config.rl.optim


def online_worker(job: dict[str, Any]) -> None:
    """Train function of the online loops.

    Args:
        job: ``kind`` (``opd`` or ``rl``), ``config``, ``tokenizer``, ``init``, ``threads``, ``queues`` (one a
            rank) and ``store`` (weight store).
    """
    keep_freed_memory()
    torch.set_num_threads(int(job["threads"]))
    config: Config = load_config(None, base=job["config"], inputs=False)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    tokenizer = AutoTokenizer.from_pretrained(job["tokenizer"], local_files_only=True)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, config.data.candidates)
    optim, timeout = online_optim(job["kind"], config), config.rollout.timeout_s
    model = load_model(Path(job["init"])).to(take_device(config.ray.use_gpu))
    start, resumed = 0, read_checkpoint(ray.train.get_checkpoint())
    if resumed:
        start = resumed["step"]
        model.load_state_dict(resumed["model"])
        model.tie_weights()
    save_memory(model, config.ray)
    optimizer = make_optimizer(model, optim)
    if resumed:
        load_optimizer(optimizer, resumed["optimizer"])

    def publish(version: int, figures: Sums) -> None:
        state = export_weights(model) if rank == 0 or config.ray.shard else {}
        if rank == 0:
            published = job["store"].publish.remote(version, ray.put(state), checksum(state), figures)
            ray.get(published, timeout=timeout)

    learner = Learner(job["kind"], model, optimizer, vocabulary, config, rank, world)
    publish(start, {})
    for step in range(start, optim.steps):
        batch: OnlineBatch = ray.get(job["queues"][rank].get.remote(timeout), timeout=2 * timeout)
        if batch.version != step:
            raise StaleWeightsError(f"batch of weight version {batch.version} arrived at step {step}")
        figures = learner.update(batch, step)
        done = step + 1
        if done % optim.checkpoint_every == 0 or done == optim.steps:
            report(model, optimizer, 0, done, figures, rank, done == optim.steps, tokenizer)
        publish(done, figures)


class Learner:
    """One rank's update on its share of a batch."""

    def __init__(
        self,
        kind: str,
        model: Qwen3ForCausalLM,
        optimizer: torch.optim.Optimizer,
        vocabulary: Vocabulary,
        config: Config,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.kind, self.model, self.optimizer = kind, model, optimizer
        self.vocabulary, self.config = vocabulary, config
        self.rank, self.world = rank, world
        self.shift = config.cft.alignment == "shift"

    def update(self, batch: OnlineBatch, step: int) -> Sums:
        """Optimizer steps on one batch; returns the figures of the last one, averaged over tokens."""
        optim = online_optim(self.kind, self.config)
        figures: Sums = {}
        self.model.train()
        for _ in range(self.config.rl.updates if self.kind == "rl" else 1):
            self.optimizer.zero_grad(set_to_none=True)
            figures = {}
            for first in range(0, len(batch.micro), self.world):
                index, weight = first + self.rank, 1.0
                if index >= len(batch.micro):  # others still have one
                    if not is_sharded(self.model):
                        continue
                    index, weight = first, 0.0  # all must compute together
                loss, sums = self._loss(batch.micro[index], step, index)
                (weight * loss / batch.tokens).backward()
                for name, value in {"loss": loss.item(), **sums}.items():
                    figures[name] = figures.get(name, 0.0) + weight * value / batch.tokens
            if self.world > 1:
                sum_gradients(self.model)
                figures = sum_figures(figures)
            norm = clip_gradients(self.model, optim.clip, step)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(optim, step)
            self.optimizer.step()
            figures |= {"grad_norm": norm, "learning_rate": learning_rate(optim, step)}
        self.model.eval()
        return figures

    def _loss(self, micro: MicroBatch, step: int, index: int) -> tuple[Tensor, Sums]:
        replay = build_replay(micro.trajectories, self.vocabulary)
        if self.kind == "rl":
            old = torch.zeros(replay.decided.shape)
            for row, t in enumerate(micro.trajectories):
                old[row, : len(t.tokens)] = torch.tensor(t.logprobs)
            temperature = self.config.rl.temperature
            new = replay_logprobs(self.model, micro.prompts, replay, self.vocabulary, self.shift, temperature)
            return policy_loss(new, old, torch.tensor(micro.advantages), replay.decided, self.config.rl)
        random = stream(self.config.seed, STREAMS["opd"], step, index)
        states = draw_states(replay, self.config.opd.copies, random, self.config.opd.first_state_share)
        scores = TeacherScores.collate(micro.scores, replay.clean.shape[1])
        rows = pack_states(micro.prompts, replay, states, self.vocabulary)
        hidden = hidden_states(self.model, rows)
        loss, figures = opd_loss(
            self.model, hidden, rows, micro.trajectories, replay, scores, states, self.vocabulary,
            self.config.opd, self.shift,
        )  # fmt: skip
        opd = self.config.opd
        opened = torch.tensor(
            [replay.clean.shape[1] if t.answer_start is None else t.answer_start for t in micro.trajectories]
        )
        counts = torch.tensor([t.candidates for t in micro.trajectories])
        # CFT's set terms at the visited states, against the identifiers that the student placed there
        sets = set_terms(
            self.model, hidden, rows, replay.clean, Noise(states, states.float()), opened, counts,
            replay.block_size, self.config.cft, self.vocabulary, self.shift,
        ) / len(states)  # fmt: skip
        # at its anchor the student learns the order that it wrote slot by slot
        order = listwise_loss(self.model, hidden, rows, replay.clean, opened, counts, self.vocabulary)
        figures |= {"sets": sets.item(), "listwise": order.item()}
        return loss + opd.set_weight * sets + opd.listwise_weight * order, figures


def micro_batches(
    prompts: Sequence[list[int]],
    trajectories: Sequence[Trajectory],
    size: int,
    scores: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]] = (),
    advantages: Sequence[float] = (),
) -> list[MicroBatch]:
    """Cut a step's rollouts into micro-batches, in order."""
    return [
        MicroBatch(
            list(prompts[i : i + size]),
            list(trajectories[i : i + size]),
            list(scores[i : i + size]),
            list(advantages[i : i + size]),
        )
        for i in range(0, len(prompts), size)
    ]
