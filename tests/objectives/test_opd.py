"""On-policy distillation: visited states, corrected targets, end token included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts

from dgr2.config.schema import OpdConfig
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.replay import build_replay
from dgr2.models.backbone import hidden_states, suppress
from dgr2.objectives.opd import (
    TeacherScores,
    confidence_loss,
    draw_states,
    opd_loss,
    pack_states,
    placed_identifiers,
)

V = VOCABULARY


def loss_of(student, prompts, found, replay, scores, states, config):
    rows = pack_states(prompts, replay, states, V)
    return opd_loss(student, hidden_states(student, rows), rows, found, replay, scores, states, V, config)


def rollouts(count=8, seed=51, answer="prefix"):
    model, prompts = tiny_model(seed, 6.0), tiny_prompts(count)
    policy = DecodePolicy("policy", 4, 0.3, answer, 0.3, temperature=1.0)
    found = Decoder(model, V, GRID).decode(prompts, [4] * count, policy, batch_size=count)
    return model, prompts, found, build_replay(found, V)


@torch.no_grad()
def full_scores(teacher, prompts, found, width):
    """All of the teacher's distribution, computed one unpadded sample at a time by Hugging Face's forward."""
    scores = []
    for prompt, t in zip(prompts, found, strict=True):
        logits = suppress(teacher(input_ids=torch.tensor([prompt + t.tokens])).logits[0], V)
        logp = logits[len(prompt) - 1 : -1].log_softmax(-1)
        top, ids = logp.topk(V.size - 2)
        scores.append((ids.numpy(), top.numpy(), np.full(len(top), -50.0, dtype=np.float32)))
    return TeacherScores.collate(scores, width)


def test_drawn_states_are_visited_ones():
    _, _, found, replay = rollouts()
    states = draw_states(replay, 3, np.random.default_rng(0))
    for masked in states:
        for row, t in enumerate(found):
            for first in range(0, len(t.tokens), 4):
                steps = replay.steps[row, first : first + 4]
                shown = masked[row, first : first + 4]
                assert any(torch.equal(shown, steps >= s) for s in range(int(max(t.steps)) + 1))
                assert shown.any()  # a state that a step was taken in has something to commit


def test_first_states_are_drawn_by_their_share():
    _, _, found, replay = rollouts()
    blocks = replay.steps.view(len(found), -1, 4)
    first = draw_states(replay, 1, np.random.default_rng(0), first_share=1.0)[0].view(blocks.shape)
    assert torch.equal(first, (blocks >= 0) & (blocks.clamp_max(4) < 4).any(-1, keepdim=True))


def test_right_guesses_become_surer_and_wrong_ones_give_way():
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]], requires_grad=True)
    tokens = torch.tensor([0, 1])
    trace = torch.tensor([False, False])
    loss = confidence_loss(logits.log_softmax(-1), tokens, trace)
    p = logits.detach().softmax(-1)
    assert loss[0].item() == pytest.approx(float(-(p[0] * p[0].log()).sum()))
    assert loss[1].item() == pytest.approx(-np.log(float(p[1, 1])))
    loss.sum().backward()
    assert logits.grad[0, 0] < 0 < logits.grad[1, 0] and logits.grad[1, 1] < 0
    blocked = torch.tensor([[2.0, float("-inf"), 0.0]], requires_grad=True)
    confidence_loss(blocked.log_softmax(-1), torch.tensor([0]), torch.tensor([False])).sum().backward()
    assert torch.isfinite(blocked.grad).all()


def test_right_answer_slots_are_not_made_surer_and_wrong_ones_give_way():
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]], requires_grad=True)
    loss = confidence_loss(logits.log_softmax(-1), torch.tensor([0, 1]), torch.tensor([True, True]))
    assert loss[0].item() == 0.0
    assert loss[1].item() == pytest.approx(-float(logits.detach().log_softmax(-1)[1, 1]))
    loss.sum().backward()
    assert not logits.grad[0].any() and logits.grad[1, 1] < 0 < logits.grad[1, 0]


def test_placed_identifiers_left_and_visible_right():
    _, _, found, replay = rollouts()
    visible = torch.zeros_like(replay.decided)
    t = found[0]
    start = t.answer_start
    visible[0, start + 3] = True
    banned = placed_identifiers(replay, found, visible, V)
    answer = t.tokens[start : start + 4]
    assert banned[0, start].nonzero()[:, 0].tolist() == [answer[3]]
    assert sorted(banned[0, start + 2].nonzero()[:, 0].tolist()) == sorted([*answer[:2], answer[3]])
    assert sorted(banned[0, start + 3].nonzero()[:, 0].tolist()) == sorted(answer[:3])
    assert not banned[0, :start].any() and not banned[0, start + 4 :].any()


def test_loss_is_the_exact_kl_at_the_visited_states():
    """Against a loop over single, unpadded states in Hugging Face's own forward."""
    student, prompts, found, replay = rollouts(count=3)
    teacher = tiny_model(52, 6.0)
    scores = full_scores(teacher, prompts, found, replay.clean.shape[1])
    states = draw_states(replay, 1, np.random.default_rng(1))
    config = OpdConfig(
        ar_weight=0.0,
        answer_weight=2.0,
        confidence_weight=0.0,
        teacher_temperature=1.0,
        correct_answers=False,
    )
    with torch.no_grad():
        loss, _ = loss_of(student, prompts, found, replay, scores, states, config)
        expected = 0.0
        for row, (prompt, t) in enumerate(zip(prompts, found, strict=True)):
            target = suppress(teacher(input_ids=torch.tensor([prompt + t.tokens])).logits[0], V)
            target = target[len(prompt) - 1 : -1].log_softmax(-1)
            for first in range(0, len(t.tokens), 4):
                masked = states[0, row, first : first + 4]
                block = replay.clean[row, first : first + 4].masked_fill(masked, V.mask).tolist()
                known = prompt + t.tokens[:first]
                mask = torch.ones(len(known) + 4, len(known) + 4, dtype=torch.bool).tril()
                mask[len(known) :, len(known) :] = True
                hidden = student.model(
                    input_ids=torch.tensor([known + block]),
                    attention_mask={"full_attention": mask[None, None]},
                    use_cache=False,
                ).last_hidden_state[0, len(known) :]
                q = suppress(student.lm_head(hidden), V).log_softmax(-1)
                for i in range(1, min(4, len(t.tokens) - first)):
                    if masked[i] and not (t.forced[first + i] and t.tokens[first + i] == V.fill):
                        p = target[first + i]
                        finite = p > -30
                        answer = t.answer_start is not None and first + i >= t.answer_start
                        expected += (2 if answer else 1) * float((p.exp() * (p - q[i]))[finite].sum())
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_end_of_answer_is_trained_though_the_policy_forces_it():
    student, prompts, found, replay = rollouts(count=4)
    scores = full_scores(tiny_model(53, 6.0), prompts, found, replay.clean.shape[1])
    states = draw_states(replay, 1, np.random.default_rng(2))
    config = OpdConfig(copies=1)
    whole, _ = loss_of(student, prompts, found, replay, scores, states, config)
    end = [len(t.tokens) - 1 for t in found]
    changed = TeacherScores(scores.ids, scores.top.clone(), scores.tail)
    for row, position in enumerate(end):
        changed.top[row, position] = changed.top[row, position].flip(0)
    other, _ = loss_of(student, prompts, found, replay, changed, states, config)
    assert float(whole) != float(other)


def test_correction_and_ar_term_change_the_loss():
    student, prompts, found, replay = rollouts()
    scores = full_scores(tiny_model(54, 6.0), prompts, found, replay.clean.shape[1])
    states = draw_states(replay, 2, np.random.default_rng(3))
    config = OpdConfig()
    losses = [
        float(loss_of(student, prompts, found, replay, scores, states, c)[0])
        for c in (config, replace(config, correct_answers=False), replace(config, ar_weight=0.0))
    ]
    assert len(set(losses)) == 3 and all(np.isfinite(losses))
