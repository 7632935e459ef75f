"""Weights that travel: the same bytes on both ends, or an error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts

from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import ar_policy
from dgr2.errors import StorageError
from dgr2.rollout.checksum import checksum, verify
from dgr2.rollout.weights import export_weights, import_weights


def test_a_decoder_follows_the_weights_once_refreshed() -> None:
    torch.set_num_threads(1)
    prompts, policy = tiny_prompts(4), ar_policy()
    source, model = tiny_model(5, scale=20), tiny_model(6, scale=20)
    expected = Decoder(source, VOCABULARY, GRID).decode(prompts, [4] * 4, policy, 4)
    decoder = Decoder(model, VOCABULARY, GRID)
    assert decoder.decode(prompts, [4] * 4, policy, 4) != expected
    state = export_weights(source)
    for array in state.values():
        array.flags.writeable = False  # as they come out of an object store
    import_weights(model, state)
    decoder.refresh()
    assert decoder.decode(prompts, [4] * 4, policy, 4) == expected


def test_exported_weights_are_copies_and_tied_ones_appear_once() -> None:
    model = tiny_model(5)
    state = export_weights(model)
    before = checksum(state)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(1)
    assert checksum(state) == before
    assert "lm_head.weight" not in state and "model.embed_tokens.weight" in state


def test_a_checksum_sees_names_types_shapes_and_bytes() -> None:
    state = {"a": np.arange(6, dtype=np.float32), "b": np.zeros((0, 2), np.float32)}
    reference = checksum(state)
    assert checksum(dict(reversed(state.items()))) == reference
    changed = state["a"].copy()
    changed[3] = np.nextafter(changed[3], 9)
    others = [
        {**state, "a": changed},
        {**state, "a": state["a"].reshape(2, 3)},
        {**state, "a": state["a"].view(np.int32)},
        {"c": state["a"], "b": state["b"]},
    ]
    assert reference not in map(checksum, others)
    with pytest.raises(StorageError, match="version 3 arrived damaged"):
        verify(others[0], reference, "version 3")


def test_weights_of_another_model_leave_it_as_it_was() -> None:
    model = tiny_model(5)
    state = export_weights(model)
    before = checksum(state)
    name = next(reversed(state))
    for wrong in ({**state, "extra": state[name]}, {**state, name: np.zeros(3, np.float32)}):
        with pytest.raises(StorageError, match="do not fit"):
            import_weights(model, wrong)
    assert checksum(export_weights(model)) == before
