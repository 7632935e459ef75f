"""Policy gradient: advantages, clipping, and a ratio of one at the start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts

from dgr2.config.schema import RlConfig
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.replay import build_replay, replay_logprobs
from dgr2.objectives.rl import group_advantages, policy_loss


def test_advantages_are_normalised_in_groups_and_zero_without_spread():
    a = group_advantages(np.array([[0.0, 1.0, 1.0, 2.0], [0.3, 0.3, 0.3, 0.3]]))
    assert a[0].mean() == pytest.approx(0) and a[0].std() == pytest.approx(1)
    assert not a[1].any()


def test_clipping_by_hand():
    config = RlConfig(clip_low=0.2, clip_high=0.28)
    new = torch.tensor([[0.5, -0.5], [0.5, -0.5]]).log_softmax(-1).mul(0) + torch.tensor(
        [[0.4, -0.4], [0.4, -0.4]]
    )
    old = torch.zeros(2, 2)
    decided = torch.ones(2, 2, dtype=torch.bool)
    loss, figures = policy_loss(new, old, torch.tensor([1.0, -1.0]), decided, config)
    up, down = float(np.exp(0.4)), float(np.exp(-0.4))
    expected = -(1.28 + down) + (up + 0.8)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert figures["clipped"] == 2


@pytest.mark.parametrize("answer", ["threshold", "prefix"])
def test_ratio_is_one_at_the_start_and_the_gradient_is_the_policy_gradient(answer):
    model, prompts = tiny_model(41, 6.0), tiny_prompts(8)
    policy = DecodePolicy("policy", 4, 0.3, answer, 0.3, temperature=1.0)
    found = Decoder(model, VOCABULARY, GRID).decode(prompts, [4] * 8, policy, batch_size=8)
    replay = build_replay(found, VOCABULARY)
    old = torch.zeros_like(replay.decided, dtype=torch.float32)
    for row, t in enumerate(found):
        old[row, : len(t.tokens)] = torch.tensor(t.logprobs)
    new = replay_logprobs(model, prompts, replay, VOCABULARY)
    advantages = torch.linspace(-1, 1, 8)
    loss, figures = policy_loss(new, old, advantages, replay.decided, RlConfig())
    count = int(replay.decided.sum())
    assert figures["ratio"] / count == pytest.approx(1.0, abs=1e-5)
    assert figures["clipped"] == 0 and figures["kl"] / count == pytest.approx(0.0, abs=1e-5)
    ours = torch.autograd.grad(loss, new, retain_graph=True)[0]
    torch.testing.assert_close(ours, -(advantages[:, None] * replay.decided), rtol=1e-4, atol=1e-5)
