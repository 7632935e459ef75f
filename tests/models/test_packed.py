"""The packed row: its clean stream is the AR model, its noisy blocks see what decoding will show them."""

from __future__ import annotations

import pytest
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts, tiny_responses

from dgr2.models.backbone import hidden_states
from dgr2.models.packed import pack, pack_blocks, packed_mask, pad_responses
from dgr2.models.transformer import attention

B = GRID.block_size


def packed_rows(prompts, responses, noisy=None):
    clean, valid = pad_responses(responses, VOCABULARY.pad, B)
    copies = [clean.masked_fill(torch.ones_like(valid), VOCABULARY.mask)] if noisy is None else noisy
    return clean, pack(prompts, clean, valid, copies, VOCABULARY.pad, B)


@torch.no_grad()
def test_clean_stream_logits_equal_the_ar_model():
    model, prompts, responses = tiny_model(scale=8.0), tiny_prompts(5), tiny_responses(5)
    random = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():  # norms of a new model are all one
        if "norm" in name:
            weight.uniform_(0.5, 1.5, generator=random)
    _, rows = packed_rows(prompts, responses)
    clean = model.lm_head(rows.clean(hidden_states(model, rows)))
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        alone = model(input_ids=torch.tensor([prompt + response])).logits[0]
        expected = alone[len(prompt) - 1 : len(prompt) - 1 + len(response)]
        torch.testing.assert_close(clean[row, : len(response)], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_padded_rows_equal_unpadded_ones():
    model, prompts, responses = tiny_model(scale=8.0), tiny_prompts(4), tiny_responses(4)
    responses[2] = responses[2][:8]  # a shorter response, whole blocks
    _, rows = packed_rows(prompts, responses)
    together = rows.copy(hidden_states(model, rows), 0)
    for i in range(4):
        _, one = packed_rows(prompts[i : i + 1], responses[i : i + 1])
        alone = one.copy(hidden_states(model, one), 0)[0]
        torch.testing.assert_close(together[i, : len(responses[i])], alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("block", [0, 1, 2])
def test_noisy_block_sees_neither_its_own_clean_tokens_nor_later_blocks(block):
    model, prompts, responses = tiny_model(scale=8.0), tiny_prompts(1), tiny_responses(1)
    clean, rows = packed_rows(prompts, responses)
    before = rows.copy(hidden_states(model, rows), 0)[:, block * B : (block + 1) * B]
    changed = clean.clone()
    changed[:, block * B :] = VOCABULARY.fill
    noisy = [torch.full_like(clean, VOCABULARY.mask)]
    noisy[0][:, (block + 1) * B :] = VOCABULARY.eos  # later noisy blocks too
    _, other = packed_rows(prompts, [changed[0].tolist()], noisy)
    after = other.copy(hidden_states(model, other), 0)[:, block * B : (block + 1) * B]
    torch.testing.assert_close(before, after, rtol=0, atol=0)


@torch.no_grad()
def test_noisy_block_sees_earlier_clean_blocks_and_itself_both_ways():
    model, prompts, responses = tiny_model(scale=8.0), tiny_prompts(1), tiny_responses(1)
    clean, rows = packed_rows(prompts, responses)
    before = rows.copy(hidden_states(model, rows), 0)
    changed = [responses[0][:1] + [VOCABULARY.fill] + responses[0][2:]]
    _, other = packed_rows(prompts, changed)
    assert not torch.equal(before[:, B:], other.copy(hidden_states(model, other), 0)[:, B:])
    noisy = [torch.full_like(clean, VOCABULARY.mask)]
    noisy[0][:, B - 1] = VOCABULARY.fill  # last token of block 0 shows in its first one
    _, last = packed_rows(prompts, responses, noisy)
    assert not torch.equal(before[:, 0], last.copy(hidden_states(model, last), 0)[:, 0])


def test_mask_by_hand():
    """Prompt of one, response of two blocks of two, one copy: columns p | c0 c1 c2 c3 | n0 n1 n2 n3."""
    expected = """
        1 0000 0000
        1 1000 0000
        1 1100 0000
        1 1110 0000
        1 1111 0000
        1 0000 1100
        1 0000 1100
        1 1100 0011
        1 1100 0011
    """
    rows = [[c == "1" for c in line if c != " "] for line in expected.strip().splitlines()]
    assert packed_mask(1, 4, 1, 2).tolist() == rows


@torch.no_grad()
def test_single_blocks_equal_the_blocks_of_a_whole_copy():
    """Rows with different blocks, of different number: each state is what it is within a noisy copy."""
    model, prompts, responses = tiny_model(scale=8.0), tiny_prompts(3), tiny_responses(3)
    clean, _ = pad_responses(responses, VOCABULARY.pad, B)
    noisy = clean.clone()
    noisy[:, 1::2] = VOCABULARY.mask
    whole = pack(prompts, clean, torch.ones_like(clean, dtype=torch.bool), [noisy], VOCABULARY.pad, B)
    expected = whole.copy(hidden_states(model, whole), 0).view(3, 4, B, -1)
    blocks = torch.tensor([[2, 0, -1], [1, 1, 2], [0, -1, -1]])
    states = noisy.view(3, 4, B)[torch.arange(3)[:, None], blocks.clamp_min(0)]
    rows = pack_blocks(prompts, clean, blocks, states, VOCABULARY.pad)
    hidden = hidden_states(model, rows)
    found = rows.noisy(hidden).view(3, 3, B, -1)
    for row in range(3):
        for state, block in enumerate(blocks[row].tolist()):
            if block >= 0:
                torch.testing.assert_close(found[row, state], expected[row, block], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        rows.clean(hidden), whole.clean(hidden_states(model, whole)), rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
@pytest.mark.parametrize("span", [1, 6, 8, 100])
@pytest.mark.parametrize("dropped", [0, 5, 30])
def test_spans_attend_as_the_whole_mask_does(monkeypatch, span, dropped):
    """Whole copies, single blocks, the clean stream alone; padding on both sides; the last columns only."""
    monkeypatch.setattr("dgr2.models.packed.SPAN", span)
    prompts, responses = tiny_prompts(3), tiny_responses(3)
    clean, valid = pad_responses(responses, VOCABULARY.pad, B)
    responses[1] = responses[1][:8]
    noisy = clean.masked_fill(torch.rand(clean.shape) < 0.5, VOCABULARY.mask)
    blocks = torch.tensor([[2, 0, -1], [1, 1, 2], [0, -1, -1]])
    for rows in (
        packed_rows(prompts, responses, [noisy[:, :16], noisy[:, :16]])[1],
        pack(prompts, clean, valid, [], VOCABULARY.pad, B),
        pack_blocks(prompts, clean, blocks, noisy.view(3, -1, B)[:, :3], VOCABULARY.pad),
    ):
        length = rows.ids.shape[1]
        q, k, v = (torch.randn(3, length, heads, 8) for heads in (4, 2, 2))
        first = min(dropped, length - 1)
        expected = attention(q, k, v, rows.mask)[:, first:]
        torch.testing.assert_close(rows.attend(q[:, first:], k, v), expected, rtol=1e-5, atol=1e-6)
        assert sum(s.mask[0].numel() for s in rows.spans) < length**2 or span == 100
