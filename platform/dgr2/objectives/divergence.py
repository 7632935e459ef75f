"""Divergences between a teacher known by its top-k log-probabilities plus the tail's mass, and a student.

Both sides are reduced to the same k + 1 events (the k tokens, and "anything else"), so every divergence is
exact on that partition, gradients included, and equals the full one where k covers the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dgr2.errors import ConfigError

KINDS = ("forward_kl", "reverse_kl", "jsd")
FLOOR = -30.0
"""Log-probability below which an event counts as impossible; keeps 0 * log 0 and its gradient at 0."""


def student_events(logp: Tensor, ids: Tensor) -> Tensor:
    """The student's log-probabilities of the k tokens and of the rest: ``[n, k + 1]``.

    Args:
        logp: ``[n, vocabulary]`` log-probabilities.
        ids: ``[n, k]`` the teacher's top tokens.
    """
    rest = logp.scatter(-1, ids, float("-inf"))
    tail = torch.logsumexp(rest, dim=-1, keepdim=True)
    return torch.cat([logp.gather(-1, ids), tail], dim=-1).clamp_min(FLOOR)


def teacher_events(top: Tensor, tail: Tensor, temperature: float = 1.0) -> Tensor:
    """The teacher's log-probabilities in the same form, ``[n, k + 1]``, from ``top`` and ``tail``.

    Args:
        temperature: Below one the events are sharpened, the tail as one of them.
    """
    events = torch.cat([top, tail[:, None]], dim=-1)
    if temperature != 1.0:
        events = torch.log_softmax(events / temperature, dim=-1)
    return events.clamp_min(FLOOR)


def divergence(teacher: Tensor, student: Tensor, kind: str, beta: float = 0.5) -> Tensor:
    """Divergence of each row, in nats: ``[n]``.

    Args:
        teacher, student: ``[n, k + 1]`` log-probabilities of the same events.
        kind: ``forward_kl`` KL(teacher || student), ``reverse_kl`` KL(student || teacher), or ``jsd``, the
            generalised Jensen-Shannon divergence with mixture weight ``beta`` on the teacher (Agarwal et al.,
            arXiv 2306.13649, section 3).

    Raises:
        ConfigError: for another kind.
    """
    if kind == "forward_kl":
        return _kl(teacher, student)
    if kind == "reverse_kl":
        return _kl(student, teacher)
    if kind == "jsd":
        weight = torch.tensor([beta, 1 - beta], dtype=teacher.dtype, device=teacher.device).log()
        mixture = torch.logsumexp(torch.stack([teacher + weight[0], student + weight[1]]), dim=0)
        return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)
    raise ConfigError(f"divergence {kind!r} is not one of {', '.join(KINDS)}")


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(-1)


def remove_tokens(ids: Tensor, top: Tensor, tail: Tensor, banned: Tensor) -> tuple[Tensor, Tensor]:
    """The teacher's distribution with some tokens impossible and the rest renormalised.

    Args:
        ids: ``[n, k]`` top tokens; ``top [n, k]`` and ``tail [n]`` their log-probabilities.
        banned: bool ``[n, vocabulary]``. A row that would lose all its mass is left as it is.

    Returns:
        New ``top`` and ``tail``; a banned token outside the top k stays in the tail.
    """
    gone = banned.gather(-1, ids)
    left = torch.cat([top.masked_fill(gone, float("-inf")), tail[:, None]], dim=-1)
    total = torch.logsumexp(left, dim=-1, keepdim=True)
    keep = total > -20.0
    left = torch.where(keep, left - total.clamp_min(-20.0), torch.cat([top, tail[:, None]], dim=-1))
    return left[:, :-1], left[:, -1]
