"""Replay of trajectories: the log-probability of every committed token in the state at its step, in one forward.

Each row is ``[prompt | clean response | state 0 | state 1 | ...]``: copy s shows every block as it was before
its step s, so all steps of all blocks are evaluated at once, sharing one clean stream. Anchors are actions of
the clean stream. The result is differentiable: it is the likelihood that RL optimises, and equals what the
decoder recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.config.schema import GridConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.trajectory import Trajectory
from dgr2.errors import DataError
from dgr2.models.backbone import hidden_states, suppress
from dgr2.models.packed import PackedRows, pack

NEVER = torch.iinfo(torch.long).max
"""Step of a position where nothing was committed."""


@dataclass
class Replay:
    """A batch of trajectories laid out for replay.

    Attributes:
        rows: Packed rows with one noisy copy a step.
        clean: ``[batch, response]`` committed tokens, end tokens where a row's last block goes on.
        steps: ``[batch, response]`` step of each token within its block.
        decided: bool ``[batch, response]``: tokens of the response that the model decided, not a rule.
        banned: bool ``[batch, response, vocabulary]`` tokens that were impossible for a decision, because of a rule.
        block_size: Tokens a block.
    """

    rows: PackedRows
    clean: Tensor
    steps: Tensor
    decided: Tensor
    banned: Tensor
    block_size: int


def build_replay(
    prompts: Sequence[Sequence[int]],
    trajectories: Sequence[Trajectory],
    vocabulary: Vocabulary,
    grid: GridConfig,
) -> Replay:
    """Lay trajectories of one policy out.

    Raises:
        DataError: when the trajectories were decoded by different policies.
    """
    policy = DecodePolicy(**trajectories[0].policy)
    if any(t.policy != trajectories[0].policy for t in trajectories):
        raise DataError("trajectories of different decode policies cannot be replayed in one batch")
    size = policy.block_size
    width = -(-max(len(t.tokens) for t in trajectories) // size) * size
    clean = torch.full((len(trajectories), width), vocabulary.eos)
    steps = torch.full((len(trajectories), width), NEVER)
    decided = torch.zeros(len(trajectories), width, dtype=torch.bool)
    for row, t in enumerate(trajectories):
        n = len(t.tokens)
        clean[row, :n] = torch.tensor(t.tokens)
        steps[row, :n] = torch.tensor(t.steps)
        decided[row, :n] = ~torch.tensor(t.forced)
        for position, (token, step, _) in enumerate(t.tail, start=n):
            if token >= 0:
                clean[row, position], steps[row, position] = token, step
    taken = torch.where(decided, steps, 0)
    copies = int(taken.max()) + 1 if size > 1 else 0
    noisy = [clean.masked_fill(steps >= step, vocabulary.mask) for step in range(copies)]
    valid = torch.ones_like(decided)
    rows = pack(prompts, clean, valid, noisy, vocabulary.pad, size)
    return Replay(rows, clean, steps, decided, _banned(trajectories, clean, steps, policy, vocabulary), size)


def replay_logprobs(
    model: Qwen3ForCausalLM,
    replay: Replay,
    vocabulary: Vocabulary,
    shift: bool = False,
    temperature: float = 1.0,
) -> Tensor:
    """Log-probability of each token in the state it was committed in: ``[batch, response]``, 0 where not decided."""
    states = decision_states(hidden_states(model, replay.rows), replay, shift)
    keep = replay.decided
    logp = masked_log_probabilities(model, states[keep], replay.banned[keep], vocabulary, temperature)
    chosen = logp.gather(-1, replay.clean[keep][:, None])[:, 0]
    return torch.zeros_like(states[..., 0]).masked_scatter(keep, chosen)


def decision_states(hidden: Tensor, replay: Replay, shift: bool = False) -> Tensor:
    """The hidden state each decision was made from: ``[batch, response, hidden]``; anchors from the clean stream."""
    rows = replay.rows
    clean = rows.clean(hidden)
    if not rows.copies:
        return clean
    copies = torch.stack(
        [rows.copy(hidden, c) for c in range(rows.copies)]
    )  # [copies, batch, response, hidden]
    if shift:
        copies = copies.roll(1, dims=2)
    index = replay.steps.clamp_max(rows.copies - 1)[None, ..., None].expand(1, -1, -1, hidden.shape[-1])
    in_place = copies.gather(0, index)[0]
    anchor = torch.arange(rows.response) % replay.block_size == 0
    return torch.where(anchor[None, :, None], clean, in_place)


def masked_log_probabilities(
    model: Qwen3ForCausalLM, states: Tensor, banned: Tensor, vocabulary: Vocabulary, temperature: float
) -> Tensor:
    """Log-probabilities with each decision's impossible tokens removed and the rest renormalised."""
    logits = suppress(model.lm_head(states).float(), vocabulary) / (temperature or 1.0)
    return torch.log_softmax(logits.masked_fill(banned, float("-inf")), dim=-1)


def _banned(
    trajectories: Sequence[Trajectory],
    clean: Tensor,
    steps: Tensor,
    policy: DecodePolicy,
    vocabulary: Vocabulary,
) -> Tensor:
    """What a rule made impossible for each token: bool ``[batch, response, vocabulary]``."""
    banned = torch.zeros(*clean.shape, vocabulary.size, dtype=torch.bool)
    if not policy.rules:
        return banned
    size = policy.block_size
    labels = torch.tensor(vocabulary.labels)
    for row, t in enumerate(trajectories):
        start = t.answer_start if t.answer_start is not None else len(t.tokens)
        banned[row, :start, vocabulary.eos] = True
        identifiers = labels[: t.candidates]
        for slot in range(min(t.candidates, len(t.tokens) - start)):
            position = start + slot
            block, step = position // size, int(steps[row, position])
            earlier = [
                p
                for p in range(start, min(start + t.candidates, len(t.tokens)))
                if p // size < block
                or (p // size == block and (steps[row, p] < step or (steps[row, p] == step and p < position)))
            ]
            banned[row, position] = True
            banned[row, position, identifiers] = False
            banned[row, position, clean[row, earlier]] = True
    return banned
