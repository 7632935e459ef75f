"""Teacher workers: actors that score responses with the frozen AR teacher, and the group of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray.actor import ActorHandle

from dgr2.actors.pool import Group, Pool
from dgr2.config.schema import RolloutConfig
from dgr2.data.tokenizer import load_tokenizer
from dgr2.data.vocabulary import Vocabulary
from dgr2.models.backbone import load_model
from dgr2.rollout.chunks import chunks
from dgr2.rollout.teacher import Scores, require_same_tokenizer, score_responses


@dataclass(frozen=True)
class TeacherModel:
    """What a teacher worker is built from; the folders must be readable on every node.

    Attributes:
        model: Checkpoint folder.
        tokenizer: The teacher's own tokenizer folder.
        student_tokenizer: :func:`~dgr2.rollout.teacher.tokenizer_fingerprint` of the student's.
        candidates: Most candidates of a prompt.
    """

    model: Path
    tokenizer: Path
    student_tokenizer: str
    candidates: int


class TeacherWorker:
    """Inference only: no optimizer, and nothing that could go stale.

    Raises:
        ConfigError: the teacher's ids mean something else than the student's.
    """

    def __init__(self, spec: TeacherModel, threads: int) -> None:
        torch.set_num_threads(threads)
        tokenizer = load_tokenizer(spec.tokenizer)
        require_same_tokenizer(tokenizer, spec.student_tokenizer)
        self._vocabulary = Vocabulary.from_tokenizer(tokenizer, spec.candidates)
        self._model = load_model(spec.model)

    def score(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        top_k: int,
        micro_batch_size: int,
    ) -> list[Scores]:
        """See :func:`~dgr2.rollout.teacher.score_responses`."""
        return score_responses(self._model, prompts, responses, self._vocabulary, top_k, micro_batch_size)


class TeacherGroup(Group):
    """All teacher workers of a loop."""

    def __init__(self, spec: TeacherModel, config: RolloutConfig) -> None:
        actor = ray.remote(num_cpus=config.teacher_cpus, max_restarts=0, max_task_retries=0)(TeacherWorker)

        def make() -> Any:
            return actor.remote(spec, config.threads_per_worker)

        asked = {"CPU": config.teacher_cpus}
        self.pool = Pool(
            "teacher workers", make, config.teacher_workers, config.timeout_s, config.retries, asked
        )

    def ready(self) -> None:
        """Wait until every worker is up.

        Raises:
            RolloutDataError: a worker cannot be built, for instance since the tokenizers differ.
        """
        self.pool.arm()

    def score(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        top_k: int,
        chunk: int,
    ) -> list[Scores]:
        """Scores of all responses, in their order; a chunk is one forward of one worker.

        Raises:
            RolloutDataError, RolloutInfraError: see :meth:`dgr2.actors.pool.Pool.map`.
        """
        parts = zip(chunks(prompts, chunk), chunks(responses, chunk), strict=True)
        work = {f"teacher chunk {i}": (list(p), list(r)) for i, (p, r) in enumerate(parts)}

        def call(actor: ActorHandle, payload: tuple[list[list[int]], list[list[int]]]) -> ray.ObjectRef:
            return actor.score.remote(*payload, top_k, chunk)

        return [scores for part in self.pool.map(call, work) for scores in part]
