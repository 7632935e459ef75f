"""A value from an emitter to what Prometheus scrapes: names, kinds and tags as the dashboard expects them."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import requests
from separate_cluster import Cluster

from dgr2.telemetry.metric_table import METRICS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

EMIT = """
import sys, time, ray
from dgr2.telemetry.emitter import Emitter
from dgr2.telemetry.metric_table import METRICS
ray.init(address=sys.argv[1], log_to_driver=False)
emitter = Emitter(run="r", stage="opd", phase="train", outcome="ok")
act = {"gauge": emitter.set, "counter": emitter.add, "histogram": emitter.observe}
for _ in range(60):
    for m in METRICS:
        act[m.kind](m.name, 0.5)
    time.sleep(1)
"""


def scrape(url: str) -> str:
    """What a node exports; nothing until its agent listens."""
    try:
        return requests.get(url, timeout=10).text
    except requests.exceptions.ConnectionError:
        return ""


def test_every_declared_metric_is_scraped_under_its_exported_name(cluster: Cluster) -> None:
    gcs = cluster.gcs
    with subprocess.Popen([sys.executable, "-c", EMIT, gcs], env=cluster.environment()) as emitting:
        try:
            text, missing, end = "", {m.exported for m in METRICS}, time.monotonic() + 60
            while missing and time.monotonic() < end and emitting.poll() is None:
                time.sleep(2)
                text = scrape(cluster.metrics)
                missing = {m.exported for m in METRICS if f"# TYPE {m.exported} {m.kind}" not in text}
        finally:
            emitting.kill()
    assert not missing
    assert 'phase="train"' in next(
        x for x in text.splitlines() if x.startswith("ray_dgr2_phase_seconds_total{")
    )
    assert 'le="0.5"' in text and "ray_dgr2_serve_decode_seconds_bucket{" in text
