"""Checkpoints of finished stages, ready to decode."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from dgr2.config.schema import Config
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.trajectory import Trajectory
from dgr2.evaluation.answer import Answer, parse_answer
from dgr2.models.backbone import load_model
from dgr2.storage import RunFolder

OnDone = Callable[[int], None]
"""Called with the number of responses that have just been finished."""


class Engine:
    """A checkpoint ready to decode, and how evaluation calls it."""

    def __init__(self, decoder: Decoder, vocabulary: Vocabulary, config: Config) -> None:
        self.decoder = decoder
        self.vocabulary = vocabulary
        self.config = config

    def decode(
        self,
        prompts: Sequence[list[int]],
        counts: Sequence[int],
        policy: DecodePolicy,
        on_done: OnDone | None = None,
    ) -> list[Trajectory]:
        """Decode in batches of the configured size; results in the order of the prompts."""
        return self.decoder.decode(
            prompts,
            counts,
            policy,
            batch_size=self.config.decode.batch_size,
            on_done=on_done,
            seed=self.config.seed,
        )

    def parse(self, trajectory: Trajectory, candidates: int, native: bool) -> Answer:
        """The answer of a trajectory; a native one must have opened it with ``</think>``."""
        opened = None if native else trajectory.answer_start
        return parse_answer(trajectory.tokens, self.vocabulary, candidates, opened)


class Engines:
    """Engines of a run's stages; the one used last is kept."""

    def __init__(self, run: RunFolder, vocabulary: Vocabulary, config: Config) -> None:
        self._run, self._vocabulary, self._config = run, vocabulary, config
        self._loaded: tuple[str, Engine] | None = None

    def get(self, stage: str) -> Engine:
        """The engine of a stage's checkpoint."""
        if self._loaded is None or self._loaded[0] != stage:
            model = load_model(self._run.checkpoint(stage))
            decoder = Decoder(model, self._vocabulary, self._config.grid, self._config.cft.alignment)
            self._loaded = (stage, Engine(decoder, self._vocabulary, self._config))
        return self._loaded[1]

    def digest(self, stage: str) -> str:
        """Hash of a checkpoint's weights and configuration."""
        folder = self._run.checkpoint(stage)
        sha = hashlib.sha256()
        for path in sorted([*folder.glob("*.safetensors"), *folder.glob("config.json")]):
            sha.update(path.name.encode())
            sha.update(path.read_bytes())
        return sha.hexdigest()[:16]
