"""The listwise term is the likelihood of Plackett and Luce, and teaches an anchor the whole order."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tiny import VOCABULARY, tiny_model, tiny_prompts

from dgr2.config.schema import GridConfig
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import ar_policy
from dgr2.models.backbone import hidden_states
from dgr2.models.packed import pack, pad_responses
from dgr2.objectives.listwise import listwise_loss, plackett_luce_losses

V = VOCABULARY


def test_orders_draw_place_after_place():
    """Undiscounted and with the first place, the probabilities of all orders sum to one."""
    scores = torch.tensor([0.3, -1.2, 2.0, 0.7])
    total = 0.0
    for order in itertools.permutations(range(4)):
        left, p = list(order), 1.0
        places = []
        for chosen in order:
            share = math.exp(scores[chosen]) / sum(math.exp(scores[i]) for i in left)
            left.remove(chosen)
            places.append(-math.log(share))
            p *= share
        total += p
        expected = sum(loss / math.log2(place + 2) for place, loss in enumerate(places) if place)
        found = plackett_luce_losses(scores[list(order)][None], torch.tensor([4]))
        assert found.item() == pytest.approx(expected, rel=1e-5)
    assert total == pytest.approx(1.0)


def test_padding_costs_nothing_and_has_finite_gradients():
    scores = torch.tensor([[1.0, 0.5, -40.0, 9.0], [0.2, 0.1, 0.0, -0.1]], requires_grad=True)
    found = plackett_luce_losses(scores, torch.tensor([3, 4]))
    assert torch.allclose(found[:1], plackett_luce_losses(scores[:1, :3], torch.tensor([3])))
    found.sum().backward()
    assert torch.isfinite(scores.grad).all() and float(scores.grad[0, 3]) == 0.0


def rows_of(responses, prompts, size):
    clean, valid = pad_responses(responses, V.pad, size)
    return clean, pack(prompts, clean, valid, [], V.pad, size)


def test_answers_that_are_no_permutation_cost_nothing():
    model, size = tiny_model(3), 4
    a, b, c = V.labels[:3]
    prompts = tiny_prompts(3, seed=1)
    starts, counts = torch.tensor([4, 4, 8]), torch.tensor([3, 3, 3])
    opening = [11, 12, V.think_end, V.fill]
    clean, rows = rows_of([opening + [a, b, a, V.eos], opening + [b, c, a, V.eos], [11] * 8], prompts, size)
    hidden = hidden_states(model, rows)
    whole = listwise_loss(model, hidden, rows, clean, starts, counts, V)
    alone, one = rows_of([clean[1].tolist()], prompts[1:2], size)
    single = listwise_loss(model, hidden_states(model, one), one, alone, starts[1:2], counts[1:2], V)
    assert whole.item() == pytest.approx(single.item(), rel=1e-4) and single.item() > 0
    none = listwise_loss(model, hidden[:1], rows_of([clean[0].tolist()], prompts[:1], size)[1], clean[:1],
                         starts[:1], counts[:1], V)  # fmt: skip
    assert none.item() == 0.0


def test_a_readout_gives_the_learned_order():
    """The anchor that the term trains is the one that decoding reads."""
    model, size, count = tiny_model(0).train(), 4, 4
    prompts = tiny_prompts(2, seed=5)
    orders = [[2, 0, 3, 1], [1, 3, 0, 2]]
    trace = [11, 12, V.think_end, V.fill]
    responses = [trace + [V.labels[i] for i in order] + [V.eos] * 4 for order in orders]
    clean, rows = rows_of(responses, prompts, size)
    starts, counts = torch.tensor([4, 4]), torch.tensor([count, count])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        hidden = hidden_states(model, rows)
        logits = model.lm_head(rows.clean(hidden))
        loss = torch.nn.functional.cross_entropy(logits[:, :5].flatten(0, 1), clean[:, :5].flatten())
        (loss + listwise_loss(model, hidden, rows, clean, starts, counts, V)).backward()
        optimizer.step()
    decoder = Decoder(model.eval(), V, GridConfig(block_size=size, trace_blocks=1))
    found = decoder.decode(prompts, [count] * 2, ar_policy(permutation=True, readout=True), batch_size=2)
    assert [t.tokens[4:8] for t in found] == [[V.labels[i] for i in order] for order in orders]
