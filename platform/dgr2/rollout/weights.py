"""Weights on their way from the trainer to the actors: out of a model as plain arrays, and back into one."""

from __future__ import annotations

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from dgr2.errors import StorageError
from dgr2.models.sharding import gathered
from dgr2.rollout.checksum import State, checksum

__all__ = ["State", "checksum", "export_weights", "import_weights"]


def export_weights(model: Qwen3ForCausalLM) -> dict[str, np.ndarray]:
    """fp32 copies of all parameters by name; a tied one appears once.

    All workers of a sharded model must call it.
    """
    return {name: gathered(p.detach()).float().cpu().numpy().copy() for name, p in model.named_parameters()}


def import_weights(model: Qwen3ForCausalLM, state: State) -> None:
    """Copy exported weights into a model of the same shape, in place.

    Raises:
        StorageError: when names or shapes differ; the model is left as it was.
    """
    parameters = dict(model.named_parameters())
    if parameters.keys() != state.keys():
        odd = sorted(parameters.keys() ^ state.keys())
        raise StorageError(f"weights do not fit the model: {odd[0]} and {len(odd) - 1} more have no match")
    for name, p in parameters.items():
        if tuple(p.shape) != state[name].shape:
            raise StorageError(
                f"weights do not fit the model: {name} is {state[name].shape}, not {tuple(p.shape)}"
            )
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(torch.from_numpy(state[name].copy()))  # what comes out of an object store is read-only
