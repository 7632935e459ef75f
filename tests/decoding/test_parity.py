"""Decoding gives the same tokens whichever way it is computed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts

from dgr2.decoding.block_row import BlockRow
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy, ar_policy, restricted
from dgr2.errors import ConfigError, DataError
from dgr2.models.backbone import suppress

V = VOCABULARY
SCALES = [1.0, 12.0]  # nearly uniform, and sharp, distributions


def block_policy(size=4, answer="threshold", threshold=0.3, **more):
    return DecodePolicy("policy", size, threshold, answer, answer_threshold=0.3, **more)


def tokens(trajectories):
    return [t.tokens for t in trajectories]


@torch.no_grad()
def reference_ar(model, prompt, candidates, permutation):
    """Uncached greedy decoding with Hugging Face's forward, one token at a time."""
    labels, out, start = list(V.labels[:candidates]), [], None
    limit = GRID.trace_blocks * GRID.block_size + 8
    while len(out) < limit:
        boundary = len(out) % GRID.block_size == 0
        if (
            start is None
            and boundary
            and (V.think_end in out or (permutation and len(out) >= GRID.trace_blocks * GRID.block_size))
        ):
            start = len(out)
        logits = suppress(model(input_ids=torch.tensor([prompt + out])).logits[0, -1], V)
        if permutation and start is not None:
            left = [t for t in labels if t not in out[start:]]
            out.append(max(left, key=lambda t: float(logits[t])) if left else V.eos)
        elif permutation and V.think_end in out:
            out.append(V.fill)
        else:
            if permutation:
                logits[V.eos] = float("-inf")
            out.append(int(logits.argmax()))
        if out[-1] == V.eos:
            break
    return out


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("permutation", [False, True])
def test_ar_decoding_equals_uncached_hugging_face(scale, permutation):
    model, prompts = tiny_model(1, scale), tiny_prompts(12)
    found = Decoder(model, V, GRID).decode(prompts, [4] * 12, ar_policy(permutation), batch_size=4)
    assert tokens(found) == [reference_ar(model, p, 4, permutation) for p in prompts]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("permutation", [False, True])
def test_blocks_of_one_equal_ar_decoding(scale, permutation):
    decoder, prompts = Decoder(tiny_model(2, scale), V, GRID), tiny_prompts(16)
    ar = decoder.decode(prompts, [4] * 16, ar_policy(permutation), batch_size=5)
    answer = "prefix" if permutation else "threshold"
    block = decoder.decode(prompts, [4] * 16, block_policy(1, answer), batch_size=5)
    assert tokens(block) == tokens(ar)
    for a, b in zip(ar, block, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("answer", ["threshold", "prefix"])
def test_batch_of_many_equals_batch_of_one(size, fused, answer):
    decoder, prompts = Decoder(tiny_model(3, 12.0), V, GRID), tiny_prompts(14)
    counts = [2 + i % 3 for i in range(14)]
    policy = block_policy(size, answer, fused=fused)
    one = decoder.decode(prompts, counts, policy, batch_size=1)
    many = decoder.decode(prompts, counts, policy, batch_size=6)
    backwards = decoder.decode(prompts[::-1], counts[::-1], policy, batch_size=6)[::-1]
    assert tokens(one) == tokens(many) == tokens(backwards)
    assert [t.steps for t in one] == [t.steps for t in many]


@torch.no_grad()
@pytest.mark.parametrize("fused", [True, False])
def test_cached_decoding_equals_uncached(fused):
    """Every forward is computed anew, without a cache, by Hugging Face's model under an explicit mask."""
    model, prompts = tiny_model(4, 12.0), tiny_prompts(8)
    policy = block_policy(4, "prefix", fused=fused)
    found = Decoder(model, V, GRID).decode(prompts, [4] * 8, policy, batch_size=8)
    for index, prompt in enumerate(prompts):
        row = BlockRow(index, prompt, 4, policy, V, GRID, 0)
        done: list[int] = []
        while not row.done:
            clean, noisy = row.inputs()
            done = prompt + row.trajectory.tokens
            ids = torch.tensor([done + noisy])
            length, known = ids.shape[1], len(done)
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            mask[known:, known:] = True
            hidden = model.model(
                input_ids=ids, attention_mask={"full_attention": mask[None, None]}, use_cache=False
            )
            logp = torch.log_softmax(suppress(model.lm_head(hidden.last_hidden_state[0]), V), -1).numpy()
            row.advance(logp[known - 1] if clean else None, logp[known:] if noisy else None)
        assert row.trajectory.tokens == found[index].tokens
        assert row.trajectory.logprobs == pytest.approx(found[index].logprobs, abs=1e-5)


@pytest.mark.parametrize("answer", ["threshold", "prefix"])
def test_mask_is_never_emitted_even_when_its_logit_is_the_largest(answer):
    model = tiny_model(5, 12.0)
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        model.lm_head.weight = torch.nn.Parameter(embedding.clone())
        model.lm_head.weight[V.mask] = 0
        model.model.norm.weight[0] = 50.0
        model.lm_head.weight[V.mask, 0] = 1e3
        model.lm_head.weight[V.pad, 0] = -1e3
    found = Decoder(model, V, GRID).decode(tiny_prompts(10), [4] * 10, block_policy(4, answer), batch_size=4)
    emitted = {t for trajectory in found for t in trajectory.tokens}
    assert V.mask not in emitted and V.pad not in emitted


def test_rules_make_every_answer_a_permutation_of_its_candidates():
    decoder, prompts = Decoder(tiny_model(6), V, GRID), tiny_prompts(20)
    counts = [2 + i % 3 for i in range(20)]
    for policy in (ar_policy(True), block_policy(4, "prefix"), block_policy(2, "prefix", temperature=1.0)):
        for count, t in zip(counts, decoder.decode(prompts, counts, policy, batch_size=7), strict=True):
            answer = t.tokens[t.answer_start :]
            assert sorted(answer[:-1]) == sorted(V.labels[:count]) and answer[-1] == V.eos


def test_every_forward_commits_and_forwards_are_counted():
    decoder, prompts = Decoder(tiny_model(7), V, GRID), tiny_prompts(6)
    never = decoder.decode(prompts, [4] * 6, block_policy(4, threshold=1.0), batch_size=3)
    for t in never:  # an anchor with each block's first forward, then one token a forward
        cut = len(t.tokens) if V.eos in t.tokens else GRID.trace_blocks * 4 + 8
        assert t.forwards <= cut + 3 and t.forwards >= len(t.tokens)
    ar = decoder.decode(prompts, [4] * 6, ar_policy(False), batch_size=3)
    assert all(t.forwards == len(t.tokens) for t in ar)


def test_sampled_decoding_depends_on_seed_and_index_only():
    decoder, prompts = Decoder(tiny_model(8), V, GRID), tiny_prompts(9)
    policy = block_policy(4, "prefix", temperature=1.0)
    one = decoder.decode(prompts, [4] * 9, policy, batch_size=1, seed=3)
    assert tokens(one) == tokens(decoder.decode(prompts, [4] * 9, policy, batch_size=5, seed=3))
    assert tokens(one) != tokens(decoder.decode(prompts, [4] * 9, policy, batch_size=5, seed=4))


def test_restricted_renormalises_what_is_left():
    import numpy as np

    logp = np.log([0.5, 0.2, 0.2, 0.1])
    assert np.exp(restricted(logp, [0])) == pytest.approx([0, 0.4, 0.4, 0.2])


def test_bad_requests_are_refused():
    decoder = Decoder(tiny_model(9), V, GRID)
    policy = block_policy()
    with pytest.raises(DataError, match="empty"):
        decoder.decode([[]], [4], policy)
    with pytest.raises(DataError, match="candidates"):
        decoder.decode([[11]], [1], policy)
    with pytest.raises(DataError, match="candidates"):
        decoder.decode([[11]], [5], policy)
    with pytest.raises(DataError, match="context"):
        decoder.decode([[11] * 95], [4], policy)
    with pytest.raises(DataError, match="mask"):
        decoder.decode([[11, V.mask]], [4], policy)
    with pytest.raises(ConfigError, match="divide"):
        decoder.decode([[11]], [4], replace(policy, block_size=3))
