"""Replay gives the log-probabilities that the decoder recorded."""

from __future__ import annotations

import pytest
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts

from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.replay import build_replay, replay_logprobs
from dgr2.errors import DataError

V = VOCABULARY


@torch.no_grad()
@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("answer", ["threshold", "prefix", "conflict"])
@pytest.mark.parametrize("commit, level", [("threshold", 0.2), ("entropy", 1.0), ("static", 2)])
def test_replay_equals_the_record(scale, size, fused, answer, commit, level):
    model, prompts = tiny_model(11, scale), tiny_prompts(10)
    policy = DecodePolicy("policy", size, level, answer, 0.3, fused=fused, temperature=1.0, commit=commit)
    counts = [2 + i % 3 for i in range(10)]
    found = Decoder(model, V, GRID).decode(prompts, counts, policy, batch_size=4, seed=5)
    again = replay_logprobs(model, prompts, build_replay(found, V), V)
    for row, t in enumerate(found):
        assert again[row, : len(t.tokens)].tolist() == pytest.approx(t.logprobs, abs=1e-5)
        assert not again[row, len(t.tokens) :].any()
    assert sum(p != 0 for t in found for p in t.logprobs) > 20


def test_replay_is_differentiable_at_every_decision():
    model, prompts = tiny_model(12), tiny_prompts(4)
    policy = DecodePolicy("policy", 4, 0.2, "prefix", 0.3, temperature=1.0)
    found = Decoder(model, V, GRID).decode(prompts, [4] * 4, policy, batch_size=4)
    replay_logprobs(model, prompts, build_replay(found, V), V).sum().backward()
    grad = model.get_input_embeddings().weight.grad
    assert torch.isfinite(grad).all() and grad.abs().sum() > 0


def test_mixed_policies_are_refused():
    decoder, prompts = Decoder(tiny_model(13), V, GRID), tiny_prompts(2)
    one = decoder.decode(prompts[:1], [4], DecodePolicy("policy", 4, 0.2))
    two = decoder.decode(prompts[1:], [4], DecodePolicy("policy", 4, 0.3))
    with pytest.raises(DataError, match="different"):
        build_replay(one + two, V)
