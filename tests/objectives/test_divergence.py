"""Top-k plus tail against the exact divergence on a small vocabulary, gradients too."""

from __future__ import annotations

import pytest
import torch

from dgr2.errors import ConfigError
from dgr2.objectives.divergence import divergence, remove_tokens, student_events, teacher_events


def distributions(seed=0, rows=6, size=12):
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(rows, size, generator=generator, dtype=torch.float64).mul(2).log_softmax(-1)
    logits = torch.randn(rows, size, generator=generator, dtype=torch.float64).requires_grad_()
    return teacher, logits


def top_k(teacher, k):
    top, ids = teacher.topk(k)
    tail = torch.logsumexp(teacher.scatter(-1, ids, float("-inf")), -1)
    return ids, top, tail


def exact(kind, teacher, student):
    if kind == "forward_kl":
        return (teacher.exp() * (teacher - student)).sum(-1)
    if kind == "reverse_kl":
        return (student.exp() * (student - teacher)).sum(-1)
    mixture = (0.3 * teacher.exp() + 0.7 * student.exp()).log()
    return 0.3 * (teacher.exp() * (teacher - mixture)).sum(-1) + 0.7 * (
        student.exp() * (student - mixture)
    ).sum(-1)


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "jsd"])
def test_equals_the_exact_divergence_where_k_covers_the_vocabulary(kind):
    teacher, logits = distributions()
    ids, top, tail = top_k(teacher, 12)
    ours = divergence(teacher_events(top, tail), student_events(logits.log_softmax(-1), ids), kind, 0.3)
    gradient = torch.autograd.grad(ours.sum(), logits)[0]
    reference = exact(kind, teacher, logits.log_softmax(-1))
    torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(
        gradient, torch.autograd.grad(reference.sum(), logits)[0], rtol=1e-6, atol=1e-8
    )


def test_a_colder_teacher_is_the_tempered_distribution():
    teacher, _ = distributions(2)
    ids, top, tail = top_k(teacher, 12)
    found = teacher_events(top, tail, 0.5)[:, :-1]
    torch.testing.assert_close(found, (teacher / 0.5).log_softmax(-1).gather(-1, ids), rtol=1e-6, atol=1e-8)
    partial = teacher_events(*top_k(teacher, 4)[1:], 0.5)
    torch.testing.assert_close(partial.exp().sum(-1), torch.ones(6, dtype=torch.float64))
    assert (partial[:, 0] > top[:, 0]).all()  # surer of the best token


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "jsd"])
def test_top_k_is_the_exact_divergence_of_the_partition(kind):
    """k tokens and one event for the rest, summed by hand; gradients by the same route."""
    teacher, logits = distributions(1)
    ids, top, tail = top_k(teacher, 4)
    ours = divergence(teacher_events(top, tail), student_events(logits.log_softmax(-1), ids), kind, 0.3)

    def partition(logp):
        p = logp.exp()
        kept = p.gather(-1, ids)
        return torch.cat([kept, 1 - kept.sum(-1, keepdim=True)], -1).log()

    reference = exact(kind, partition(teacher), partition(logits.log_softmax(-1)))
    torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(
        torch.autograd.grad(ours.sum(), logits)[0],
        torch.autograd.grad(reference.sum(), logits)[0],
        rtol=1e-6,
        atol=1e-8,
    )


def test_zero_for_equal_distributions_and_stable_for_impossible_tokens():
    teacher, _ = distributions(2)
    teacher = teacher.clone()
    teacher[:, 3] = float("-inf")
    teacher = teacher.log_softmax(-1)
    ids, top, tail = top_k(teacher, 12)
    for kind in ("forward_kl", "reverse_kl", "jsd"):
        value = divergence(teacher_events(top, tail), student_events(teacher, ids), kind)
        torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-8)


def test_correction_leaves_no_mass_on_banned_tokens_and_renormalises():
    teacher, _ = distributions(3)
    ids, top, tail = top_k(teacher, 5)
    banned = torch.zeros(6, 12, dtype=torch.bool)
    banned[torch.arange(6), ids[:, 0]] = True
    new_top, new_tail = remove_tokens(ids, top, tail, banned)
    assert (new_top[:, 0].exp() == 0).all()
    total = new_top.exp().sum(-1) + new_tail.exp()
    torch.testing.assert_close(total, torch.ones_like(total))
    torch.testing.assert_close(new_top[:, 1] - new_top[:, 2], top[:, 1] - top[:, 2])


def test_unknown_divergence_is_refused():
    with pytest.raises(ConfigError, match="forward_kl"):
        divergence(torch.zeros(1, 2), torch.zeros(1, 2), "kl")
