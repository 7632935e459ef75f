"""Lossless decoding: the response of AR decoding, token for token or in distribution; and the readout."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts

from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy, ar_policy
from dgr2.decoding.replay import build_replay, replay_logprobs
from dgr2.errors import DataError

V = VOCABULARY


def verified(size=4, answer="prefix", **more):
    return DecodePolicy("policy", size, answer=answer, verify=True, **more)


@pytest.mark.parametrize("scale", [1.0, 12.0])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("answer", ["threshold", "prefix", "conflict"])
def test_greedy_output_is_that_of_ar_decoding(scale, size, fused, answer):
    decoder, prompts = Decoder(tiny_model(61, scale), V, GRID), tiny_prompts(200 // 8)
    counts = [2 + i % 3 for i in range(len(prompts))]
    ar = decoder.decode(prompts, counts, ar_policy(answer != "threshold"), batch_size=9)
    policy = verified(size, answer, fused=fused)
    found = decoder.decode(prompts, counts, policy, batch_size=7)
    for a, b in zip(ar, found, strict=True):
        assert a.tokens == b.tokens and a.answer_start == b.answer_start
        assert a.logprobs == pytest.approx(b.logprobs, abs=2e-4)
        # a block is drafted in one forward, and every other one settles a token at least
        assert b.forwards <= a.forwards + 2 * (1 + len(b.tokens) // size)


def test_a_right_draft_costs_no_forward_but_the_last_block_s():
    """A model that is sure of one token everywhere: its drafts are right."""
    model = tiny_model(62)
    with torch.no_grad():  # the first coordinate is large and positive everywhere, and word 11 reads it
        embedding = model.get_input_embeddings().weight
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(embedding))
        model.lm_head.weight[11, 0] = 10.0
        embedding[:, 0] = 100.0
    decoder, prompts = Decoder(model, V, GRID), tiny_prompts(4)
    plain = decoder.decode(prompts, [4] * 4, DecodePolicy("policy", 4, 0.01))
    lossless = decoder.decode(prompts, [4] * 4, verified(4, "threshold"))
    for a, b in zip(plain, lossless, strict=True):
        assert a.tokens == b.tokens and b.forwards == a.forwards + 1


def test_results_do_not_depend_on_the_batch():
    decoder, prompts = Decoder(tiny_model(63, 12.0), V, GRID), tiny_prompts(11)
    for policy in (verified(), verified(temperature=1.0)):
        one = decoder.decode(prompts, [4] * 11, policy, batch_size=1, seed=5)
        many = decoder.decode(prompts, [4] * 11, policy, batch_size=6, seed=5)
        assert [t.tokens for t in one] == [t.tokens for t in many]
        assert [t.forwards for t in one] == [t.forwards for t in many]


@pytest.mark.parametrize("answer", ["threshold", "prefix"])
def test_sampled_output_has_the_distribution_of_ar_sampling(answer):
    """Pairs of tokens, and whole answers: no farther from AR's draws than two sets of those are apart."""
    decoder, prompt = Decoder(tiny_model(64, 4.0), V, GRID), tiny_prompts(1)[0]
    n = 6000
    policy = verified(4, answer, temperature=1.0)
    drawn = decoder.decode([prompt] * n, [3] * n, policy, batch_size=200, seed=1)
    ar = ar_policy(answer != "threshold", temperature=1.0)
    one, two = (decoder.decode([prompt] * n, [3] * n, ar, batch_size=200, seed=s) for s in (2, 3))
    views = [lambda t: tuple(t.tokens[:2]), lambda t: tuple(t.tokens[1:3])]
    if answer != "threshold":
        views.append(lambda t: tuple(t.tokens[t.answer_start :]))
    for view in views:
        counts = [Counter(map(view, trajectories)) for trajectories in (drawn, one, two)]
        keys = set().union(*counts)
        same, other = (
            sum(abs(counts[a][k] - counts[b][k]) for k in keys) / (2 * n) for a, b in ((1, 2), (0, 1))
        )
        assert other < 1.5 * same + 0.01


def test_verified_trajectories_are_not_replayed():
    decoder, prompts = Decoder(tiny_model(65), V, GRID), tiny_prompts(2)
    replay = build_replay(decoder.decode(prompts, [4] * 2, verified()), V)
    with pytest.raises(DataError, match="no likelihood"):
        replay_logprobs(decoder.model, prompts, replay, V)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_readout_orders_the_candidates_by_the_anchor(size):
    model, prompts = tiny_model(66, 12.0), tiny_prompts(20)
    counts = [2 + i % 3 for i in range(20)]
    decoder = Decoder(model, V, GRID)
    policy = DecodePolicy("policy", size, 0.3, "prefix", 0.3, readout=True)
    slots = decoder.decode(prompts, counts, DecodePolicy("policy", size, 0.3, "prefix", 0.3), batch_size=6)
    found = decoder.decode(prompts, counts, policy, batch_size=6)
    for prompt, count, a, b in zip(prompts, counts, slots, found, strict=True):
        assert a.tokens[: a.answer_start] == b.tokens[: b.answer_start]
        answer = b.tokens[b.answer_start :]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + b.tokens[: b.answer_start]])).logits[0, -1]
        scores = logits[list(V.labels[:count])].softmax(-1)
        assert answer == [*np.array(V.labels)[scores.argsort(descending=True)].tolist(), V.eos]
        for found_scores in (a.scores, b.scores):
            assert found_scores == pytest.approx(scores.tolist(), abs=1e-5)
        assert b.forwards_answer == 1 and a.tokens[a.answer_start] == answer[0]


def test_readout_of_ar_decoding_is_the_same_when_traces_are():
    decoder, prompts = Decoder(tiny_model(67, 12.0), V, GRID), tiny_prompts(12)
    ar = decoder.decode(prompts, [4] * 12, ar_policy(True, readout=True), batch_size=5)
    block = decoder.decode(
        prompts, [4] * 12, DecodePolicy("policy", 1, 0.3, "prefix", 0.3, readout=True), batch_size=5
    )
    assert [t.tokens for t in ar] == [t.tokens for t in block]


def test_rules_of_the_commit_give_permutations():
    decoder, prompts = Decoder(tiny_model(68), V, GRID), tiny_prompts(8)
    for answer, (commit, level) in product(
        ("prefix", "conflict"), (("entropy", 0.5), ("factor", 1.0), ("static", 2), ("left_to_right", 0.2))
    ):
        policy = DecodePolicy("policy", 4, level, answer, 0.2, commit=commit)
        for t in decoder.decode(prompts, [4] * 8, policy, batch_size=3):
            assert sorted(t.tokens[t.answer_start : -1]) == sorted(V.labels)
