"""The stopwatch decodes as the decoder does, and its parts make the whole."""

from __future__ import annotations

import pytest
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts

from dgr2.benchmarks.figures import Summary
from dgr2.benchmarks.forwards import PHASES, Roofline, Stopwatch, forward_figures
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy, ar_policy
from dgr2.models.inference import InferenceModel

BLOCKS = DecodePolicy("policy", 4, 0.3, "prefix", 0.3, verify=True)


@pytest.mark.parametrize("policy", [ar_policy(), BLOCKS])
def test_parts_of_a_decode_make_the_whole(policy):
    decoder, (prompt,) = Decoder(tiny_model(91, 9.0), VOCABULARY, GRID), tiny_prompts(1)
    (expected,) = decoder.decode([prompt], [4], policy)
    spent = Stopwatch.of(decoder).time(prompt, 4, policy)
    assert spent.forwards == expected.forwards
    assert all(spent.phases[phase] > 0 for phase in PHASES)
    assert 0 < spent.model < sum(spent.phases.values()) < spent.whole
    assert spent.bound > 0


def test_roofline_of_a_forward_by_hand():
    """One layer of known widths, one token: bytes bind on a slow memory, arithmetic on a slow processor."""
    model = tiny_model(92)
    inference = InferenceModel(model, VOCABULARY, 1, 32)
    linear = [m.weight.numel() for m in model.model.layers.modules() if isinstance(m, torch.nn.Linear)]
    weights = sum(linear) + model.lm_head.weight.numel()
    cached = 2 * 10 * 2 * 2 * 8  # keys and values, ten tokens, two layers, two heads of eight
    assert Roofline(1e30, 1.0).seconds(inference, 1, 10) == pytest.approx(4 * (weights + cached))
    attention = 4 * 3 * 10 * 2 * 4 * 8  # three queries, ten keys, two layers, four heads of eight
    assert Roofline(1.0, 1e30).seconds(inference, 3, 10) == pytest.approx(2 * 3 * weights + attention)


def test_figures_name_every_policy_and_phase():
    decoder = Decoder(tiny_model(93, 9.0), VOCABULARY, GRID)
    policies = {"ar": ar_policy(), "decode": BLOCKS}
    figures = forward_figures(decoder, tiny_prompts(3), [4] * 3, policies, Summary(50, 0))
    for name in policies:
        assert {f"{name}_{phase}_ms" for phase in PHASES} <= set(figures)
        assert 0 < figures[f"{name}_overhead_share"]["value"] < 1
    assert {"decode_trace_speedup_b1", "decode_answer_speedup_b1"} <= set(figures)
