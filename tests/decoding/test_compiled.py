"""Compiled forwards: the same results from six programs, whatever the shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts

from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy, ar_policy
from dgr2.errors import ConfigError
from dgr2.models.inference import InferenceModel

V = VOCABULARY
POLICIES = {
    "ar": ar_policy(permutation=True),
    "native": DecodePolicy("native", 4, 0.5, "threshold", 0.5),
    "lossless": DecodePolicy("policy", 4, 0.3, "conflict", 0.3, verify=True),
    "narrow": DecodePolicy("policy", 2, 0.3, "conflict", 0.3, fused=False),
    "sampled": DecodePolicy("policy", 4, 0.5, "prefix", 0.5, temperature=1.0),
}


def programs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.fixture(scope="module")
def compiled():
    """A decoder that compiled, and how many programs that took."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    decoder = Decoder(tiny_model(81, 9.0), V, GRID)
    decoder.compile()
    decoder.decode(tiny_prompts(6), [4] * 6, POLICIES["ar"], batch_size=6)
    yield decoder, programs()
    torch._dynamo.reset()


@pytest.mark.compiler
def test_six_programs_serve_every_shape(compiled):
    decoder, made = compiled
    assert made == 6
    ours, theirs = decoder._inference, InferenceModel(decoder.model, V, 6, decoder._inference.context)
    random = np.random.default_rng(0)
    for model in (ours, theirs):
        for cache in (*model.keys, *model.values):
            cache.zero_()
    for slots, width in (
        ([4], 1),
        ([0], 4),
        ([0, 1, 2], 1),
        ([0, 1, 2, 3, 4, 5], 8),
        ([5, 1], 11),
        ([1, 2, 3], 1),
    ):
        rows = len(slots)
        ids = random.integers(5, V.size, (rows, width))
        positions = np.arange(width) + random.integers(0, 3, (rows, 1))
        limits = np.maximum(positions + 1, random.integers(0, positions.max() + 2, ids.shape))
        first = width // 2
        found, expected = (model.forward(slots, ids, positions, limits, first) for model in (ours, theirs))
        assert found.shape == (rows, width - first, 32)
        assert torch.allclose(found, expected, atol=1e-5)
        for ours_cache, theirs_cache in zip(
            ours.keys + ours.values, theirs.keys + theirs.values, strict=True
        ):
            assert torch.allclose(ours_cache, theirs_cache, atol=1e-5)
    assert programs() == made


@pytest.mark.compiler
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_compiled_decoding_writes_the_same(compiled, name, batch_size):
    decoder, made = compiled
    prompts = tiny_prompts(9, 5)
    found = decoder.decode(prompts, [4] * 9, POLICIES[name], batch_size, seed=3)
    expected = Decoder(decoder.model, V, GRID).decode(prompts, [4] * 9, POLICIES[name], batch_size, seed=3)
    for a, b in zip(found, expected, strict=True):
        assert (a.tokens, a.steps, a.forwards) == (b.tokens, b.steps, b.forwards)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    assert programs() == made


def test_what_cannot_compile_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="no 'no-such-compiler': install one"):
        Decoder(tiny_model(82), V, GRID).compile()
