"""The references that benchmarks compare with compute the same as what they are compared with."""

from __future__ import annotations

import pytest
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts

from dgr2.benchmarks.decode import generate
from dgr2.benchmarks.replay import stepwise_logprobs
from dgr2.benchmarks.shapes import LABELS, Shape, find_shape
from dgr2.benchmarks.train import BLOCK, Batch, duplicated_loss, packed_loss
from dgr2.config.schema import CftConfig, Config, ModelConfig
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy, ar_policy
from dgr2.decoding.replay import build_replay, replay_logprobs
from dgr2.errors import ConfigError
from dgr2.evaluation.engine import Engine

V = VOCABULARY


def test_duplicated_layout_has_the_loss_and_gradient_of_the_packed_one():
    config = ModelConfig(hidden=32, layers=2, heads=4, kv_heads=2, mlp=48, context=256)
    model, vocabulary = Shape(config, 64).build(3)
    batch = Batch(vocabulary, 4, rows=3, prompt=2 * BLOCK, response=3 * BLOCK)
    batch.config = CftConfig(exclusivity=0.0, at_most_one=0.0, in_set=0.0)
    found = []
    for loss in (packed_loss, duplicated_loss):
        model.zero_grad()
        value = loss(model, batch)
        value.backward()
        found.append((float(value), model.model.layers[0].mlp.down_proj.weight.grad.clone()))
    (packed, gradient), (duplicated, other) = found
    assert packed == pytest.approx(duplicated, rel=1e-5)
    assert torch.allclose(gradient, other, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("answer", ["threshold", "prefix"])
def test_one_row_a_step_has_the_likelihood_and_gradient_of_the_packed_replay(answer):
    model, prompts = tiny_model(71, 8.0), tiny_prompts(6)
    policy = DecodePolicy("policy", 4, 0.3, answer, 0.3, fused=False, temperature=1.0)
    found = Decoder(model, V, GRID).decode(prompts, [4] * 6, policy, batch_size=3)
    replay = build_replay(found, V)
    packed = replay_logprobs(model, prompts, replay, V)
    stepwise = stepwise_logprobs(model, prompts, found, replay, V)
    assert torch.allclose(packed, stepwise, atol=1e-5)
    gradients = []
    for logprobs in (packed, stepwise):
        model.zero_grad()
        logprobs.sum().backward()
        gradients.append(model.get_input_embeddings().weight.grad.clone())
    assert torch.allclose(*gradients, atol=1e-4, rtol=1e-3)


def test_hugging_face_writes_what_our_ar_decoding_writes():
    config = Config(grid=GRID)
    config.data.candidates = 4
    for scale in (1.0, 12.0):
        decoder, prompts = Decoder(tiny_model(72, scale), V, GRID), tiny_prompts(8)
        ours = decoder.decode(prompts, [4] * 8, ar_policy(permutation=False), batch_size=4)
        assert generate(Engine(decoder, V, config), prompts) == [t.tokens for t in ours]


def test_shapes_are_found_by_name():
    assert find_shape("small").build(0)[1].labels[LABELS - 1] == 5 + LABELS - 1
    with pytest.raises(ConfigError, match="qwen3-0.6b"):
        find_shape("qwen")
