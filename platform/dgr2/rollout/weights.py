"""Weights on their way from the trainer to the actors: plain arrays, with a checksum for both ends."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from dgr2.errors import StorageError

State = Mapping[str, np.ndarray]


def export_weights(model: Qwen3ForCausalLM) -> dict[str, np.ndarray]:
    """fp32 copies of all parameters by name; a tied one appears once."""
    return {name: p.detach().float().cpu().numpy().copy() for name, p in model.named_parameters()}


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


def checksum(state: State) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = np.ascontiguousarray(state[name])
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.view(np.uint8).reshape(-1) if array.size else b"")
    return digest.hexdigest()


def verify(state: State, expected: str, what: str) -> None:
    """Refuse weights that are not those that were sent.

    Raises:
        StorageError: naming both checksums.
    """
    found = checksum(state)
    if found != expected:
        raise StorageError(f"{what} arrived damaged: checksum {found[:12]}, not {expected[:12]}")
