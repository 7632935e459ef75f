"""Dashboard and rules against the table of metrics that they are made from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dgr2.dashboards.generate import files, write
from dgr2.telemetry.emitter import Emitter
from dgr2.telemetry.metric_table import METRICS, metric

SERIES = re.compile(r"\bray_\w+")
WANTED = [
    "rollout_tokens_per_second",
    "tokens_per_forward",
    "validity_share",
    "reward_mean",
    "divergence",
    "ratio_mean",
    "clip_share",
    "gradient_norm",
    "loss",
    "queue_depth",
    "weight_version",
    "staleness",
    "phase_seconds",
    "worker_restarts",
    "serve_requests",
    "serve_repairs",
    "serve_decode_seconds",
    "serve_batch_size",
]


def exported() -> set[str]:
    """Every series that the emitter's metrics give."""
    plain = {m.exported for m in METRICS if m.kind != "histogram"}
    parts = ("bucket", "sum", "count")
    return plain | {f"{m.exported}_{part}" for m in METRICS if m.kind == "histogram" for part in parts}


def panels() -> list[dict[str, Any]]:
    return [p for p in json.loads(files()["grafana.json"])["panels"] if p["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    return yaml.safe_load(files()["alerts.yaml"])["groups"][0]["rules"]


def test_the_table_is_whole_and_well_formed() -> None:
    assert {m.name for m in METRICS} == {f"dgr2_{name}" for name in WANTED}
    assert len({m.name for m in METRICS}) == len(METRICS)
    for m in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", m.name) and not m.name.endswith("_total") and m.help
        assert bool(m.boundaries) == (m.kind == "histogram")
        assert list(m.boundaries) == sorted(set(m.boundaries)) and all(b > 0 for b in m.boundaries)
        assert m.exported.startswith("ray_") and m.exported.endswith("_total") == (m.kind == "counter")


def test_committed_files_are_what_the_generator_gives(root: Path, tmp_path: Path) -> None:
    for file in write(tmp_path / "new folder"):
        assert (root / "dashboards" / file.name).read_text() == file.read_text(), (
            "run dgr2 dashboards --out dashboards"
        )


def test_every_expression_uses_declared_metrics() -> None:
    shown = [t["expr"] for p in panels() for t in p["targets"]]
    for expression in [*shown, *(r["expr"] for r in rules())]:
        used = SERIES.findall(expression)
        assert used and set(used) <= exported(), expression
        assert expression.count("(") == expression.count(")")
        assert "dgr2_" not in expression.replace("ray_dgr2_", "")
    everything = " ".join(shown)
    assert all(m.exported in everything for m in METRICS)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(files()["grafana.json"])["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells


def test_labels_of_summaries_survive_the_aggregation() -> None:
    for rule in rules():
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            by = re.findall(r"by \(([\w, ]+)\)", rule["expr"])
            assert not by or label in by[0], rule["alert"]


def test_the_emitter_takes_what_is_declared_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, dict[str, Any]]] = []
    seen: list[tuple[str, str, float, dict[str, str]]] = []

    def fake(kind: str) -> type:
        class Fake:
            def __init__(self, name: str, **options: Any) -> None:
                made.append((kind, {"name": name, **options}))
                self.name = name

            def record(self, value: float, tags: dict[str, str]) -> None:
                seen.append((kind, self.name, value, tags))

            set = inc = observe = record

        return Fake

    from dgr2.telemetry import emitter as module

    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(module.ray_metrics, kind, fake(kind))
    emitter = Emitter(run="r", stage="opd")
    assert not made
    emitter.set("dgr2_loss", 1)
    emitter.set("dgr2_loss", 2)
    emitter.add("dgr2_phase_seconds", 0.5, phase="train")
    emitter.add("dgr2_worker_restarts", 0)
    emitter.observe("dgr2_serve_decode_seconds", 0.1)
    assert [(kind, options["name"]) for kind, options in made] == [
        ("Gauge", "dgr2_loss"),
        ("Counter", "dgr2_phase_seconds"),
        ("Counter", "dgr2_worker_restarts"),
        ("Histogram", "dgr2_serve_decode_seconds"),
    ]
    assert made[-1][1]["boundaries"] == list(metric("dgr2_serve_decode_seconds").boundaries)
    assert seen[:3] == [
        ("Gauge", "dgr2_loss", 1.0, {"run": "r", "stage": "opd"}),
        ("Gauge", "dgr2_loss", 2.0, {"run": "r", "stage": "opd"}),
        ("Counter", "dgr2_phase_seconds", 0.5, {"run": "r", "stage": "opd", "phase": "train"}),
    ]
    for call, message in (
        (lambda: emitter.set("dgr2_los", 1), "did you mean 'dgr2_loss'"),
        (lambda: emitter.add("dgr2_loss", 1), "is a gauge, not a counter"),
        (lambda: emitter.add("dgr2_phase_seconds", 1), r"missing \['phase'\]"),
        (lambda: emitter.set("dgr2_loss", 1, user="7"), r"unknown \['user'\]"),
        (lambda: emitter.add("dgr2_worker_restarts", -1), "cannot fall"),
        (lambda: Emitter().set("dgr2_loss", 1), r"missing \['run', 'stage'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
