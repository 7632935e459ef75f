"""Where a run keeps its files: the run folder, and files that are there whole or not at all."""

from __future__ import annotations

from dgr2.storage.files import atomic_dir, jsonable, read_json, write_json, write_text
from dgr2.storage.run import RunFolder, StageState, changed_keys

__all__ = [
    "RunFolder",
    "StageState",
    "atomic_dir",
    "changed_keys",
    "jsonable",
    "read_json",
    "write_json",
    "write_text",
]
