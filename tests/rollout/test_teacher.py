"""Teacher scores against a full softmax of single, unpadded samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, tiny_model, tiny_prompts, tiny_responses

from dgr2.errors import DataError
from dgr2.models.backbone import suppress
from dgr2.rollout.teacher import score_responses, top_and_tail


@pytest.fixture(scope="module")
def samples() -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and responses of different lengths."""
    responses = [r[: len(r) - i % 5] for i, r in enumerate(tiny_responses(7))]
    return tiny_prompts(7), responses


def full(model, prompt: list[int], response: list[int]) -> np.ndarray:
    """Log-probabilities ``[T, vocabulary]`` by Hugging Face's own forward of one unpadded sample."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0]
    rows = logits[len(prompt) - 1 : -1].double()
    return torch.log_softmax(suppress(rows, VOCABULARY), dim=-1).numpy()


@pytest.mark.parametrize("top_k", [1, 5, 18, 99])
@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_scores_equal_single_unpadded_samples(samples, top_k: int, micro_batch_size: int) -> None:
    torch.set_num_threads(1)
    model = tiny_model(3, scale=20)
    k = min(top_k, VOCABULARY.size - 2)
    prompts, responses = samples
    scores = score_responses(model, prompts, responses, VOCABULARY, top_k, micro_batch_size)
    for prompt, response, (ids, top, tail) in zip(prompts, responses, scores, strict=True):
        logp = full(model, prompt, response)
        assert ids.shape == top.shape == (len(response), k) and tail.shape == (len(response),)
        assert (ids.dtype, top.dtype, tail.dtype) == (np.int32, np.float32, np.float32)
        assert not {VOCABULARY.pad, VOCABULARY.mask} & set(ids.ravel().tolist())
        np.testing.assert_allclose(top, np.take_along_axis(logp, ids, 1), atol=2e-5)
        np.testing.assert_allclose(top, -np.sort(-logp, axis=1)[:, :k], atol=2e-5)
        rest = logp.copy()
        np.put_along_axis(rest, ids, -np.inf, 1)
        np.testing.assert_allclose(np.exp(tail), np.exp(rest).sum(1), atol=1e-6)
        assert np.all(np.isneginf(tail)) == (k == VOCABULARY.size - 2) and not np.isnan(tail).any()


def test_a_small_tail_is_summed_and_not_subtracted() -> None:
    logits = torch.tensor([30.0, 29.0, 0.0, -1.0])
    ids, _, tail = top_and_tail(torch.log_softmax(logits, -1), 2)
    exact = torch.log_softmax(logits.double(), -1)[2:].logsumexp(0)
    assert ids.tolist() == [0, 1] and abs(tail - exact) < 1e-5  # 1 - p would give -inf


def test_what_cannot_be_scored_is_named() -> None:
    model = tiny_model(3)
    with pytest.raises(DataError, match="response 1 is empty"):
        score_responses(model, [[11], [12]], [[11], []], VOCABULARY, 4, 2)
    with pytest.raises(DataError, match="response 0 have 97 tokens; the teacher's context is 96"):
        score_responses(model, [[11]], [[11] * 96], VOCABULARY, 4, 2)
