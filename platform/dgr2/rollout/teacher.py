"""The teacher's view of a response: its most probable tokens at every position, and the mass of the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from dgr2.config.fingerprint import fingerprint
from dgr2.data.vocabulary import Vocabulary
from dgr2.errors import ConfigError, DataError
from dgr2.models.backbone import hidden_states, log_probabilities
from dgr2.models.packed import pack, pad_responses
from dgr2.rollout.chunks import chunks

Scores = tuple[np.ndarray, np.ndarray, np.ndarray]
"""One response of T tokens: ids int32 ``[T, k]``, their log-probabilities ``[T, k]``, the tail's ``[T]``."""


@torch.no_grad()
def score_responses(
    model: Qwen3ForCausalLM,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    top_k: int,
    micro_batch_size: int,
) -> list[Scores]:
    """Score each response in one causal pass: entry t is the distribution of token t given all before it.

    Padding, mask and spare ids are impossible, so k is at most the number of the others. The tail is the
    log-probability of everything outside the top k, summed and not subtracted; -inf where nothing is left.

    Raises:
        DataError: an empty prompt or response, or one that exceeds the context.
    """
    _check(prompts, responses, int(model.config.max_position_embeddings))
    k = min(top_k, vocabulary.size - 2)
    scores: list[Scores] = []
    pairs = list(zip(prompts, responses, strict=True))
    for batch in chunks(pairs, micro_batch_size):
        clean, valid = pad_responses([response for _, response in batch], vocabulary.pad)
        rows = pack([prompt for prompt, _ in batch], clean, valid, [], vocabulary.pad, block_size=1)
        logp = log_probabilities(model, rows.clean(hidden_states(model, rows)), vocabulary)
        ids, top, tail = top_and_tail(logp, k)
        for row, (_, response) in enumerate(batch):
            n = len(response)
            scores.append(
                (
                    ids[row, :n].to(torch.int32).numpy().copy(),
                    top[row, :n].numpy().copy(),
                    tail[row, :n].numpy().copy(),
                )
            )
    return scores


def top_and_tail(logp: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids ``[..., k]`` of the most probable tokens, their log-probabilities, and that of all the others."""
    top, ids = logp.topk(k, dim=-1)
    return ids, top, torch.logsumexp(logp.scatter(-1, ids, float("-inf")), dim=-1)


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of what ids mean: vocabulary, special tokens, chat template."""
    return fingerprint(
        {
            "vocabulary": tokenizer.get_vocab(),
            "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
            "template": tokenizer.chat_template,
        }
    )


def require_same_tokenizer(teacher: PreTrainedTokenizerBase, student: str) -> None:
    """Refuse a teacher whose ids mean something else than the student's.

    Args:
        student: :func:`tokenizer_fingerprint` of the student's.

    Raises:
        ConfigError: with both fingerprints.
    """
    found = tokenizer_fingerprint(teacher)
    if found != student:
        raise ConfigError(
            f"the teacher's tokenizer ({found}) is not the student's ({student}): ids would mean something "
            "else to the teacher; train both from the same prepared data"
        )


def _check(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], context: int) -> None:
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if not prompt or not response:
            raise DataError(f"{'prompt' if not prompt else 'response'} {index} is empty")
        if len(prompt) + len(response) > context:
            raise DataError(
                f"prompt and response {index} have {len(prompt) + len(response)} tokens; "
                f"the teacher's context is {context}"
            )
