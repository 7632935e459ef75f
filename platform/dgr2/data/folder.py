"""Reads a folder of ``items.jsonl[.gz]`` and ``sequences.txt[.gz]``; every error names file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dgr2.data.source import Item, Source
from dgr2.errors import DataError


def read_folder(path: str | Path) -> Source:
    """Read a catalogue and its sequences.

    ``items.jsonl``: one object a line with ``item_id`` (1..n, each once), ``title``, ``brand``,
    ``categories`` (root to leaf), ``price`` (number or null). ``sequences.txt``: ``user item item …``,
    oldest first, no item twice.

    Raises:
        DataError: missing or empty file, bad line, unknown or repeated item, repeated user.
    """
    folder = Path(path)
    if not str(path) or not folder.is_dir():
        raise DataError(f"data.path: {str(path)!r} is not a folder; it needs items.jsonl and sequences.txt")
    items = _read_items(_find(folder, "items.jsonl"))
    users, sequences = _read_sequences(_find(folder, "sequences.txt"), len(items))
    return Source(items=items, users=users, sequences=sequences)


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise DataError(f"{folder} has neither {name} nor {name}.gz")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error


def _read_items(path: Path) -> list[Item]:
    found: dict[int, Item] = {}
    for number, line in _lines(path):
        where = f"{path} line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not valid JSON ({error.msg} at column {error.colno})") from error
        item = _item(record, where)
        if item.item_id in found:
            raise DataError(f"{where}: item_id {item.item_id} appears a second time")
        found[item.item_id] = item
    if not found:
        raise DataError(f"{path} is empty: it needs one JSON object a line")
    missing = next((i for i in range(1, len(found) + 1) if i not in found), None)
    if missing is not None:
        raise DataError(f"{path}: item ids must be 1..{len(found)} without gaps, {missing} is missing")
    return [found[i] for i in range(1, len(found) + 1)]


def _item(record: Any, where: str) -> Item:
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object")
    item_id = record.get("item_id")
    if not isinstance(item_id, int) or isinstance(item_id, bool) or item_id < 1:
        raise DataError(f"{where}: item_id must be a whole number from 1, found {item_id!r}")
    categories = record.get("categories") or []
    if not isinstance(categories, list) or not all(isinstance(name, str) for name in categories):
        raise DataError(f"{where}: categories must be a list of strings, root to leaf")
    price = record.get("price")
    if price is not None and (isinstance(price, bool) or not isinstance(price, int | float)):
        raise DataError(f"{where}: price must be a number or null, found {price!r}")
    texts = {name: record.get(name) or "" for name in ("title", "brand")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise DataError(f"{where}: {name} must be text, found {text!r}")
    dollars = None if price is None else float(price)
    return Item(item_id, texts["title"], texts["brand"], tuple(categories), dollars)


def _read_sequences(path: Path, item_count: int) -> tuple[list[int], list[list[int]]]:
    sequences: dict[int, list[int]] = {}
    for number, line in _lines(path):
        where = f"{path} line {number}"
        try:
            user, *sequence = (int(field) for field in line.split())
        except ValueError as error:
            raise DataError(f"{where}: expected whole numbers 'user item item ...'") from error
        if user in sequences:
            raise DataError(f"{where}: user {user} appears a second time")
        if not sequence:
            raise DataError(f"{where}: user {user} has no items")
        unknown = next((item for item in sequence if not 1 <= item <= item_count), None)
        if unknown is not None:
            raise DataError(f"{where}: user {user} names item {unknown}, which is not in the catalogue")
        if len(set(sequence)) < len(sequence):
            repeated = next(item for item in sequence if sequence.count(item) > 1)
            raise DataError(f"{where}: user {user} has item {repeated} more than once")
        sequences[user] = sequence
    if not sequences:
        raise DataError(f"{path} is empty: it needs lines 'user item item ...'")
    return list(sequences), list(sequences.values())
