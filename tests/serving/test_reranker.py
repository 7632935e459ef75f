"""Requests to permutations, without a server."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from dgr2.errors import StorageError
from dgr2.serving.reranker import InvalidQuery, Query, Reranker, load_newest
from dgr2.storage import RunFolder

Add = Callable[..., Path]
HISTORY, ITEMS, CANDIDATES = 50, 60, 6


@pytest.fixture(scope="module")
def reranker(served_run: RunFolder) -> Reranker:
    return Reranker.load(served_run, "cft", HISTORY)


@pytest.fixture
def run_copy(served_run: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(served_run.path, tmp_path / "copy")))


def queries(count: int, seed: int = 0) -> list[Query]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        items = random.permutation(ITEMS)[: random.integers(3, 12)] + 1
        n = int(random.integers(1, min(CANDIDATES, len(items) - 1) + 1))
        made.append(Query(items[n:].tolist(), items[:n].tolist(), bool(random.integers(2))))
    return made


def test_every_answer_is_a_permutation_whatever_the_batch(reranker: Reranker) -> None:
    asked = queries(24)
    together = reranker.rerank(asked)
    for query, answer in zip(asked, together, strict=True):
        assert sorted(answer.ranking) == sorted(query.candidates)
        assert answer.valid and (answer.reasoning is not None) == query.reasoning
    assert [reranker.rerank([query])[0] for query in asked[:6]] == together[:6]
    assert reranker.rerank([]) == []


def test_the_example_is_a_full_request_of_real_items(reranker: Reranker) -> None:
    query = reranker.example()
    reranker.check(query)
    assert len(query.candidates) == CANDIDATES and len(query.history) >= 2
    assert not set(query.history) & set(query.candidates)
    (answer,) = reranker.rerank([query])
    assert len(answer.reasoning or "") > 0


def test_an_invalid_decode_is_repaired_and_flagged(run_copy: RunFolder, add_student: Add) -> None:
    add_student(run_copy, "opd", policy="threshold", seed=3)
    reranker = load_newest(run_copy, HISTORY)
    assert reranker.name == "opd"
    asked = [query for query in queries(40, seed=1) if len(query.candidates) > 1]
    answers = reranker.rerank(asked)
    assert any(not answer.valid for answer in answers)
    for query, answer in zip(asked, answers, strict=True):
        assert sorted(answer.ranking) == sorted(query.candidates)
        if answer.flaws == ("unparsable",):
            assert answer.ranking == query.candidates


@pytest.mark.parametrize(
    ("change", "location", "words"),
    [
        ({"history": []}, ("history",), "no item"),
        ({"history": [1] * (HISTORY + 1)}, ("history",), f"at most {HISTORY}"),
        ({"history": [1, 0]}, ("history", 1), "items 1 to 60"),
        ({"candidates": []}, ("candidates",), "empty"),
        ({"candidates": list(range(1, 8))}, ("candidates",), "at most 6"),
        ({"candidates": [3, 10**30]}, ("candidates", 1), "items 1 to 60"),
        ({"candidates": [3, 4, 3]}, ("candidates",), "item 3 2 times"),
    ],
)
def test_what_cannot_be_ranked_names_its_field(
    reranker: Reranker, change: dict, location: tuple, words: str
) -> None:
    with pytest.raises(InvalidQuery, match=words) as error:
        reranker.check(replace(Query([1, 2], [3, 4]), **change))
    assert error.value.location == location


def test_a_history_may_repeat_items_and_be_longer_than_what_is_shown(reranker: Reranker) -> None:
    query = Query([5, 6] * (HISTORY // 2), [7, 8, 9])
    reranker.check(query)
    assert sorted(reranker.rerank([query])[0].ranking) == [7, 8, 9]


def _no_decoding(folder: Path) -> None:
    (folder / "decoding.json").unlink()


def _not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _other_tokenizer(folder: Path) -> None:
    file = folder / "tokenizer.json"
    file.write_bytes(file.read_bytes() + b" ")


@pytest.mark.parametrize("damage", [_no_decoding, _not_finite, _cut, _no_weights, _other_tokenizer])
def test_the_newest_good_student_is_taken(
    run_copy: RunFolder, add_student: Add, damage: Callable[[Path], None]
) -> None:
    damage(add_student(run_copy, "rl", seed=1))
    assert load_newest(run_copy, HISTORY).name == "cft"
    with pytest.raises(StorageError, match="rl: "):
        load_newest(run_copy, HISTORY, stages=["rl"])


def test_an_unfinished_stage_is_no_student(run_copy: RunFolder, add_student: Add) -> None:
    add_student(run_copy, "rl")
    run_copy.begin_stage("rl", "anew")
    assert load_newest(run_copy, HISTORY).name == "cft"
    run_copy.begin_stage("cft", "anew")
    with pytest.raises(StorageError, match="no student to serve: none has finished"):
        load_newest(run_copy, HISTORY)


def test_a_model_whose_prompts_leave_no_room_is_refused(reranker: Reranker) -> None:
    lists = [list(range(start, start + CANDIDATES)) for start in range(1, ITEMS - CANDIDATES)]
    built = reranker.builder.build([list(range(1, 20))] * len(lists), lists)
    prompts = [len(instance.prompt_ids) for instance in built]
    assert max(prompts) <= reranker.longest_prompt <= 1.3 * max(prompts)
    tight = copy.copy(reranker)
    tight.decoder = copy.copy(reranker.decoder)
    tight.decoder.context = reranker.longest_prompt + 12
    with pytest.raises(StorageError, match=f"context of {tight.decoder.context}"):
        tight.require_room()
