"""On-policy distillation: the frozen AR teacher's distribution at the states the student really visited.

The student decodes with the deployed policy; the teacher scores that response in one causal pass. The loss is
a divergence at the masked positions of visited states (one state a block and copy, drawn from the block's
steps), and at the clean stream, which keeps the AR mode and the anchors healthy.

In an answer slot the teacher's mass on identifiers that stand to the left (its own decoding never repeats
them) and on those visible to the right in the state is removed and renormalised: the target ``p(x_i | x_<i)``
knows nothing of what stands to the right, and would teach duplicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.config.schema import OpdConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.replay import NEVER, Replay
from dgr2.decoding.trajectory import Trajectory
from dgr2.models.backbone import log_probabilities
from dgr2.models.packed import PackedRows, pack
from dgr2.objectives.divergence import FLOOR, divergence, remove_tokens, student_events, teacher_events


@dataclass
class TeacherScores:
    """The teacher's view of a batch of responses, one entry a response token.

    Attributes:
        ids: ``[batch, response, k]`` most probable tokens.
        top: ``[batch, response, k]`` their log-probabilities.
        tail: ``[batch, response]`` log-probability of all others together.
    """

    ids: Tensor
    top: Tensor
    tail: Tensor

    @classmethod
    def collate(
        cls, scores: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], width: int
    ) -> TeacherScores:
        """Pad per-response arrays ``(ids [t, k], top [t, k], tail [t])`` to ``width`` tokens."""
        k = scores[0][0].shape[1]
        ids = torch.zeros(len(scores), width, k, dtype=torch.long)
        top = torch.zeros(len(scores), width, k)
        tail = torch.zeros(len(scores), width)
        for row, (i, t, r) in enumerate(scores):
            ids[row, : len(i)] = torch.tensor(i.astype(np.int64))
            top[row, : len(t)] = torch.tensor(t)
            tail[row, : len(r)] = torch.tensor(r)
        return cls(ids, top, tail)


def draw_states(replay: Replay, copies: int, random: np.random.Generator, first_share: float = 0.0) -> Tensor:
    """Masked positions of visited states: bool ``[copies, batch, response]``.

    Every copy shows every block as it was before one of its steps: before the first one with probability
    ``first_share``, else before any of them alike.
    """
    batch, width = replay.steps.shape
    blocks = width // replay.block_size
    committed = replay.steps < NEVER
    steps = torch.where(committed, replay.steps, -1).view(batch, blocks, replay.block_size)
    count = steps.amax(-1) + 1  # steps of each block; 0 behind the end of a response
    uniform = torch.tensor(random.random((copies, batch, blocks)))
    first = torch.tensor(random.random((copies, batch, blocks)) < first_share)
    chosen = (uniform * count).floor().long().masked_fill(first, 0)
    masked = replay.steps.view(batch, blocks, replay.block_size) >= chosen[..., None]
    return (masked & (count > 0)[None, ..., None]).view(copies, batch, width)


def placed_identifiers(
    replay: Replay, trajectories: Sequence[Trajectory], visible: Tensor, vocabulary: Vocabulary
) -> Tensor:
    """What an answer slot must not take: bool ``[batch, response, vocabulary]``.

    Identifiers to the left of the slot, and those ``visible`` (bool ``[batch, response]``) in the state.
    """
    banned = torch.zeros(*replay.clean.shape, vocabulary.size, dtype=torch.bool)
    labels = set(vocabulary.labels)
    for row, t in enumerate(trajectories):
        if t.answer_start is None:
            continue
        stop = min(t.answer_start + t.candidates, len(t.tokens))
        for position in range(t.answer_start, stop):
            for other in range(t.answer_start, stop):
                token = t.tokens[other]
                if other != position and token in labels and (other < position or bool(visible[row, other])):
                    banned[row, position, token] = True
    return banned


def pack_states(
    prompts: Sequence[Sequence[int]], replay: Replay, states: Tensor, vocabulary: Vocabulary
) -> PackedRows:
    """Rows with one noisy copy a drawn state."""
    noisy = [replay.clean.masked_fill(masked, vocabulary.mask) for masked in states]
    return pack(
        prompts, replay.clean, torch.ones_like(replay.decided), noisy, vocabulary.pad, replay.block_size
    )


def opd_loss(
    model: Qwen3ForCausalLM,
    hidden: Tensor,
    rows: PackedRows,
    trajectories: Sequence[Trajectory],
    replay: Replay,
    scores: TeacherScores,
    states: Tensor,
    vocabulary: Vocabulary,
    config: OpdConfig,
    shift: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    """Sums over tokens of the divergence at visited states and on the clean stream (not normalised).

    ``hidden`` are the states of ``rows``, as :func:`pack_states` made them.

    Each visited position weighs one over the number of copies, so a block counts once whatever its steps.
    """
    real = torch.zeros_like(replay.decided)
    for row, t in enumerate(trajectories):
        fill = torch.tensor(t.forced) & (torch.tensor(t.tokens) == vocabulary.fill)
        real[row, : len(t.tokens)] = ~fill
    columns = torch.arange(rows.response)
    anchors = columns % replay.block_size == 0
    opened = torch.tensor([rows.response if t.answer_start is None else t.answer_start for t in trajectories])
    answers = columns >= opened[:, None]
    weight = torch.where(answers, config.answer_weight, 1.0)
    # the clean stream is causal: nothing to the right is visible there
    clean = _term(
        model,
        rows.clean(hidden),
        real,
        torch.ones_like(weight),
        torch.zeros_like(real),
        replay,
        trajectories,
        scores,
        vocabulary,
        config,
    )
    total = hidden.new_zeros(())
    for copy, masked in enumerate(states):
        source = rows.copy(hidden, copy)
        source = source.roll(1, dims=1) if shift else source
        keep = masked & real & ~anchors
        term = _term(
            model,
            source,
            keep,
            weight,
            ~masked,
            replay,
            trajectories,
            scores,
            vocabulary,
            config,
            answers,
        )
        total = total + term / len(states)
    return total + config.ar_weight * clean, {"opd": total.item(), "opd_ar": clean.item()}


def _term(
    model: Qwen3ForCausalLM,
    source: Tensor,
    keep: Tensor,
    weight: Tensor,
    visible: Tensor,
    replay: Replay,
    trajectories: Sequence[Trajectory],
    scores: TeacherScores,
    vocabulary: Vocabulary,
    config: OpdConfig,
    answers: Tensor | None = None,
) -> Tensor:
    """The divergence, at visited states (``answers`` given) with the confidence term: the weighted sum."""
    ids, top, tail = scores.ids[keep], scores.top[keep], scores.tail[keep]
    if config.correct_answers:
        banned = placed_identifiers(replay, trajectories, visible, vocabulary)
        top, tail = remove_tokens(ids, top, tail, banned[keep])
    logp = log_probabilities(model, source[keep], vocabulary)
    teacher = teacher_events(top, tail, config.teacher_temperature)
    loss = divergence(teacher, student_events(logp, ids), config.divergence, config.beta)
    if answers is not None and config.confidence_weight:
        loss = loss + config.confidence_weight * confidence_loss(logp, replay.clean[keep], answers[keep])
    return (weight[keep] * loss).sum()


def confidence_loss(logp: Tensor, tokens: Tensor, answers: Tensor) -> Tensor:
    """What each position's confidence costs, in nats: ``[n]``.

    Where its best guess is not the token committed in the end, the cross-entropy of that token; else, in the
    trace, the entropy, so that it is committed earlier (consistency and certainty-forcing of dParallel, arXiv
    2509.26488). In verified rollouts that token is what the student's AR mode writes: drafts follow what
    verifies them.

    Slots of an answer are not forced to be sure where they are right: slots that are filled together exclude
    each other, and two that are sure of near-tied identifiers commit the same one twice.

    Args:
        logp: ``[n, vocabulary]`` log-probabilities.
        tokens: ``[n]`` tokens that the decode committed.
        answers: bool ``[n]``, which positions are in the answer.
    """
    entropy = -(logp.exp() * logp.clamp_min(FLOOR)).sum(-1).masked_fill(answers, 0.0)
    surprise = -logp.gather(-1, tokens[:, None]).squeeze(-1)
    return torch.where(logp.argmax(-1) == tokens, entropy, surprise)
