"""The conversion loss is the any-order likelihood; its additions do what they say."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, tiny_model, tiny_prompts

from dgr2.config.schema import CftConfig
from dgr2.models.backbone import hidden_states, log_probabilities
from dgr2.models.packed import pack, pad_responses
from dgr2.objectives.cft import COPIES, Noise, diffusion_loss, draw_noise, set_terms

V = VOCABULARY
PLAIN = CftConfig(
    full_mask_share=0, full_mask_share_answer=0, anchor_mask_share=0, answer_weight=1,
    exclusivity=0, at_most_one=0, in_set=0,
)  # fmt: skip


@torch.no_grad()
def any_order_nll(model, prompt, clean, size):
    """-log p, mean over every order of revealing a block's maskable tokens, summed over blocks."""
    total = 0.0
    for start in range(0, len(clean), size):
        maskable = list(range(start + 1, start + size))
        orders = list(itertools.permutations(maskable))
        for order in orders:
            noisy = torch.tensor([clean])
            noisy[0, maskable] = V.mask
            for position in order:
                rows = pack(
                    [prompt], torch.tensor([clean]), torch.ones(1, len(clean)).bool(), [noisy], V.pad, size
                )
                logp = log_probabilities(model, rows.copy(hidden_states(model, rows), 0)[0, position], V)
                total -= float(logp[clean[position]]) / len(orders)
                noisy = noisy.clone()
                noisy[0, position] = clean[position]
    return total


@torch.no_grad()
def expected_loss(model, prompt, clean, size):
    """Exact expectation of the loss over k and subsets: each block's masks, with their probability."""
    tensor = torch.tensor([clean])
    total, n = 0.0, size - 1
    for start in range(0, len(clean), size):
        maskable = range(start + 1, start + size)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(maskable, k))
            for subset in subsets:
                masked = torch.zeros(COPIES, 1, len(clean), dtype=torch.bool)
                masked[0, 0, list(subset)] = True
                masked[1, 0, [p for p in maskable if p not in subset]] = True
                weights = torch.zeros(masked.shape)
                weights[0][masked[0]] = n / k * (0.5 if k < n else 1.0)
                if k < n:
                    weights[1][masked[1]] = n / (n - k) * 0.5
                noise = Noise(masked, weights)
                noisy = [tensor.masked_fill(masked[c], V.mask) for c in range(COPIES)]
                rows = pack([prompt], tensor, torch.ones(1, len(clean)).bool(), noisy, V.pad, size)
                loss = diffusion_loss(model, hidden_states(model, rows), rows, [tensor] * COPIES, noise, V)
                total += float(loss) / len(subsets) / n
    return total


def test_expected_loss_is_the_any_order_nll():
    model, prompt, clean = tiny_model(21, 6.0), tiny_prompts(1)[0], [11, 12, 5, 7, 13, 6, 8, 1]
    assert expected_loss(model, prompt, clean, 4) == pytest.approx(
        any_order_nll(model, prompt, clean, 4), rel=1e-5
    )


def test_drawn_noise_has_the_enumerated_distribution():
    """k uniform, subsets uniform, weights n/k, the complement in the other copy."""
    valid = torch.ones(4000, 4, dtype=torch.bool)
    noise = draw_noise(valid, torch.zeros_like(valid), 4, PLAIN, np.random.default_rng(0))
    first, second = noise.masked
    assert not first[:, 0].any() and not second[:, 0].any()
    k = first.sum(1)
    assert torch.equal(second.sum(1), 3 - k)
    assert [(k == i).float().mean().item() for i in (1, 2, 3)] == pytest.approx([1 / 3] * 3, abs=0.03)
    ones = first[k == 1].float().mean(0)
    assert ones[1:].tolist() == pytest.approx([1 / 3] * 3, abs=0.04)
    half = torch.where(k == 3, 1.0, 0.5)
    torch.testing.assert_close(noise.weights[0], first * (3 / k * half)[:, None])
    other = torch.where(k == 3, 0.0, 0.5 * 3 / (3 - k).clamp_min(1))
    torch.testing.assert_close(noise.weights[1], second * other[:, None])


def test_average_of_drawn_losses_approaches_the_any_order_nll():
    model, prompt, clean = tiny_model(22, 3.0), tiny_prompts(1)[0], [11, 12, 5, 7, 13, 6, 8, 1]
    count = 1500
    tensor = torch.tensor([clean] * count)
    valid = torch.ones_like(tensor, dtype=torch.bool)
    noise = draw_noise(valid, torch.zeros_like(valid), 4, PLAIN, np.random.default_rng(1))
    noisy = [tensor.masked_fill(noise.masked[c], V.mask) for c in range(COPIES)]
    rows = pack([prompt] * count, tensor, valid, noisy, V.pad, 4)
    with torch.no_grad():
        mean = (
            float(diffusion_loss(model, hidden_states(model, rows), rows, [tensor] * COPIES, noise, V))
            / count
        )
    assert mean == pytest.approx(any_order_nll(model, prompt, clean, 4), rel=0.03)


def test_extra_full_masks_and_masked_anchors():
    valid = torch.ones(2000, 8, dtype=torch.bool)
    answer = torch.zeros_like(valid)
    answer[:, 4:] = True
    config = replace(PLAIN, full_mask_share=0.3, full_mask_share_answer=0.6, anchor_mask_share=1.0)
    noise = draw_noise(valid, answer, 4, config, np.random.default_rng(2))
    full = noise.masked[0].view(2000, 2, 4)[..., 1:].all(-1)
    expected = [0.3 + 0.7 / 3, 0.6 + 0.4 / 3]
    assert full.float().mean(0).tolist() == pytest.approx(expected, abs=0.03)
    anchors = noise.masked[0].view(2000, 2, 4)[..., 0]
    assert torch.equal(anchors, full)  # anchors are masked exactly in fully masked blocks
    assert not noise.weights[:, :, ::4].any()  # and never predicted in place
    second = noise.masked[1].view(2000, 2, 4)
    assert second[full][:, 1:].all() and not second[full][:, 0].any()
    assert noise.weights[0].view(2000, 2, 4)[full][:, 1:].eq(0.5).all()


def test_position_bias_masks_later_positions_more_often():
    valid = torch.ones(3000, 8, dtype=torch.bool)
    config = replace(PLAIN, position_bias=0.6)
    noise = draw_noise(valid, torch.zeros_like(valid), 8, config, np.random.default_rng(3))
    few = noise.masked[0].sum(1) <= 3
    share = noise.masked[0][few].float().mean(0)
    assert share[7] > 2 * share[1]


def test_set_terms_by_hand():
    """Two answer slots masked of four; probabilities are read from the model and the terms recomputed."""
    model, prompt = tiny_model(23, 6.0), tiny_prompts(1)[0]
    clean = torch.tensor([[11, 12, 13, 3, 5, 7, 6, 8]])  # trace block, answer A C B D
    masked = torch.zeros(COPIES, 1, 8, dtype=torch.bool)
    masked[0, 0, [6, 7]] = True
    noise = Noise(masked, masked.float())
    noisy = [clean.masked_fill(masked[c], V.mask) for c in range(COPIES)]
    rows = pack([prompt], clean, torch.ones_like(clean, dtype=torch.bool), noisy, V.pad, 4)
    hidden = hidden_states(model, rows)
    p = log_probabilities(model, rows.copy(hidden, 0)[0, [6, 7]], V).exp()[:, list(V.labels)]
    placed = p[:, [0, 2]].sum(1)
    crowd = torch.relu(p.sum(0) - 1).square().sum() * 2
    starts, counts = torch.tensor([4]), torch.tensor([4])

    def term(**weights):
        config = replace(PLAIN, **weights)
        return float(set_terms(model, hidden, rows, clean, noise, starts, counts, 4, config, V))

    assert term(exclusivity=1.0) == pytest.approx(float(-torch.log1p(-placed).sum()), rel=1e-4)
    assert term(at_most_one=1.0) == pytest.approx(float(crowd), rel=1e-4, abs=1e-7)
    assert term(in_set=1.0) == pytest.approx(float(-p.sum(1).log().sum()), rel=1e-4)


def test_a_response_without_answer_has_no_set_term():
    model, prompt = tiny_model(24), tiny_prompts(1)[0]
    clean, valid = pad_responses([[11, 12, 13, 14]], V.pad, 4)
    masked = torch.ones(COPIES, 1, 4, dtype=torch.bool)
    rows = pack([prompt], clean, valid, [clean, clean], V.pad, 4)
    total = set_terms(
        model, hidden_states(model, rows), rows, clean, Noise(masked, masked.float()), torch.tensor([4]),
        torch.tensor([4]), 4, replace(PLAIN, in_set=1.0), V,
    )  # fmt: skip
    assert float(total) == 0.0
