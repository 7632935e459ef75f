"""Responses: layout on the grid, grades, order, rejection."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import load_from_disk

from dgr2.config.schema import GridConfig
from dgr2.data.instances import InstanceBuilder
from dgr2.data.tokenizer import load_tokenizer
from dgr2.data.traces import Grades, TraceWriter, answer_order, rejection_sample, strongest_evidence
from dgr2.data.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def lists(prepared):
    return {
        part: load_from_disk(str(prepared.data / "instances" / part)).to_list() for part in ("train", "valid")
    }


@pytest.mark.parametrize("part", ["train", "valid"])
def test_layout_on_the_grid(prepared, lists, part):
    size, blocks = prepared.config.grid.block_size, prepared.config.grid.trace_blocks
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(prepared.tokenizer), 6)
    assert lists[part]
    for row in lists[part]:
        response, count = row["response_ids"], len(row["candidates"])
        assert len(response) % size == 0
        close = response.index(vocabulary.think_end)
        answer = response[close + 1 :]
        fill = next(i for i, token in enumerate(answer) if token != vocabulary.fill)
        start = close + 1 + fill
        assert start % size == 0 and start <= blocks * size and fill < size
        labels = response[start : start + count]
        assert sorted(labels) == sorted(vocabulary.labels[:count])
        if part == "train":  # a validation list keeps the expert's order, which tells equal grades apart
            assert labels == [vocabulary.labels[i] for i in row["order"]]
        rest = response[start + count :]
        assert rest and set(rest) == {vocabulary.eos} and len(rest) <= size
        matched = response[close - 3 * count : close]
        assert matched[::3] == list(vocabulary.labels[:count])
        assert set(matched[2::3]) <= set(vocabulary.grades)


def test_cited_evidence_stands_in_the_prompt(prepared, lists):
    close = Vocabulary.from_tokenizer(load_tokenizer(prepared.tokenizer), 6).think_end
    for row in lists["train"]:
        count = len(row["candidates"])
        end = row["response_ids"].index(close)
        assert set(row["response_ids"][end - 3 * count : end][1::3]) <= set(row["prompt_ids"])


def test_trace_restates_the_reading_of_the_prompt(lists):
    for row in lists["train"]:
        start = row["response_ids"][:6]
        assert any(row["prompt_ids"][i : i + 6] == start for i in range(len(row["prompt_ids"])))


def test_answer_is_a_function_of_the_grades(prepared, lists):
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(prepared.tokenizer), 6)
    for row in lists["train"]:
        count = len(row["candidates"])
        close = row["response_ids"].index(vocabulary.think_end)
        tokens = row["response_ids"][close - 3 * count : close][2::3]
        grades = np.array([[vocabulary.grades.index(token) for token in tokens]])
        assert answer_order(grades)[0].tolist() == row["order"]


def test_known_targets_come_first(lists, prepared):
    known = [row for row in lists["train"] if row["target"]]
    assert known and len(known) < len(lists["train"])
    assert all(row["candidates"][row["order"][0]] == row["target"] for row in known)
    assert 0 < prepared.summary["rejection_acceptance"] < 1


def test_some_training_lists_are_short(lists):
    short = [row for row in lists["train"] if len(row["candidates"]) < 6]
    assert 0.03 < len(short) / len(lists["train"]) < 0.2
    assert all(len(row["candidates"]) >= 2 for row in short)
    assert any(row["target"] for row in short)


def test_rejection_keeps_lists_without_target_noise_free():
    scores = np.array([[0.1, 0.9, 0.5], [0.1, 0.9, 0.5], [0.0, 5.0, 0.0], [0.4, 0.5, -np.inf]])
    places = np.array([-1, 1, 2, 0])
    grades = Grades((0.3, 0.6))
    kept, accepted = rejection_sample(scores, places, grades, 8, 0.3, np.random.default_rng(0))
    assert accepted.tolist() == [True, True, False, True]
    assert kept[0].tolist() == kept[1].tolist() == [0, 2, 1]
    assert kept[3, 2] == -1 and answer_order(kept)[3].tolist()[0] == 0


def test_grades_are_finer_at_the_top():
    scores = np.random.default_rng(0).normal(size=(400, 10))
    edges = np.array(Grades.fit(scores, 10).edges)
    assert len(edges) == 9
    assert (edges > np.quantile(scores, 0.8)).sum() >= 4


def test_strongest_evidence_prefers_follow_then_level_then_order():
    levels = np.array([[1, 7, 0, 0, 0, 0, 0, 0], [0, 3, 3, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 5, 4]])
    assert strongest_evidence(levels, 1).tolist() == [[0], [1], [6]]
    assert strongest_evidence(levels, 3).tolist() == [[0, 1, 2], [1, 2, 3], [6, 7, 0]]
    assert sorted(strongest_evidence(levels, 8)[1].tolist()) == list(range(8))


@pytest.mark.parametrize("evidence", [1, 3, 8])
def test_traces_cite_as_much_evidence_as_asked(prepared, lists, evidence):
    builder, row = InstanceBuilder.load(prepared.data), lists["valid"][0]
    scores = np.array([row["scores"]])
    measured = builder.measure([row["history"]], np.array([row["candidates"]]), scores)
    grid = GridConfig(block_size=16, trace_blocks=6)
    writer = TraceWriter(builder.tokens, grid, evidence)
    (response,) = writer.write(
        measured.readings, measured.counts, measured.levels, measured.grades, measured.order
    )
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(prepared.tokenizer), 6)
    count, step = len(row["candidates"]), 2 + evidence
    end = response.index(vocabulary.think_end)
    matched = np.array(response[end - step * count : end]).reshape(count, step)
    assert matched[:, 0].tolist() == list(vocabulary.labels[:count])
    assert set(matched[:, -1].tolist()) <= set(vocabulary.grades)
    assert all(len(set(cited)) == evidence for cited in matched[:, 1:-1].tolist())
    assert set(matched[:, 1:-1].ravel().tolist()) <= set(row["prompt_ids"])


def test_valid_orders_are_the_experts(prepared, lists):
    builder = InstanceBuilder.load(prepared.data)
    rows = load_from_disk(str(prepared.data / "instances" / "test")).to_list()
    built = builder.build([r["history"] for r in rows], [r["candidates"] for r in rows])
    assert [instance.order for instance in built] == [row["order"] for row in rows]
