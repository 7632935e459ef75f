"""Who imports whom: jobs -> actors -> dgr2, and inside dgr2 from the ground up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOTS = {
    "dgr2": "platform/dgr2",
    "dgr2.jobs": "jobs",
    "dgr2.actors": "actors",
    "dgr2.cluster": "cluster",
    "dgr2.dashboards": "dashboards",
}
GROUND_UP = [
    {"errors"},
    {"config", "storage", "telemetry"},
    {"data"},
    {"models"},
    {"decoding"},
    {"rollout"},
    {"objectives"},
    {"training"},
    {"tuning"},
    {"evaluation"},
    {"serving"},
    {"benchmarks"},
]
LEVEL = {name: level for level, names in enumerate(GROUND_UP) for name in names}
RAY_IN_LIBRARY = {"training", "tuning", "serving"}
METRICS_EMITTER = "dgr2.telemetry.emitter"


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for package, folder in ROOTS.items():
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root / folder).with_suffix("").parts
            name = ".".join([package, *(p for p in parts if p != "__init__")])
            yield name, ast.parse(file.read_text(encoding="utf-8"), str(file))


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(module: str) -> str:
    """First part under dgr2; empty for dgr2 itself."""
    return (module.split(".") + [""])[1]


@pytest.fixture(scope="module")
def edges(root: Path) -> list[tuple[str, str]]:
    return [(name, target) for name, tree in modules(root) for target in imports(tree)]


def test_every_layer_of_the_library_has_a_place(root: Path) -> None:
    found = {p.name for p in (root / "platform" / "dgr2").iterdir() if (p / "__init__.py").is_file()}
    assert found <= set(LEVEL)


def test_library_imports_from_the_ground_up(edges: list[tuple[str, str]]) -> None:
    wrong = [
        (a, b)
        for a, b in edges
        if layer(a) in LEVEL
        and b.startswith("dgr2.")
        and layer(b) in LEVEL
        and LEVEL[layer(b)] > LEVEL[layer(a)]
    ]
    assert not wrong


def test_library_knows_nothing_above_it(edges: list[tuple[str, str]]) -> None:
    above = {"jobs", "actors", "cluster", "dashboards"}
    assert not [
        (a, b) for a, b in edges if layer(a) not in above and b.startswith("dgr2.") and layer(b) in above
    ]


def test_actors_cluster_and_dashboards_import_only_the_library(edges: list[tuple[str, str]]) -> None:
    for shell in ("actors", "cluster", "dashboards"):
        others = {"jobs", "actors", "cluster", "dashboards"} - {shell}
        assert not [
            (a, b) for a, b in edges if layer(a) == shell and b.startswith("dgr2.") and layer(b) in others
        ]


def test_only_the_command_line_imports_cluster_and_dashboards(edges: list[tuple[str, str]]) -> None:
    for shell in ("cluster", "dashboards"):
        users = {a for a, b in edges if b.startswith(f"dgr2.{shell}") and layer(a) != shell}
        assert users <= {"dgr2.jobs.cli"}


def test_ray_stays_where_it_belongs(edges: list[tuple[str, str]]) -> None:
    allowed = RAY_IN_LIBRARY | {"actors", "jobs", "cluster"}
    wrong = {a for a, b in edges if b.split(".")[0] == "ray" and layer(a) not in allowed}
    assert wrong <= {METRICS_EMITTER}


def test_library_does_not_print(root: Path) -> None:
    calls = [
        (name, node.lineno)
        for name, tree in modules(root)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls
