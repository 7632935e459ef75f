"""Accuracy, validity and speed of plain threshold decoding over the threshold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dgr2.decoding.policy import native_policy
from dgr2.evaluation.bootstrap import mean_intervals
from dgr2.evaluation.engine import Engine, OnDone
from dgr2.evaluation.instances import HeldOut, evenly
from dgr2.evaluation.measure import judge
from dgr2.evaluation.metrics import METRICS, metric_values
from dgr2.evaluation.speed import time_in_turns

TIMED = 8
"""Instances timed at batch 1 for every threshold."""


def threshold_sweep(engine: Engine, held_out: HeldOut, on_done: OnDone | None = None) -> list[dict]:
    """One native point for every tau of ``evaluation.sweep``, in trace and answer alike."""
    config = engine.config
    timed = held_out.take(evenly(len(held_out), TIMED))
    points = []
    for threshold in config.evaluation.sweep:
        policy = replace(
            native_policy(config.decode, config.grid),
            commit="threshold",
            threshold=threshold,
            answer_threshold=threshold,
        )
        decoded = engine.decode(held_out.prompts, held_out.counts, policy, on_done)
        outcome = judge(engine, decoded, held_out, policy, native=True)
        values = metric_values(np.array(outcome.ranks), held_out.width)
        intervals = mean_intervals(values, config.evaluation.bootstrap, config.seed)
        timing = time_in_turns(engine, timed.prompts, timed.counts, {"native": policy})["native"]
        points.append(
            {
                "threshold": threshold,
                "metrics": {name: i.as_json() for name, i in zip(METRICS, intervals, strict=True)},
                "validity": float(np.mean(outcome.valid)),
                "tokens_per_forward": sum(outcome.emitted) / sum(outcome.forwards),
                "tokens_per_second": float(np.median(timing.rates)),
                "n": len(held_out),
            }
        )
    return points
