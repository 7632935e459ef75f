"""The loss on validation lists while a stage trains: figures by which trials of a sweep can be compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from dgr2.config import Config, load_config
from dgr2.data.vocabulary import Vocabulary
from dgr2.training.loop import stream
from dgr2.training.tasks import Cft, Sums

STREAM = 9


class Validation:
    """CFT's loss on the same lists, under the same noise, with the same weights, whoever is measured.

    Args:
        config: Resolved configuration, plain. In a sweep it is the one that the trials start from, so that
            a trial does not win by weighting the loss down. ``tune.valid_lists`` is the number of lists.
    """

    def __init__(self, folder: Path, vocabulary: Vocabulary, config: dict[str, Any]) -> None:
        settings: Config = load_config(None, base=config, inputs=False)
        self._task = Cft(folder, vocabulary, settings, "valid")
        self._indices = list(range(min(settings.tune.valid_lists, self._task.size)))
        # step 1 of 1: the curriculum's last block size
        self._prepared = self._task.prepare(self._indices, 1, 1, stream(settings.seed, STREAM))
        self._denominator = self._task.denominator(self._indices)
        self._micro = settings.cft.optim.micro_batch_size

    @torch.no_grad()
    def figures(self, model: Qwen3ForCausalLM) -> Sums:
        """``valid_loss`` and its terms, averaged over response tokens; infinite for a model that diverged."""
        training = model.training
        model.eval()
        sums: Sums = {}
        for first in range(0, len(self._indices), self._micro):
            rows = slice(first, min(first + self._micro, len(self._indices)))
            for name, value in self._task.loss(model, self._indices, rows, self._prepared)[1].items():
                sums[f"valid_{name}"] = sums.get(f"valid_{name}", 0.0) + value / self._denominator
        model.train(training)
        return {name: math.inf if math.isnan(value) else value for name, value in sums.items()}
