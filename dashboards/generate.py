"""``dgr2 dashboards``: the files of a monitoring stack, made from the table of metrics.

grafana.json       dashboard: a row a group, a panel a metric
prometheus.yaml    scrape configuration for the nodes of a Ray cluster
alerts.yaml        alert rules
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dgr2.storage import write_text
from dgr2.telemetry.metric_table import METRICS, Metric, metric

UNITS = {"s": "s", "share": "percentunit", "tokens/s": "suffix: tokens/s", "requests": "short"}
WIDTH, HEIGHT, COLUMNS = 8, 7, 3
WINDOW = "5m"
HEADER = "# Made by dgr2 dashboards from dgr2.telemetry.metric_table: change it there.\n"


@dataclass(frozen=True)
class Alert:
    """A rule: fires when the expression has held for a time."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str


def _of(name: str) -> str:
    """Series of a declared metric."""
    return metric(name).exported


ALERTS = (
    Alert(
        "InvalidRollouts",
        f"min by (run, stage) ({_of('dgr2_validity_share')}) < 0.95",
        "10m",
        "warning",
        "Under 95 % of the raw decodes of {{ $labels.run }} ({{ $labels.stage }}) are permutations",
    ),
    Alert(
        "LoopStandsStill",
        f"changes({_of('dgr2_weight_version')}[30m]) == 0 and on (run, stage) "
        f"sum by (run, stage) (increase({_of('dgr2_phase_seconds')}[30m])) > 0",
        "5m",
        "critical",
        "{{ $labels.run }} ({{ $labels.stage }}) has published no weights for 30 minutes",
    ),
    Alert(
        "WorkersAreLost",
        f"sum by (run, stage) (increase({_of('dgr2_worker_restarts')}[15m])) >= 3",
        "0m",
        "warning",
        "3 or more workers of {{ $labels.run }} ({{ $labels.stage }}) were replaced within 15 minutes",
    ),
    Alert(
        "StaleSamples",
        f"max by (run, stage) ({_of('dgr2_staleness')}) > 1",
        "10m",
        "warning",
        "{{ $labels.run }} ({{ $labels.stage }}) trains on samples of weights more than one version old",
    ),
    Alert(
        "GradientTooLarge",
        f"max by (run, stage) ({_of('dgr2_gradient_norm')}) > 100",
        "5m",
        "warning",
        "Gradient norm of {{ $labels.run }} ({{ $labels.stage }}) is above 100",
    ),
    Alert(
        "RankingsRepaired",
        f"sum(rate({_of('dgr2_serve_repairs')}[15m])) / sum(rate({_of('dgr2_serve_requests')}[15m])) > 0.05",
        "15m",
        "warning",
        "More than 5 % of the served rankings had to be repaired",
    ),
    Alert(
        "RequestsFail",
        f'sum(rate({_of("dgr2_serve_requests")}{{outcome="error"}}[5m])) / '
        f"sum(rate({_of('dgr2_serve_requests')}[5m])) > 0.01",
        "5m",
        "critical",
        "More than 1 % of the requests end in an error",
    ),
    Alert(
        "DecodingSlow",
        f"histogram_quantile(0.95, sum by (le) (rate({_of('dgr2_serve_decode_seconds')}_bucket[5m]))) > 2.5",
        "10m",
        "warning",
        "One decode in twenty takes more than 2.5 s",
    ),
)


def files() -> dict[str, str]:
    """Name -> text of every file."""
    return {
        "grafana.json": json.dumps(grafana(), indent=2) + "\n",
        "prometheus.yaml": HEADER + _yaml(prometheus()),
        "alerts.yaml": HEADER + _yaml(alerts()),
    }


def write(out: Path) -> list[Path]:
    """Write every file into a folder; their paths."""
    made = []
    for name, text in files().items():
        write_text(out / name, text)
        made.append(out / name)
    return made


def grafana() -> dict[str, Any]:
    """The dashboard; its data source and the run are chosen in Grafana."""
    panels: list[dict[str, Any]] = []
    y = 0
    for group in dict.fromkeys(m.group for m in METRICS):
        panels.append(_row(group, y, len(panels) + 1))
        y += 1
        for i, declared in enumerate(m for m in METRICS if m.group == group):
            x, line = i % COLUMNS * WIDTH, i // COLUMNS
            panels.append(_panel(declared, x, y + line * HEIGHT, len(panels) + 1))
        y += HEIGHT * (1 + (sum(m.group == group for m in METRICS) - 1) // COLUMNS)
    return {
        "uid": "dgr2",
        "title": "dgr2",
        "tags": ["dgr2", "ray"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _run()]},
        "panels": panels,
    }


def expressions(declared: Metric) -> dict[str, str]:
    """Legend -> expression of a metric's panel."""
    selector = '{run=~"$run"}' if "run" in declared.tags else ""
    by = ", ".join(declared.tags)
    legend = " ".join(f"{{{{{tag}}}}}" for tag in declared.tags) or declared.name
    if declared.kind == "histogram":
        buckets = f"sum by (le) (rate({declared.exported}_bucket{selector}[{WINDOW}]))"
        return {f"p{q}": f"histogram_quantile(0.{q}, {buckets})" for q in (50, 95)}
    series = f"{declared.exported}{selector}"
    if declared.kind == "counter":
        return {
            legend: f"sum by ({by}) (rate({series}[{WINDOW}]))" if by else f"sum(rate({series}[{WINDOW}]))"
        }
    return {legend: f"max by ({by}) ({series})"}


def prometheus() -> dict[str, Any]:
    """Scrapes the nodes that the head lists; Prometheus runs where it can read that file."""
    return {
        "global": {"scrape_interval": "10s", "evaluation_interval": "10s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [
            {
                "job_name": "ray",
                "file_sd_configs": [{"files": ["/tmp/ray/prom_metrics_service_discovery.json"]}],
            }
        ],
    }


def alerts() -> dict[str, Any]:
    """Alert rules."""
    rules = [
        {
            "alert": a.name,
            "expr": a.expression,
            "for": a.lasting,
            "labels": {"severity": a.severity},
            "annotations": {"summary": a.summary},
        }
        for a in ALERTS
    ]
    return {"groups": [{"name": "dgr2", "rules": rules}]}


def _yaml(tree: dict[str, Any]) -> str:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=1000)


def _row(title: str, y: int, number: int) -> dict[str, Any]:
    place = {"h": 1, "w": WIDTH * COLUMNS, "x": 0, "y": y}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(declared: Metric, x: int, y: int, number: int) -> dict[str, Any]:
    title = declared.name.removeprefix("dgr2_").replace("_", " ")
    rate = declared.kind == "counter"
    targets = [
        {"refId": "ABC"[i], "expr": expression, "legendFormat": legend}
        for i, (legend, expression) in enumerate(expressions(declared).items())
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": f"{title}, a second" if rate else title,
        "description": declared.help,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": "short" if rate else UNITS.get(declared.unit, "short")}},
        "targets": targets,
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _run() -> dict[str, Any]:
    return {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f"label_values({_of('dgr2_weight_version')}, run)",
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
