"""Replay of trajectories with gradients: all steps in one packed forward, against one row a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.benchmarks.figures import Figures, Summary, exact
from dgr2.benchmarks.shapes import LABELS, find_shape, words
from dgr2.config.schema import GridConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.replay import Replay, build_replay, masked_log_probabilities, replay_logprobs
from dgr2.decoding.trajectory import Trajectory
from dgr2.models.backbone import hidden_states
from dgr2.models.packed import PackedRows
from dgr2.telemetry import time_turns

PROMPT, ROWS = 192, 16
"""Tokens of a prompt, trajectories of a micro-batch: the demo's."""
POLICY = DecodePolicy("policy", 16, 4, "threshold", 4, commit="static", temperature=1.0)
"""Four tokens a forward, whatever the weights."""


def bench_replay(shape: str, repeats: int, summary: Summary) -> Figures:
    """Seconds of likelihood and gradient of a micro-batch of trajectories."""
    model, vocabulary = find_shape(shape).build(summary.seed)
    prompts: list[list[int]] = words((ROWS, PROMPT), vocabulary, summary.seed).tolist()
    trajectories = Decoder(model, vocabulary, GridConfig()).decode(
        prompts, [LABELS] * ROWS, POLICY, batch_size=ROWS, seed=summary.seed
    )
    replay = build_replay(trajectories, vocabulary)

    def run(logprobs: Tensor) -> None:
        model.zero_grad(set_to_none=True)
        logprobs.sum().backward()

    def packed(turn: int) -> None:
        run(replay_logprobs(model, prompts, replay, vocabulary))

    def one_row_a_step(turn: int) -> None:
        run(stepwise_logprobs(model, prompts, trajectories, replay, vocabulary))

    timed = time_turns({"packed": packed, "one_row_a_step": one_row_a_step}, repeats)
    decided = float(replay.decided.sum()) / sum(t.forwards for t in trajectories)
    return {
        **{f"replay_{name}_seconds": summary.median(turns.seconds, "s") for name, turns in timed.items()},
        "replay_packed": summary.ratio(timed["one_row_a_step"].seconds, timed["packed"].seconds),
        "replay_tokens_per_forward": exact(decided, "tokens"),
    }


def stepwise_logprobs(
    model: Qwen3ForCausalLM,
    prompts: Sequence[Sequence[int]],
    trajectories: Sequence[Trajectory],
    replay: Replay,
    vocabulary: Vocabulary,
) -> Tensor:
    """What :func:`dgr2.decoding.replay.replay_logprobs` gives, from a row for every step.

    The common way: ``[prompt | what was committed before | the block as it was]``, and anchors from the
    causal row of the whole response.
    """
    size = replay.block_size
    sequences: list[list[int]] = []
    known: list[int] = []  # tokens at the head of a row that are clean
    reads: list[tuple[int, int, int, int]] = []  # trajectory, response position, row, column of the state
    for index, (prompt, t) in enumerate(zip(prompts, trajectories, strict=True)):
        sequences.append([*prompt, *t.tokens])
        known.append(len(sequences[-1]))
        decided = [p for p in range(len(t.tokens)) if bool(replay.decided[index, p])]
        reads += [(index, p, len(sequences) - 1, len(prompt) + p - 1) for p in decided if p % size == 0]
        for first in range(0, len(t.tokens), size):
            inside = [p for p in decided if first < p < first + size]
            steps = replay.steps[index, first : first + size]
            for step in sorted({int(replay.steps[index, p]) for p in inside}):
                state = replay.clean[index, first : first + size].masked_fill(steps >= step, vocabulary.mask)
                sequences.append([*prompt, *t.tokens[:first], *state.tolist()])
                known.append(len(prompt) + first)
                here = [p for p in inside if int(replay.steps[index, p]) == step]
                reads += [(index, p, len(sequences) - 1, len(prompt) + p) for p in here]
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), vocabulary.pad)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    column = torch.arange(width)
    causal = column[:, None] >= column[None]
    noisy_query = column[None, :, None] >= torch.tensor(known)[:, None, None]
    inside_row = column[None, None, :] < torch.tensor(list(map(len, sequences)))[:, None, None]
    mask = (causal | (noisy_query & inside_row))[:, None]
    positions = column[None].expand(len(sequences), -1)
    rows = PackedRows(ids, positions, mask, 0, width, 0, size, torch.ones_like(ids, dtype=torch.bool))
    hidden = hidden_states(model, rows)
    trajectory, position, row, place = torch.tensor(reads).T
    logp = masked_log_probabilities(
        model, hidden[row, place], replay.banned[trajectory, position], vocabulary, 1.0
    )
    chosen = logp.gather(-1, replay.clean[trajectory, position][:, None])[:, 0]
    return hidden.new_zeros(replay.clean.shape).index_put((trajectory, position), chosen)
