"""The folder reader: what it accepts and what it says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dgr2.data.folder import read_folder
from dgr2.data.source import check_source
from dgr2.errors import DataError

ITEMS = [
    {"item_id": 1, "title": "Blue pan", "brand": "Alder", "categories": ["Kitchen", "Pans"], "price": 12},
    {"item_id": 2, "title": "", "brand": None, "categories": [], "price": None},
]


def _write(folder: Path, items: str, sequences: str) -> Path:
    (folder / "items.jsonl").write_text(items)
    (folder / "sequences.txt").write_text(sequences)
    return folder


def _lines(items: list[dict]) -> str:
    return "\n".join(json.dumps(item) for item in items)


def test_reads_items_and_sequences(tmp_path):
    source = read_folder(_write(tmp_path, _lines(ITEMS), "7 1 2\n9 2\n"))
    assert source.users == [7, 9]
    assert source.sequences == [[1, 2], [2]]
    assert source.items[0].leaf == "Pans" and source.items[0].price == 12.0
    assert source.items[1].leaf == "" and source.items[1].price is None and source.items[1].brand == ""
    assert source.oracle is None


def test_reads_gzip(tmp_path):
    for name, text in (("items.jsonl.gz", _lines(ITEMS)), ("sequences.txt.gz", "1 2 1")):
        with gzip.open(tmp_path / name, "wt") as file:
            file.write(text)
    assert read_folder(tmp_path).sequences == [[2, 1]]


@pytest.mark.parametrize(
    ("items", "sequences", "expected"),
    [
        (_lines(ITEMS), "7 1 2\n8 1 3", "line 2: user 8 names item 3"),
        (_lines(ITEMS), "7 1 2\n7 2", "line 2: user 7 appears a second time"),
        (_lines(ITEMS), "7 1 2 1", "user 7 has item 1 more than once"),
        (_lines(ITEMS), "7 one", "expected whole numbers"),
        (_lines(ITEMS), "7", "user 7 has no items"),
        (_lines(ITEMS), "", "sequences.txt is empty"),
        ("", "7 1", "items.jsonl is empty"),
        (_lines(ITEMS) + "\n{broken", "7 1", "line 3: not valid JSON"),
        (_lines(ITEMS) + "\n[1]", "7 1", "line 3: expected a JSON object"),
        (_lines([ITEMS[0], ITEMS[0]]), "7 1", "line 2: item_id 1 appears a second time"),
        (_lines([{**ITEMS[0], "item_id": 5}]), "7 1", "1 is missing"),
        (_lines([{**ITEMS[0], "item_id": "x"}]), "7 1", "item_id must be a whole number"),
        (_lines([{**ITEMS[0], "price": "cheap"}]), "7 1", "price must be a number or null"),
        (_lines([{**ITEMS[0], "categories": "Pans"}]), "7 1", "categories must be a list"),
        (_lines([{**ITEMS[0], "title": 3}]), "7 1", "title must be text"),
    ],
)
def test_names_what_is_wrong(tmp_path, items, sequences, expected):
    with pytest.raises(DataError, match=expected):
        read_folder(_write(tmp_path, items, sequences))


def test_missing_folder_and_files(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"neither items.jsonl nor items.jsonl.gz"):
        read_folder(tmp_path)


def test_damaged_gzip_is_a_data_error(tmp_path):
    (tmp_path / "items.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "sequences.txt").write_text("1 1")
    with pytest.raises(DataError, match="cannot be read"):
        read_folder(tmp_path)


def test_sequences_too_short_to_hold_out(tmp_path):
    source = read_folder(_write(tmp_path, _lines(ITEMS), "7 1 2"))
    with pytest.raises(DataError, match="users with at least 5"):
        check_source(source)
