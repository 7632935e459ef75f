"""Metrics to Prometheus through Ray: only what the metric table declares.

Ray exports what a live process recorded last: emit from processes that outlive a scrape (a controller, an
actor), not from short tasks. ``metrics.jsonl`` remains the record; this is the view while a loop runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.util import metrics as ray_metrics

from dgr2.telemetry.metric_table import Kind, Metric, metric


class Emitter:
    """Records values of declared metrics; Ray's objects are made at the first value.

    Args:
        tags: values of the tags that stay the same (``run="demo-seed0", stage="opd"``); the rest come with
            each value.
    """

    def __init__(self, **tags: str) -> None:
        self._tags = tags
        self._made: dict[str, Any] = {}

    def set(self, name: str, value: float, **tags: str) -> None:
        """Latest value of a gauge."""
        made, labels = self._of(name, "gauge", tags)
        made.set(float(value), tags=labels)

    def add(self, name: str, value: float = 1.0, **tags: str) -> None:
        """Let a counter grow; a value of zero records nothing."""
        made, labels = self._of(name, "counter", tags)
        if value < 0:
            raise ValueError(f"counter '{name}' cannot fall, and was given {value}")
        if value:
            made.inc(float(value), tags=labels)

    def observe(self, name: str, value: float, **tags: str) -> None:
        """A value of a histogram."""
        made, labels = self._of(name, "histogram", tags)
        made.observe(float(value), tags=labels)

    def set_all(self, values: Mapping[str, float], **tags: str) -> None:
        """Several gauges at once."""
        for name, value in values.items():
            self.set(name, value, **tags)

    def _of(self, name: str, kind: Kind, tags: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
        """Ray's object and the labels of a value.

        Raises:
            ValueError: the metric is not declared, is of another kind, or tags are missing or unknown.
        """
        declared = metric(name)
        if declared.kind != kind:
            raise ValueError(f"metric '{name}' is a {declared.kind}, not a {kind}")
        unknown = sorted(set(tags) - set(declared.tags))
        labels = {tag: tags.get(tag, self._tags.get(tag, "")) for tag in declared.tags}
        missing = sorted(tag for tag, value in labels.items() if not value)
        if unknown or missing:
            raise ValueError(
                f"metric '{name}' has tags {declared.tags}: missing {missing}, unknown {unknown}"
            )
        if name not in self._made:
            self._made[name] = _make(declared)
        return self._made[name], labels


def _make(declared: Metric) -> Any:
    description = f"{declared.help} [{declared.unit}]"
    if declared.kind == "histogram":
        return ray_metrics.Histogram(
            declared.name,
            description=description,
            boundaries=list(declared.boundaries),
            tag_keys=declared.tags,
        )
    kind = ray_metrics.Counter if declared.kind == "counter" else ray_metrics.Gauge
    return kind(declared.name, description=description, tag_keys=declared.tags)
