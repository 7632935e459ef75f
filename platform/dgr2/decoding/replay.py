"""Replay of trajectories: the log-probability of every committed token at its step, in one forward.

Each row is ``[prompt | clean response | state | state | ...]``: a state is one block as it was before one of
its steps, and there is one for every step that decided something, so all steps of all blocks are evaluated
at once and share one clean stream. Anchors are actions of the clean stream. The result is differentiable:
it is the likelihood that RL optimises, and equals what the decoder recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.trajectory import Trajectory
from dgr2.errors import DataError
from dgr2.models.backbone import hidden_states, suppress
from dgr2.models.packed import PackedRows, block_positions, pack_blocks

NEVER = torch.iinfo(torch.long).max
"""Step of a position where nothing was committed."""


@dataclass
class Replay:
    """A batch of trajectories laid out for replay.

    Attributes:
        clean: ``[batch, response]`` committed tokens, end tokens where a row's last block goes on.
        steps: ``[batch, response]`` step of each token within its block.
        decided: bool ``[batch, response]``: tokens of the response that the model decided, not a rule.
        banned: bool ``[batch, response, vocabulary]`` tokens that a rule made impossible for a decision.
        block_size: Tokens a block.
        verified: The decode was verified: a state holds what was right in it, and the likelihood is that of
            AR decoding.
    """

    clean: Tensor
    steps: Tensor
    decided: Tensor
    banned: Tensor
    block_size: int
    verified: bool = False


def build_replay(trajectories: Sequence[Trajectory], vocabulary: Vocabulary) -> Replay:
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
    banned = _banned(trajectories, clean, steps, policy, vocabulary)
    return Replay(clean, steps, decided, banned, size, policy.verify)


def replay_logprobs(
    model: Qwen3ForCausalLM,
    prompts: Sequence[Sequence[int]],
    replay: Replay,
    vocabulary: Vocabulary,
    shift: bool = False,
    temperature: float = 1.0,
) -> Tensor:
    """Log-probability of each token in the state of its decision: ``[batch, response]``, else 0.

    Raises:
        DataError: the trajectories were verified: their tokens were not decided in these states.
    """
    if replay.verified:
        raise DataError("verified trajectories have no likelihood by states: roll out without verification")
    rows, place = pack_decisions(prompts, replay, vocabulary)
    hidden, keep = hidden_states(model, rows), replay.decided
    clean, noisy = rows.clean(hidden), rows.noisy(hidden)
    states = clean[keep]
    if noisy.shape[1]:
        row, position = keep.nonzero(as_tuple=True)
        in_place = noisy[row, place[keep] - int(shift)]  # a decision in place is never the first of its block
        states = torch.where((position % replay.block_size == 0)[:, None], states, in_place)
    logp = masked_log_probabilities(model, states, replay.banned[keep], vocabulary, temperature)
    chosen = logp.gather(-1, replay.clean[keep][:, None])[:, 0]
    return hidden.new_zeros(keep.shape).masked_scatter(keep, chosen)


def pack_decisions(
    prompts: Sequence[Sequence[int]], replay: Replay, vocabulary: Vocabulary
) -> tuple[PackedRows, Tensor]:
    """Rows with a state for every step that decided more than an anchor.

    Returns:
        The rows, and ``[batch, response]`` where in the noisy part each decision in place was made.
    """
    size, (batch, width) = replay.block_size, replay.clean.shape
    in_place = replay.decided & (torch.arange(width) % size != 0)
    visited = [
        sorted({(p // size, int(replay.steps[row, p])) for p in in_place[row].nonzero()[:, 0].tolist()})
        for row in range(batch)
    ]
    count = max(map(len, visited))
    blocks = torch.full((batch, count), -1)
    steps = torch.zeros(batch, count, dtype=torch.long)
    place = torch.zeros(batch, width, dtype=torch.long)
    for row, pairs in enumerate(visited):
        for state, (block, step) in enumerate(pairs):
            blocks[row, state], steps[row, state] = block, step
            first = block * size
            here = replay.steps[row, first : first + size] == step
            place[row, first : first + size][here] = state * size + torch.arange(size)[here]
    positions = block_positions(blocks, size)
    shown = replay.clean.gather(1, positions).view(batch, count, size)
    hidden = replay.steps.gather(1, positions).view(batch, count, size) >= steps[..., None]
    states = shown.masked_fill(hidden, vocabulary.mask)
    return pack_blocks(prompts, replay.clean, blocks, states, vocabulary.pad), place


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
                or (p // size == block and steps[row, p] < step)
                # of one step, left to right; what a rule filled in came after all decisions
                or (p // size == block and steps[row, p] == step and p < position and not t.forced[p])
            ]
            banned[row, position] = True
            banned[row, position, identifiers] = False
            banned[row, position, clean[row, earlier]] = True
    return banned
