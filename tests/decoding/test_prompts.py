"""Prompts that begin alike are prefilled once, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import GRID, VOCABULARY, WORDS, tiny_model

from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy, ar_policy
from dgr2.decoding.prompts import SHORTEST, Prefilled, PromptStore, better_wait, shared_length
from dgr2.models.inference import InferenceModel

V = VOCABULARY
POLICIES = [
    ar_policy(),
    DecodePolicy("policy", 4, 0.3, "prefix", 0.3),
    DecodePolicy("policy", 4, 0.3, "prefix", 0.3, verify=True),
    DecodePolicy("native", 2, 0.3, fused=False),
]


def words(count, seed):
    return np.random.default_rng(seed).choice(WORDS, count).tolist()


def alike():
    """Prompts of two users, some equal, some going on differently, some shorter; and a stranger's."""
    one, two = words(40, 1), words(50, 2)
    return [
        one + words(5, 3), one + words(9, 4), two, two + words(3, 5), one + words(5, 3), two, words(20, 6),
        one, two[:33],
    ]  # fmt: skip


@pytest.fixture
def widths(monkeypatch):
    """Prompt tokens of every forward of several tokens a row."""
    seen = []
    forward = InferenceModel.forward

    def watched(self, slots, ids, positions, limits, first=0):
        seen.append(tuple(ids.shape))
        return forward(self, slots, ids, positions, limits, first)

    monkeypatch.setattr(InferenceModel, "forward", watched)
    return seen


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.name}-{p.block_size}-{p.verify}")
@pytest.mark.parametrize("batch_size", [1, 2, 4, 9])
@pytest.mark.parametrize("remember", [0, 2, 20])
def test_results_are_those_of_each_prompt_alone(policy, batch_size, remember):
    model, prompts = tiny_model(31, 9.0), alike()
    counts = [2 + i % 3 for i in range(len(prompts))]
    alone = [
        Decoder(model, V, GRID).decode([p], [n], policy)[0] for p, n in zip(prompts, counts, strict=True)
    ]
    decoder = Decoder(model, V, GRID)
    decoder.remember(remember)
    for _ in range(2):  # the second time with all that is remembered
        found = decoder.decode(prompts, counts, policy, batch_size)
        assert [t.tokens for t in found] == [t.tokens for t in alone]
        for a, b in zip(alone, found, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4) and a.forwards == b.forwards


def test_what_is_shared_is_computed_once(widths):
    """Eight rollouts of one prompt: one whole prefill, one token a row else; strangers wait for nobody."""
    prompt = words(60, 7)
    Decoder(tiny_model(32), V, GRID).decode([prompt] * 8, [4] * 8, ar_policy(), batch_size=8)
    assert widths[0] == (1, 60) and (7, 1) in widths[:3] and all(width == 1 for _, width in widths[1:])
    widths.clear()
    strangers = [words(60, seed) for seed in range(8)]
    Decoder(tiny_model(32), V, GRID).decode(strangers, [4] * 8, ar_policy(), batch_size=8)
    assert widths[0] == (8, 60)


def test_prompts_are_remembered_between_calls_until_the_weights_change(widths):
    history = words(45, 8)
    decoder = Decoder(tiny_model(33), V, GRID)
    decoder.remember(3)
    for expected in (50, 5):
        widths.clear()
        decoder.decode([history + words(5, expected)], [4], ar_policy())
        assert widths[0] == (1, expected)
    with torch.no_grad():
        decoder.model.model.embed_tokens.weight.mul_(2.0)
    decoder.refresh()
    widths.clear()
    (after,) = decoder.decode([history + words(5, 5)], [4], ar_policy())
    assert widths[0] == (1, 50)
    (fresh,) = Decoder(decoder.model, V, GRID).decode([history + words(5, 5)], [4], ar_policy())
    assert after.tokens == fresh.tokens


def test_shared_length_leaves_the_last_token():
    a = np.arange(40)
    assert shared_length(a, a) == 39
    assert shared_length(a, np.append(a, 7)) == 39
    assert shared_length(np.append(a, 7), a) == 40
    assert shared_length(a, np.where(a == 35, 0, a)) == 35
    assert shared_length(a[: SHORTEST + 1], a) == SHORTEST
    assert shared_length(a[:SHORTEST], a) == 0
    assert shared_length(a, np.where(a == 3, 0, a)) == 0


def test_the_prompt_unused_for_longest_goes():
    store, prompts = PromptStore(2), [np.arange(40) + i for i in range(3)]
    for ids in prompts[:2]:
        store.add(Prefilled(ids, torch.zeros(0), torch.zeros(0)))
    assert store.find(prompts[0])[1] == 39
    store.add(Prefilled(prompts[2], torch.zeros(0), torch.zeros(0)))
    assert [store.find(ids)[1] for ids in prompts] == [39, 0, 39]


def test_those_wait_that_gain_by_it():
    one, two = np.array(words(40, 1)), np.array(words(40, 2))
    longer = np.append(one, 5)
    assert better_wait([one, two, longer, one], [0, 0, 0, 0]) == [False, False, True, True]
    assert better_wait([one, longer], [0, 40]) == [False, False]
