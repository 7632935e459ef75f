"""Fingerprints: what a stage was made from, in 16 hexadecimal digits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any


def fingerprint(obj: Any) -> str:
    """First 16 digits of the SHA-256 of the canonical JSON of an object (dataclasses as dictionaries)."""
    text = json.dumps(obj, default=_plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} has no canonical JSON")
