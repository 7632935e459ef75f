"""What holds for any grid, any mix of prompts, any order of arrival, any policy."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCABULARY, WORDS, tiny_model

from dgr2.config.schema import GridConfig
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import ANSWER_POLICIES, DecodePolicy, ar_policy
from dgr2.decoding.replay import build_replay, replay_logprobs
from dgr2.models.packed import packed_mask

V = VOCABULARY
EXAMPLES = settings(max_examples=120, deadline=None, derandomize=True)
LEVELS = {
    "threshold": [0.0, 0.3, 0.9],
    "left_to_right": [0.3, 0.9],
    "entropy": [0.5, 3.0],
    "factor": [1.0, 4.0],
    "static": [1.0, 2.0],
}

grids = st.builds(GridConfig, block_size=st.sampled_from([1, 2, 4, 6, 8]), trace_blocks=st.integers(1, 3))
prompts = st.lists(
    st.tuples(st.lists(st.sampled_from(WORDS.tolist()), min_size=1, max_size=14), st.integers(2, 4)),
    min_size=1,
    max_size=7,
)


@st.composite
def policies(draw, size, **more):
    """A block policy on a grid of blocks of ``size``, also by finer blocks."""
    commit = draw(st.sampled_from(sorted(LEVELS)))
    level = st.sampled_from(LEVELS[commit])
    answer = draw(st.sampled_from(ANSWER_POLICIES))
    answer_level = st.sampled_from([0.1, 0.6]) if answer != "threshold" else level
    block_size = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    return DecodePolicy("policy", block_size, draw(level), answer, draw(answer_level), commit=commit,
                        fused=draw(st.booleans()), **more)  # fmt: skip


@lru_cache(maxsize=4)
def model(seed):
    return tiny_model(seed, 9.0)


def decode(grid, requests, policy, batch_size, seed=0, weights=71):
    decoder = Decoder(model(weights), V, grid)
    return decoder.decode([p for p, _ in requests], [n for _, n in requests], policy, batch_size, seed=seed)


@EXAMPLES
@given(st.data(), grids, prompts, st.integers(2, 5))
def test_a_result_depends_on_its_request_only(data, grid, requests, batch_size):
    """Greedy: neither on who shares the forwards, nor on when it arrives."""
    policy = data.draw(policies(grid.block_size))
    order = data.draw(st.permutations(range(len(requests))))
    alone = [decode(grid, [request], policy, 1)[0] for request in requests]
    together = decode(grid, [requests[i] for i in order], policy, batch_size)
    for place, index in enumerate(order):
        a, b = alone[index], together[place]
        assert (a.tokens, a.steps, a.forced, a.forwards) == (b.tokens, b.steps, b.forced, b.forwards)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@EXAMPLES
@given(st.data(), grids, prompts)
def test_verified_decoding_is_ar_decoding(data, grid, requests):
    policy = data.draw(policies(grid.block_size, verify=True))
    found = decode(grid, requests, policy, 4)
    ar = decode(grid, requests, ar_policy(policy.rules), 4)
    assert [t.tokens for t in found] == [t.tokens for t in ar]


@EXAMPLES
@given(st.data(), grids, prompts, st.integers(0, 9))
def test_the_replayed_likelihood_is_the_recorded_one(data, grid, requests, seed):
    policy = data.draw(policies(grid.block_size, temperature=1.0))
    found = decode(grid, requests, policy, 4, seed)
    replay = build_replay(found, V)
    with torch.no_grad():
        logp = replay_logprobs(model(71), [p for p, _ in requests], replay, V)
    for row, t in enumerate(found):
        decided = ~np.array(t.forced)
        replayed = logp[row, : len(t.tokens)].numpy()[decided]
        assert replayed == pytest.approx(np.array(t.logprobs)[decided], abs=2e-4)


@EXAMPLES
@given(grids, prompts, st.booleans())
def test_rules_make_a_permutation_and_every_token_is_accounted_for(grid, requests, conflict):
    policy = DecodePolicy("policy", grid.block_size, 0.3, "conflict" if conflict else "prefix", 0.2)
    for (_, count), t in zip(requests, decode(grid, requests, policy, 3), strict=True):
        assert sorted(t.tokens[t.answer_start : -1]) == sorted(V.labels[:count]) and t.tokens[-1] == V.eos
        assert t.answer_start % grid.block_size == 0
        assert len(t.tokens) == len(t.steps) == len(t.logprobs) == len(t.forced)
        assert t.forwards_answer <= t.forwards <= 2 * len(t.tokens) + 1


@EXAMPLES
@given(st.integers(0, 5), st.integers(1, 4), st.integers(0, 3), st.sampled_from([1, 2, 3, 4]))
def test_packed_mask_is_its_definition(prompt, blocks, copies, size):
    """Each pair of places by the sentence that defines it."""
    response = blocks * size
    found = packed_mask(prompt, response, copies, size)

    def place(column):  # copy (0 is clean) and position in the response, negative in the prompt
        behind = column - prompt
        return (0, behind) if behind < response else (behind // response, behind % response)

    for query in range(len(found)):
        for key in range(len(found)):
            (q_copy, q), (k_copy, k) = place(query), place(key)
            if q_copy == 0:
                seen = k_copy == 0 and k <= q
            elif k_copy == 0:
                seen = k // size < q // size
            else:
                seen = k_copy == q_copy and k // size == q // size
            assert bool(found[query, key]) == seen
