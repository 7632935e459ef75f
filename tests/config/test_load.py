"""Strictness: unknown keys, wrong types, values that cannot be; what is written reads back the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dgr2.config import Config, documented_yaml, fingerprint, from_yaml, load_config, presets, to_yaml, walk
from dgr2.config.fields import field_docs, field_types, keys, lookup
from dgr2.errors import ConfigError

KEYS = [k for k in keys() if k != "preset"]
SECTIONS = sorted({".".join(k.split(".")[:n]) for k in KEYS for n in range(1, k.count(".") + 1)})
DEFAULTS = dict(walk(Config()))


def nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[str, str]:
    """(true path, the same with one edit in one of its parts)."""
    path = draw(st.sampled_from(KEYS + SECTIONS))
    parts = path.split(".")
    which = draw(st.integers(0, len(parts) - 1))
    word = parts[which]
    at = draw(st.integers(0, len(word) - 1))
    letter = draw(st.sampled_from("abcdefghijklmnopqrstuvwxyzABC_-09"))
    edits = [word[:at] + word[at + 1 :], word[:at] + letter + word[at:], word[:at] + letter + word[at + 1 :]]
    parts[which] = draw(st.sampled_from(edits))
    assume(".".join(parts) not in KEYS + SECTIONS + ["preset", ""] and all(parts))
    return path, ".".join(parts)


@given(misspelt())
@settings(max_examples=300, deadline=None)
def test_a_misspelt_key_is_refused_with_its_path(pair: tuple[str, str]) -> None:
    _, wrong = pair
    for attempt in (
        lambda: load_config("demo", [f"{wrong}=1"]),
        lambda: load_config(None, base=nested(wrong, 1)),
    ):
        with pytest.raises(ConfigError, match="unknown key '(.*)'; did you mean '(.*)'") as refused:
            attempt()
        _, named, _, near, _ = str(refused.value).split("'")
        assert f"{wrong}.".startswith(f"{named}.")
        assert near in KEYS + SECTIONS + ["preset"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("sed", "seed"),
        ("dta.users", "data.users"),
        ("data.user", "data.users"),
        ("teacher.sft.step", "teacher.sft.steps"),
        ("teacher.stf.steps", "teacher.sft.steps"),
        ("decode.treshold", "decode.threshold"),
        ("cft.optim.learning_rte", "cft.optim.learning_rate"),
    ],
)
def test_the_nearest_name_is_offered(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key '{wrong}'; did you mean '{right}'"):
        load_config("demo", [f"{wrong}=1"])


WRONG = {int: ["x", "1.5", "true", "[1]", "", "010", "1e3"], float: ["x", "true", "[1]", "", ".inf", ".nan"]}
WRONG |= {bool: ["yes", "1", "on", "True", ""], list[str]: ["4", "{a: 1}", "[true]", "[[x]]"]}


@pytest.mark.parametrize("key", [k for k in KEYS if lookup(k) is not str])
def test_a_wrong_type_is_refused(key: str) -> None:
    for value in WRONG.get(lookup(key), ["4", "4,8", "{a: 1}", "[x]", "[true]"]):
        with pytest.raises(ConfigError, match=f"'{key}"):
            load_config("demo", [f"{key}={value}"])


@pytest.mark.parametrize("key", KEYS)
def test_none_and_sections_are_no_values(key: str, tmp_path: Path) -> None:
    for value in ("null", "{a: 1}"):
        file = tmp_path / "file.yaml"
        file.write_text(yaml.safe_dump(nested(key, yaml.safe_load(value))))
        with pytest.raises(ConfigError):
            load_config("demo", file=file)


def test_override_values() -> None:
    cfg = load_config(
        "demo",
        ["cft.block_curriculum=[8, 16]", "ray.use_gpu=true", "teacher.sft.learning_rate=3e-4", "cft.alpha=2"],
    )
    assert cfg.cft.block_curriculum == [8, 16]
    assert cfg.ray.use_gpu is True
    assert cfg.teacher.sft.learning_rate == 3e-4
    assert cfg.cft.alpha == 2.0 and type(cfg.cft.alpha) is float
    assert cfg.teacher.midtrain.steps == DEFAULTS["teacher.midtrain.steps"]


def test_text_is_taken_as_it_stands(tmp_path: Path) -> None:
    folder = tmp_path / "a ${b}: [c] #d"
    cfg = load_config("demo", [f"data.path={folder}"])
    assert cfg.data.path == str(folder)


def test_later_layers_win(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("seed: 3\ndata: {users: 100, items: 50}\n")
    cfg = load_config("demo", ["data.items=60"], file=file)
    assert (cfg.seed, cfg.data.users, cfg.data.items) == (3, 100, 60)


@pytest.mark.parametrize("text", ["- 1", "a: [", "seed: 1\nseed: 2", "data.users: 3", "1: 2", "\tx"])
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_config("demo", file=file)
    with pytest.raises(ConfigError):
        load_config("demo", file=tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    "text", ["seed", "=1", "data=1", "data.users.x=1", "preset=other", "data..users=1", ""]
)
def test_a_broken_override_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        load_config("demo", [text])


@pytest.mark.parametrize(
    "overrides",
    [
        ["seed=-1"],
        ["data.source=web"],
        ["data.candidates=27"],
        ["data.candidates=10", "data.items=20", "grid.trace_blocks=1"],
        ["grid.block_size=8"],
        ["cft.block_curriculum=[3,16]"],
        ["cft.block_curriculum=[]"],
        ["teacher.reason_weight=1.0"],
        ["model.heads=3"],
        ["model.kv_heads=3"],
        ["teacher.sft.micro_batch_size=128"],
        ["opd.optim.micro_batch_tokens=100"],
        ["cft.optim.batch_size=1", "cft.optim.micro_batch_size=1", "ray.num_workers=2"],
        ["decode.threshold=0"],
        ["decode.threshold=1.1"],
        ["cft.full_mask_share=1.5"],
        ["cft.alpha=-1"],
        ["model.context=64"],
        ["data.source=folder"],
        ["data.source=folder", "data.path=nowhere"],
        ["model.init=nowhere"],
    ],
)
def test_values_that_cannot_work_are_refused(overrides: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config("demo", overrides)
    assert "\n" not in str(refused.value)


def test_a_folder_without_its_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl.gz").touch()
    with pytest.raises(ConfigError, match="sequences.txt"):
        load_config("beauty-small", [f"data.path={tmp_path}"])
    (tmp_path / "sequences.txt").touch()
    assert load_config("beauty-small", [f"data.path={tmp_path}"]).data.path == str(tmp_path)


def test_presets_load_and_name_themselves() -> None:
    assert presets() == ["beauty-small", "demo", "long"]
    for name in presets():
        assert load_config(name, inputs=False).preset == name
    with pytest.raises(ConfigError, match="unknown preset 'dmo'.*demo"):
        load_config("dmo")


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """Values of their key's type for a few keys; not all of them make sense together."""
    values = {
        int: st.integers(-(2**40), 2**40),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("${}\\:#'\""), max_size=12),
    }
    tree: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=5, unique=True)):
        kind = lookup(key)
        listed = kind not in values
        of_items = st.lists(values[type((DEFAULTS[key] or [""])[0])], max_size=3) if listed else None
        value = draw(of_items or values[kind])
        at = tree
        *parents, leaf = key.split(".")
        for part in parents:
            at = at.setdefault(part, {})
        at[leaf] = value
    return tree


@given(changed())
@settings(max_examples=60, deadline=None)
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("config")
    (folder / "tree.yaml").write_text(json.dumps(tree), encoding="utf-8")
    cfg = from_yaml(folder / "tree.yaml")
    for number, text in enumerate((to_yaml(cfg), documented_yaml(cfg))):
        file = folder / f"{number}.yaml"
        file.write_text(text, encoding="utf-8")
        assert from_yaml(file) == cfg


def test_documentation_covers_every_key() -> None:
    text = documented_yaml(Config())
    for key in keys():
        section, name = Config, key
        *parents, name = key.split(".")
        for part in parents:
            section = field_types(section)[part]
        assert f"# {field_docs(section)[name]}" in text


def test_fingerprint_is_stable_and_sensitive() -> None:
    assert fingerprint({"a": [1, 2.5, True, None], "b": "ü"}) == "9201175b285900bb"
    assert fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    assert len({fingerprint(x) for x in (1, 1.0, "1", True, [1], None)}) == 6
    base = fingerprint(Config())
    assert base == fingerprint(dataclasses.asdict(Config())) and len(base) == 16
    for key in KEYS:
        assert fingerprint(with_value(key, other(DEFAULTS[key]))) != base, key


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + ((value[:1] or ["x"]) if isinstance(value, list) else "x" if isinstance(value, str) else 1)


def with_value(key: str, value: Any) -> Config:
    cfg = Config()
    *parents, leaf = key.split(".")
    at: Any = cfg
    for part in parents:
        at = getattr(at, part)
    setattr(at, leaf, value)
    return cfg
