"""Files and folders are there whole or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dgr2.errors import StorageError
from dgr2.storage import atomic_dir, read_json, write_json


@dataclass
class Point:
    x: float


def test_json_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file.json"
    write_json(
        file, {"a": np.float32(0.5), "b": np.arange(2), "c": Point(float("nan")), "d": tmp_path, 1: (2,)}
    )
    assert read_json(file) == {"a": 0.5, "b": [0, 1], "c": {"x": None}, "d": str(tmp_path), "1": [2]}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    write_json(file, [1])
    with pytest.raises(TypeError):
        write_json(file, [object()])
    assert json.loads(file.read_text()) == [1]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", [None, b"{", b"\xff"])
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "file.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StorageError, match=r"file\.json"):
        read_json(file)


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with atomic_dir(target) as folder:
        (folder / "old").touch()
    with pytest.raises(ValueError, match="half"), atomic_dir(target) as folder:
        (folder / "half").touch()
        raise ValueError("half")
    assert [p.name for p in target.iterdir()] == ["old"]
    with atomic_dir(target) as folder:
        (folder / "new").touch()
    assert [p.name for p in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]
