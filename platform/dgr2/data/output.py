"""Writes the prepared data as Hugging Face datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value, disable_progress_bars, enable_progress_bars

from dgr2.data.semantic_ids import SemanticIds
from dgr2.data.source import Source
from dgr2.storage import write_json

INTS, FLOATS = List(Value("int32")), List(Value("float32"))
INSTANCE = Features(
    {
        "user": Value("int64"),
        "history": INTS,
        "candidates": INTS,
        "target": Value("int32"),
        "scores": FLOATS,
        "features": List(FLOATS),
        "order": INTS,
        "prompt_ids": INTS,
        "response_ids": INTS,
        "oracle": FLOATS,
    }
)


def write_instances(columns: dict[str, list[Any]], path: Path) -> None:
    """Write training, validation or test lists."""
    write_dataset({name: columns[name] for name in INSTANCE}, path, INSTANCE)


def write_dataset(columns: dict[str, list[Any]], path: Path, features: Features | None = None) -> None:
    """Write one dataset folder, without a progress bar of its own."""
    disable_progress_bars()
    try:
        Dataset.from_dict(columns, features=features).save_to_disk(str(path))
    finally:
        enable_progress_bars()


def write_catalogue(source: Source, ids: SemanticIds, folder: Path) -> None:
    """Write ``items``, ``sequences`` and ``semantic_ids.json``."""
    items: dict[str, list[Any]] = {
        "item_id": [item.item_id for item in source.items],
        "title": [item.title for item in source.items],
        "brand": [item.brand for item in source.items],
        "categories": [list(item.categories) for item in source.items],
        "price": [item.price for item in source.items],
    }
    kinds = {"item_id": Value("int32"), "title": Value("string"), "brand": Value("string")}
    features = Features({**kinds, "categories": List(Value("string")), "price": Value("float64")})
    write_dataset(items, folder / "items", features)
    write_dataset({"user": source.users, "items": source.sequences}, folder / "sequences")
    codes = {str(item): row for item, row in enumerate(ids.codes.tolist(), start=1)}
    write_json(folder / "semantic_ids.json", codes)
