"""The schema read as a tree: every key, its type and the docstring that stands under it."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import math
import textwrap
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from dgr2.config.schema import Config
from dgr2.errors import ConfigError

NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@cache
def field_types(section: type) -> dict[str, Any]:
    """Name -> resolved type of the fields of a section, in the order of their declaration."""
    hints = typing.get_type_hints(section)
    return {f.name: hints[f.name] for f in dataclasses.fields(section)}


@cache
def field_docs(section: type) -> dict[str, str]:
    """Name -> the string literal under the field, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    name = None
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs[name] = " ".join(str(node.value.value).split())
            name = None
    return docs


@cache
def keys(section: type = Config, prefix: str = "") -> tuple[str, ...]:
    """Dotted paths of all leaves."""
    found: list[str] = []
    for name, kind in field_types(section).items():
        path = f"{prefix}{name}"
        found += keys(typing.cast(type, kind), f"{path}.") if dataclasses.is_dataclass(kind) else [path]
    return tuple(found)


def walk(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every leaf of a configuration object."""
    for f in dataclasses.fields(tree):
        value, path = getattr(tree, f.name), f"{prefix}{f.name}"
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{path}.")
        else:
            yield path, value


def lookup(path: str) -> Any:
    """Type of a dotted path (a dataclass for a section).

    Raises:
        ConfigError: the path does not exist; the message names it whole, and the nearest one that does.
    """
    kind: Any = Config
    for part in path.split("."):
        if not dataclasses.is_dataclass(kind) or part not in field_types(typing.cast(type, kind)):
            raise ConfigError(f"unknown key '{path}'{nearest(path)}")
        kind = field_types(typing.cast(type, kind))[part]
    return kind


def nearest(path: str) -> str:
    """``; did you mean 'x.y'?`` for a misspelt path: any key or section, the likeliest first."""
    known = list(keys())
    known += sorted({".".join(k.split(".")[:n]) for k in known for n in range(1, k.count(".") + 1)})
    close = difflib.get_close_matches(path, known, n=1, cutoff=0.0)
    return f"; did you mean '{close[0]}'?" if close else ""


def check(path: str, value: Any, kind: Any) -> Any:
    """Value in the type of its key; an int is taken for a float, nothing else is converted.

    Raises:
        ConfigError: the value has another type.
    """
    if kind is float and type(value) is int:
        value = float(value)
    if kind is float and type(value) is float and not math.isfinite(value):
        raise ConfigError(f"'{path}' must be a finite number, not {value!r}")
    if typing.get_origin(kind) is list:
        if not isinstance(value, list):
            raise ConfigError(f"'{path}' must be a list such as [1,2], not {value!r}")
        (inner,) = typing.get_args(kind)
        return [check(f"{path}[{i}]", v, inner) for i, v in enumerate(value)]
    if type(value) is not kind:  # bool is an int to isinstance
        raise ConfigError(f"'{path}' must be {NAMES[kind]}, not {value!r}")
    return value
