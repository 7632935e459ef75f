"""Preset, file and ``key=value`` merged into one strict configuration.

OmegaConf merges; every key and value passes :mod:`dgr2.config.fields` first, so that an unknown key or a
wrong type is refused with its full path wherever it comes from.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from dgr2.config import fields
from dgr2.config.schema import Config
from dgr2.config.strict_yaml import parse
from dgr2.config.validate import validate, validate_inputs
from dgr2.errors import ConfigError


def presets() -> list[str]:
    """Names of the presets in the package."""
    folder = resources.files("dgr2.config") / "presets"
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def load_config(
    preset: str | None,
    overrides: Iterable[str] = (),
    base: Config | Mapping[str, Any] | None = None,
    file: str | Path | None = None,
    inputs: bool = True,
) -> Config:
    """Defaults, then preset, base, file and ``key=value`` overrides; later ones win.

    Args:
        preset: name of a packaged preset or path of a YAML file, None for the defaults (or for ``base``).
        overrides: ``section.key=value``, the value in YAML of the key's type (``[4,8]``, ``true``, ``3e-4``);
            text is taken as it stands.
        base: a configuration to start from, such as the one stored with a run.
        file: YAML file with any part of the tree.
        inputs: refuse input folders that are not there.

    Raises:
        ConfigError: unknown preset, key or file, wrong type, or values that contradict each other.
    """
    layers: list[Mapping[str, Any]] = [_preset(preset)] if preset is not None else []
    if base is not None:
        layers.append(base if isinstance(base, Mapping) else dataclasses.asdict(base))
    if file is not None:
        layers.append(_read(Path(file)))
    layers += [_override(text) for text in overrides]
    cfg = _merge(layers)
    for section, key in ((cfg.data, "path"), (cfg.model, "init")):
        if getattr(section, key):  # the same folder from wherever a stage is started
            setattr(section, key, str(Path(getattr(section, key)).expanduser().resolve()))
    validate(cfg)
    if inputs:
        validate_inputs(cfg)
    return cfg


def to_yaml(cfg: Config) -> str:
    """The resolved configuration as YAML; ``from_yaml`` gives it back unchanged."""
    return yaml.safe_dump(dataclasses.asdict(cfg), sort_keys=False, allow_unicode=True, width=1000)


def from_yaml(path: str | Path) -> Config:
    """Configuration from a file of ``to_yaml`` or ``documented_yaml``; defaults where it is silent."""
    return _merge([_read(Path(path))])


def documented_yaml(cfg: Config) -> str:
    """The resolved configuration as YAML with the docstring of every key as a comment above it."""
    return "\n".join(_documented(cfg, 0)) + "\n"


def _documented(tree: Any, depth: int) -> list[str]:
    section: Any = type(tree)
    indent, docs = "  " * depth, fields.field_docs(section)
    lines: list[str] = []
    for f in dataclasses.fields(tree):
        value = getattr(tree, f.name)
        if depth == 0 and lines:
            lines.append("")
        lines.append(f"{indent}# {docs[f.name]}")
        if dataclasses.is_dataclass(value):
            lines += [f"{indent}{f.name}:", *_documented(value, depth + 1)]
        else:
            lines.append(f"{indent}{f.name}: {_scalar(value)}")
    return lines


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    return yaml.safe_dump(value, default_style='"', allow_unicode=True, width=1_000_000).strip()


def _merge(layers: list[Mapping[str, Any]]) -> Config:
    """Layers over the defaults, later ones winning; lists are replaced whole."""
    merged = OmegaConf.create(dataclasses.asdict(Config()))
    for layer in layers:
        merged = typing.cast(Any, OmegaConf.merge(merged, OmegaConf.create(_literal(_strict(layer)))))
    return _build(Config, typing.cast(dict[str, Any], OmegaConf.to_container(merged, resolve=True)))


def _build(section: Any, tree: dict[str, Any]) -> Any:
    kinds = fields.field_types(section)
    return section(**{k: _build(kinds[k], v) if isinstance(v, dict) else v for k, v in tree.items()})


def _strict(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """The tree with every key known and every value of its type."""
    clean: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if not isinstance(name, str) or "." in name:
            raise ConfigError(f"unknown key '{path}'; a file nests its keys{fields.nearest(path)}")
        kind = fields.lookup(path)
        if not dataclasses.is_dataclass(kind):
            clean[name] = fields.check(path, value, kind)
        elif isinstance(value, Mapping):
            clean[name] = _strict(value, f"{path}.")
        else:
            raise ConfigError(f"'{path}' is a section, with keys like {_example(path, kind)}, not {value!r}")
    return clean


def _override(text: str) -> dict[str, Any]:
    path, equals, raw = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"'{text}' is not of the form section.key=value")
    if path == "preset":
        raise ConfigError("'preset' names where a configuration started and cannot be set")
    kind = fields.lookup(path)
    if dataclasses.is_dataclass(kind):
        raise ConfigError(f"'{path}' is a section; set one of its keys, such as {_example(path, kind)}")
    value: Any = raw if kind is str else parse(raw, f"the value of '{path}'")
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def _example(path: str, section: Any) -> str:
    return f"{path}.{fields.keys(section)[0]}"


def _preset(name: str) -> Mapping[str, Any]:
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    if name not in presets():
        raise ConfigError(f"unknown preset '{name}'; there are {', '.join(presets())}, or a YAML file")
    text = (resources.files("dgr2.config") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    return _mapping(parse(text, f"preset {name}"), f"preset {name}")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read configuration file {path}: {error}") from error
    return _mapping(parse(text, str(path)), str(path))


def _mapping(tree: Any, origin: str) -> Mapping[str, Any]:
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{origin} must map keys to values")
    return tree


def _literal(tree: Any) -> Any:
    """Text that OmegaConf would read as an interpolation, escaped: a value means what it says."""
    if isinstance(tree, dict):
        return {k: _literal(v) for k, v in tree.items()}
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", tree) if isinstance(tree, str) else tree
