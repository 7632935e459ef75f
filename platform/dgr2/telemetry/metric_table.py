"""Every metric that goes to Prometheus: the one table that emitter, dashboard and alert rules are made from.

Names are those of ``ray.util.metrics``; Prometheus shows them with the prefix ``ray_``, counters with
``_total`` behind. Tags stay few and take few values: a prompt or a user is never one.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

LOOP = ("run", "stage")
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True)
class Metric:
    """A declared metric.

    Attributes:
        name: as in code.
        kind: counters only grow, gauges hold the latest value, histograms count values below boundaries.
        unit: what a value is counted in; ``1`` for a pure number, ``share`` for a part of one.
        help: one sentence.
        tags: labels that every value carries.
        group: row of the dashboard.
        boundaries: upper bounds of a histogram's buckets, ascending.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    tags: tuple[str, ...]
    group: str
    boundaries: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """Name of the series in Prometheus; a histogram's end in ``_bucket``, ``_sum`` and ``_count``."""
        return f"ray_{self.name}_total" if self.kind == "counter" else f"ray_{self.name}"


METRICS: tuple[Metric, ...] = (
    Metric(
        "dgr2_rollout_tokens_per_second",
        "gauge",
        "tokens/s",
        "Tokens that the pool decodes a second.",
        LOOP,
        "Rollout",
    ),
    Metric(
        "dgr2_tokens_per_forward",
        "gauge",
        "tokens",
        "Emitted tokens a forward, commits and prefill counted.",
        LOOP,
        "Rollout",
    ),
    Metric(
        "dgr2_validity_share",
        "gauge",
        "share",
        "Raw decodes that are a permutation of their candidates.",
        LOOP,
        "Rollout",
    ),
    Metric("dgr2_reward_mean", "gauge", "1", "Mean reward of a step's trajectories.", LOOP, "Rollout"),
    Metric(
        "dgr2_divergence",
        "gauge",
        "nats",
        "Divergence of student and teacher (OPD) or reference (RL), a token.",
        LOOP,
        "Training",
    ),
    Metric(
        "dgr2_ratio_mean",
        "gauge",
        "1",
        "Mean likelihood ratio of new and behaviour policy.",
        LOOP,
        "Training",
    ),
    Metric("dgr2_clip_share", "gauge", "share", "Tokens whose ratio was clipped.", LOOP, "Training"),
    Metric("dgr2_gradient_norm", "gauge", "1", "Norm of the gradient before clipping.", LOOP, "Training"),
    Metric("dgr2_loss", "gauge", "1", "Loss of an optimizer step.", LOOP, "Training"),
    Metric("dgr2_queue_depth", "gauge", "samples", "Samples in the bounded queue.", LOOP, "Loop"),
    Metric("dgr2_weight_version", "gauge", "1", "Version of the weights published last.", LOOP, "Loop"),
    Metric(
        "dgr2_staleness",
        "gauge",
        "versions",
        "Versions between the weights that decoded a batch and the trained.",
        LOOP,
        "Loop",
    ),
    Metric(
        "dgr2_phase_seconds", "counter", "s", "Time spent in a phase of the loop.", (*LOOP, "phase"), "Loop"
    ),
    Metric(
        "dgr2_worker_restarts",
        "counter",
        "restarts",
        "Workers replaced after they were lost.",
        LOOP,
        "Loop",
    ),
    Metric(
        "dgr2_serve_requests",
        "counter",
        "requests",
        "Answered requests, by outcome (ok, invalid, error).",
        ("outcome",),
        "Serve",
    ),
    Metric(
        "dgr2_serve_repairs",
        "counter",
        "rankings",
        "Invalid decodes that were repaired to a permutation.",
        (),
        "Serve",
    ),
    Metric("dgr2_serve_decode_seconds", "histogram", "s", "Time to decode a batch.", (), "Serve", SECONDS),
    Metric("dgr2_serve_batch_size", "histogram", "requests", "Requests decoded together.", (), "Serve", ROWS),
)


def metric(name: str) -> Metric:
    """The declared metric of a name.

    Raises:
        ValueError: there is none; the message names the nearest one.
    """
    for declared in METRICS:
        if declared.name == name:
            return declared
    close = get_close_matches(name, [m.name for m in METRICS], n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    raise ValueError(f"metric '{name}' is not declared in dgr2.telemetry.metric_table{hint}")
