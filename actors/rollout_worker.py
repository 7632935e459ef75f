"""Rollout workers: actors that decode with the student at a known weight version, and the group of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.actor import ActorHandle

from dgr2.actors.pool import Group, Pool
from dgr2.actors.weight_store import NONE, Weights
from dgr2.config.schema import GridConfig, RolloutConfig
from dgr2.data.tokenizer import load_tokenizer
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.trajectory import Trajectory
from dgr2.errors import StaleWeightsError
from dgr2.models.backbone import load_model
from dgr2.rollout.checksum import verify
from dgr2.rollout.chunks import chunk_seed, chunks
from dgr2.rollout.weights import import_weights


@dataclass(frozen=True)
class RolloutModel:
    """What a rollout worker is built from; the folders must be readable on every node.

    Attributes:
        model: Checkpoint folder: the shape of the student. Its weights are replaced before the first decode.
        tokenizer: Tokenizer folder.
        grid: Block grid of the student.
        alignment: ``in_place`` or ``shift``.
        candidates: Most candidates of a prompt.
    """

    model: Path
    tokenizer: Path
    grid: GridConfig
    alignment: str
    candidates: int


class RolloutWorker:
    """Decodes with the weights it was last given; refuses when others are asked for."""

    def __init__(self, spec: RolloutModel, threads: int) -> None:
        torch.set_num_threads(threads)
        vocabulary = Vocabulary.from_tokenizer(load_tokenizer(spec.tokenizer), spec.candidates)
        self._model = load_model(spec.model)
        self._decoder = Decoder(self._model, vocabulary, spec.grid, spec.alignment)
        self._version = NONE

    def version(self) -> int:
        """Version of the weights it holds, -1 when it was given none."""
        return self._version

    def load_weights(self, version: int, state: dict[str, np.ndarray], checksum: str) -> int:
        """Take a version of the weights.

        Raises:
            StorageError: they arrived damaged or fit another model; the worker then holds no version.
        """
        self._version = NONE
        verify(state, checksum, f"version {version} of the weights")
        import_weights(self._model, state)
        self._decoder.refresh()
        self._version = version
        return version

    def generate(
        self,
        version: int,
        prompts: Sequence[Sequence[int]],
        candidates: Sequence[int],
        policy: dict[str, Any],
        seed: int,
        batch_size: int,
    ) -> list[Trajectory]:
        """Decode prompts; draws depend on the seed and a prompt's place in the call only.

        Args:
            version: Weights to decode with.
            policy: ``DecodePolicy.record()``.

        Raises:
            StaleWeightsError: the worker holds another version.
        """
        if version != self._version:
            raise StaleWeightsError(
                f"rollout at version {version} asked of a worker that holds version {self._version}"
            )
        return self._decoder.decode(prompts, candidates, DecodePolicy(**policy), batch_size, seed=seed)


class RolloutGroup(Group):
    """All rollout workers of a loop."""

    def __init__(self, spec: RolloutModel, config: RolloutConfig) -> None:
        actor = ray.remote(num_cpus=config.cpus_per_worker, max_restarts=0, max_task_retries=0)(RolloutWorker)

        def make() -> Any:
            return actor.remote(spec, config.threads_per_worker)

        asked = {"CPU": config.cpus_per_worker}
        self.pool = Pool("rollout workers", make, config.workers, config.timeout_s, config.retries, asked)
        self.version = NONE

    def arm(self, weights: Weights) -> None:
        """Bring every worker to these weights; replacements get the same ones."""
        self.version = weights.version
        self.pool.arm(
            lambda actor: actor.load_weights.remote(weights.version, weights.state, weights.checksum)
        )

    def generate(
        self,
        key: Sequence[int],
        prompts: Sequence[Sequence[int]],
        candidates: Sequence[int],
        policy: DecodePolicy,
        seed: int,
        chunk: int,
    ) -> list[Trajectory]:
        """Trajectories of all prompts, in their order; the same ones whoever decodes which chunk.

        Args:
            key: Place in the run, such as (stage, step, attempt): another key draws other samples.
            seed: The run's seed.
            chunk: Prompts decoded together by one worker; it decides which draws a prompt gets.

        Raises:
            RolloutDataError, RolloutInfraError: see :meth:`dgr2.actors.pool.Pool.map`.
        """
        record, version = policy.record(), self.version
        work = {
            f"{_name(key)}, chunk {i}": (list(p), list(c), chunk_seed(seed, *key, i))
            for i, (p, c) in enumerate(zip(chunks(prompts, chunk), chunks(candidates, chunk), strict=True))
        }

        def call(actor: ActorHandle, payload: tuple[list[list[int]], list[int], int]) -> ray.ObjectRef:
            return actor.generate.remote(version, payload[0], payload[1], record, payload[2], chunk)

        return [trajectory for part in self.pool.map(call, work) for trajectory in part]


def _name(key: Sequence[int]) -> str:
    return f"rollout {'.'.join(map(str, key))}"
