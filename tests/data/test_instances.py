"""Builder, prompt, evidence and what the prepare stage leaves behind."""

from __future__ import annotations

import json

import numpy as np
import pytest
from datasets import load_from_disk

from dgr2.config.schema import RetrievalConfig
from dgr2.data.crossfit import find
from dgr2.data.evidence import FEATURES, Buckets, features
from dgr2.data.folder import read_folder
from dgr2.data.instances import InstanceBuilder
from dgr2.data.midtrain import LONGEST
from dgr2.data.retrieval import Retriever
from dgr2.data.source import Item
from dgr2.data.splits import held_out_requests, training_part
from dgr2.data.statistics import ItemTable, Statistics
from dgr2.data.tokenizer import load_tokenizer
from dgr2.errors import DataError


@pytest.fixture(scope="module")
def builder(prepared):
    return InstanceBuilder.load(prepared.data)


def test_loaded_builder_repeats_the_test_lists(prepared, builder):
    rows = load_from_disk(str(prepared.data / "instances" / "test")).to_list()
    arguments = ([row["history"] for row in rows], [row["candidates"] for row in rows])
    given = builder.build(*arguments, [row["scores"] for row in rows])
    found = builder.build(*arguments)
    for row, first, second in zip(rows, given, found, strict=True):
        assert first.prompt_ids == row["prompt_ids"] == second.prompt_ids
        assert np.allclose(first.features, row["features"])
        assert np.allclose(second.scores, row["scores"], atol=1e-5)


def test_lists_of_different_length_do_not_disturb_each_other(prepared, builder):
    rows = load_from_disk(str(prepared.data / "instances" / "test")).to_list()[:2]
    histories = [row["history"] for row in rows]
    listed = [rows[0]["candidates"], rows[1]["candidates"][:3]]
    together = builder.build(histories, listed)
    alone = builder.build(histories[1:], listed[1:])
    assert together[1] == alone[0]
    assert len(together[1].order) == 3


def test_prompt_text_of_a_known_instance(prepared, builder):
    row = load_from_disk(str(prepared.data / "instances" / "test"))[0]
    history, candidates = row["history"][-2:], row["candidates"][:2]
    text = load_tokenizer(prepared.tokenizer).decode(builder.build([history], [candidates])[0].prompt_ids)
    codes = json.loads((prepared.data / "semantic_ids.json").read_text())
    names = {item.item_id: f" {item.leaf} {item.brand}" for item in prepared.source.items}

    def written(item: int) -> str:
        return "".join(f"<s{level}_{code}>" for level, code in enumerate(codes[str(item)]))

    assert text.startswith("<|user|> Rank these candidates often ")
    assert " last" + written(history[1]) + written(history[0]) + " then " in text  # the latest first
    assert "<A>" + written(candidates[0]) + names[candidates[0]] + "<follow_" in text
    assert "<B>" + written(candidates[1]) + names[candidates[1]] + "<follow_" in text
    assert text.endswith("<|assistant|>") and "<C>" not in text
    assert text.count("<price_") == text.count("<popular_") == 2


@pytest.mark.parametrize(
    ("history", "candidates", "expected"),
    [
        ([1, 99], [2, 3], "history names item 99"),
        ([1, 2], [3, 0], "candidates names item 0"),
        ([], [3, 4], "history is empty"),
        ([1], [], "candidates is empty"),
        ([1], [3, 3], "a candidate appears twice"),
        ([1], [2, 3, 4, 5, 6, 7, 8], "7 candidates, this run was prepared for 6"),
    ],
)
def test_builder_refuses(builder, history, candidates, expected):
    with pytest.raises(DataError, match=expected):
        builder.build([history], [candidates])


def test_summary_and_instances_agree(prepared):
    summary = json.loads((prepared.data / "summary.json").read_text())
    train, test = (load_from_disk(str(prepared.data / "instances" / part)) for part in ("train", "test"))
    assert summary["train_lists"] == len(train) and summary["test_instances"] == len(test)
    assert summary["semantic_id_uniqueness"] == 1.0
    assert summary["prompt_tokens"]["max"] >= max(len(ids) for ids in train["prompt_ids"][:])
    assert summary["oracle"]["recall@1"] > summary["pre_rank"]["recall@1"]
    for row in test.to_list():
        assert row["target"] in row["candidates"] and len(row["oracle"]) == len(row["candidates"])
        assert not set(row["candidates"]) & set(row["history"])
        assert prepared.source.sequences[row["user"]] == row["history"] + [row["target"]]
    rows = load_from_disk(str(prepared.data / "midtrain"))["input_ids"][:]
    assert rows and max(len(row) for row in rows) <= LONGEST


def test_features_by_hand():
    names = [("Pans", "Alder", 10.0), ("Pans", "Birk", 20.0), ("Pens", "Alder", None), ("Pens", "", 40.0)]
    items = [Item(i, "x", brand, ("Shop", leaf), price) for i, (leaf, brand, price) in enumerate(names, 1)]
    table = ItemTable.build(items)
    training = [[1, 3], [1, 3, 4], [2, 4]]
    statistics = Statistics.fit(training, table)
    retriever = Retriever.fit(training, 4, RetrievalConfig(model="cosine"))
    found = features(
        [[2, 1]], np.array([[3, 4, 0]]), np.array([[0.5, 0.25, 0.0]]), retriever.similarity, statistics, table
    )[0]
    values = {name: found[:2, i] for i, name in enumerate(FEATURES)}
    assert values["score_ratio"].tolist() == [1.0, 0.5]
    assert values["rank"].tolist() == [1.0, 2.0]
    assert np.allclose(values["popularity"], np.log1p([2, 2]))
    assert np.allclose(values["follow"], np.log1p([2, 0]))
    assert values["same_leaf"].tolist() == [0, 0] and values["same_brand"].tolist() == [1, 0]
    assert values["brand_share"].tolist() == [0.5, 0.0] and values["top_share"].tolist() == [0, 0]
    assert np.isnan(values["price_distance"][0])
    assert np.isclose(values["price_distance"][1], np.log(40) - (np.log(10) + np.log(20)) / 2)
    assert np.allclose(values["similarity_last"], retriever.similarity[1, [3, 4]].toarray()[0], atol=1e-6)
    assert values["history_length"].tolist() == [2, 2]


def test_buckets_give_a_frequent_lowest_value_its_own_level():
    values = np.zeros((1, 100, len(FEATURES)), dtype=np.float32)
    values[0, 60:, FEATURES.index("follow")] = np.arange(1, 41)
    levels = Buckets.fit(values, 8).apply(values)[0, :, 0]
    assert set(levels[:60]) == {0}
    assert levels[60] == 1 and levels[-1] == 7


@pytest.mark.beauty
def test_first_stage_on_beauty(beauty):
    source = read_folder(beauty)
    retriever = Retriever.fit(training_part(source.sequences), len(source.items), RetrievalConfig())
    requests = held_out_requests(source.sequences, "test")
    lists = retriever.retrieve(requests.histories, 10)
    places = find(lists.items, requests.targets)[lists.full]
    assert (places >= 0).sum() == 1568
    assert round(float((places[places >= 0] == 0).mean()), 4) == 0.2864
