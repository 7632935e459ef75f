"""The search space: lines ``KEY=DOMAIN``, read strictly."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any

from dgr2.config import fields
from dgr2.config.strict_yaml import parse
from dgr2.errors import ConfigError

KINDS = ("uniform", "loguniform", "randint", "choice")
LINE = re.compile(r"\s*([^=\s]+)\s*=\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Domain:
    """Where a key may lie.

    Attributes:
        key: Dotted key of the configuration.
        kind: ``uniform``, ``loguniform``, ``randint`` or ``choice``.
        values: Bounds (the upper one of ``randint`` left out), or all choices.
    """

    key: str
    kind: str
    values: tuple[Any, ...]

    @property
    def edges(self) -> tuple[Any, ...]:
        """The outermost values that can be drawn; all choices."""
        return (self.values[0], self.values[1] - 1) if self.kind == "randint" else self.values


def parse_space(lines: Sequence[str], stage: str) -> list[Domain]:
    """The domains of a space over the keys of a stage.

    Raises:
        ConfigError: naming the line and what is wrong with it.
    """
    space = [_domain(line, stage) for line in lines]
    seen: set[str] = set()
    for domain in space:
        if domain.key in seen:
            raise ConfigError(f"'tune.space' names '{domain.key}' twice")
        seen.add(domain.key)
    return space


def _domain(line: str, stage: str) -> Domain:
    match = LINE.fullmatch(line)
    if match is None:
        raise ConfigError(f"'{line}' in 'tune.space' is not of the form section.key=uniform(low,high)")
    key, name, inside = match.groups()
    of = fields.lookup(key)
    if dataclasses.is_dataclass(of):
        raise ConfigError(f"'{key}' in 'tune.space' is a section; name one of its keys")
    if not key.startswith(f"{stage}."):
        raise ConfigError(f"'{key}' in 'tune.space' is no key of '{stage}', the stage that is searched")
    if key == f"{stage}.optim.steps":
        raise ConfigError(f"'{key}' cannot be searched: trials are compared at the same step")
    if name not in KINDS:
        close = difflib.get_close_matches(name, KINDS, n=1, cutoff=0.0)[0]
        raise ConfigError(f"unknown domain '{name}' of '{key}'; did you mean '{close}'?")
    values = parse(f"[{inside}]", f"the domain of '{key}'")
    values = tuple(fields.check(key, value, of) for value in values)
    _check(key, name, values, of)
    return Domain(key, name, values)


def _check(key: str, name: str, values: tuple[Any, ...], of: Any) -> None:
    if name == "choice":
        if not values:
            raise ConfigError(f"choice of '{key}' is empty")
        return
    if of is not (int if name == "randint" else float):
        use = {int: "randint or choice", float: "uniform, loguniform or choice"}.get(of, "choice")
        what = fields.NAMES.get(of, "a list")
        raise ConfigError(f"'{key}' is {what}, and {name} does not draw that: use {use}")
    if len(values) != 2 or not values[0] < values[1]:
        raise ConfigError(f"{name} of '{key}' needs two bounds, the lower one first, not {list(values)}")
    if name == "loguniform" and values[0] <= 0:
        raise ConfigError(f"loguniform of '{key}' needs bounds above 0, not {list(values)}")
