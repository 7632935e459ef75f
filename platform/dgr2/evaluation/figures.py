"""``report.json``: everything that was measured, from what the rows hold instance by instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dgr2.config import fingerprint
from dgr2.config.schema import Config
from dgr2.evaluation.answer import FLAWS
from dgr2.evaluation.bootstrap import mean_intervals
from dgr2.evaluation.instances import HeldOut
from dgr2.evaluation.measure import Decoded, RowResult
from dgr2.evaluation.metrics import METRICS, metric_values, oracle_ranks
from dgr2.evaluation.rows import PAIR_METRICS, PAIRS, Row
from dgr2.evaluation.speed import Timing


@dataclass
class Measured:
    """All measurements of an evaluation."""

    rows: dict[str, RowResult]
    timings: dict[str, dict[str, Timing]]
    """By stage of the checkpoint: ``ar``, ``native`` and ``policy``, timed in turns."""
    stage_seconds: dict[str, float]
    position_bias: dict[str, dict]
    sweep: list[dict]
    examples: list[dict]


def build_report(config: Config, held_out: HeldOut, table: Sequence[Row], measured: Measured) -> dict:
    """The whole report as plain values."""
    values = {
        name: metric_values(np.array(result.policy.ranks), held_out.width)
        for name, result in measured.rows.items()
    }
    rows = [row for row in table if row.name in measured.rows]
    return {
        "preset": config.preset,
        "seed": config.seed,
        "fingerprint": fingerprint(config),
        "instances": len(held_out),
        "candidates": held_out.width,
        "oracle": _oracle(held_out),
        "stages": [_stage(config, held_out, row, measured, values[row.name]) for row in rows],
        "paired": _paired(config, measured.rows, values),
        "position_bias": measured.position_bias,
        "sweep": measured.sweep,
        "examples": measured.examples,
    }


def _stage(config: Config, held_out: HeldOut, row: Row, measured: Measured, values: np.ndarray) -> dict:
    result = measured.rows[row.name]
    native = metric_values(np.array(result.native.ranks), held_out.width)
    timings = measured.timings.get(row.stage, {})
    return {
        "name": row.name,
        "instances": len(result.index),
        "metrics": metric_intervals(config, values),
        "metrics_native": metric_intervals(config, native),
        "validity": {
            "policy": float(np.mean(result.policy.valid)),
            "native": float(np.mean(result.native.valid)),
            **{flaw: float(np.mean(result.native.flaws[flaw])) for flaw in FLAWS},
        },
        "decode": _decode(config, row, result.policy, timings, "policy"),
        "decode_native": _decode(config, row, result.native, timings, "native"),
        "seconds": 0.0 if row.untrained else measured.stage_seconds.get(row.stage, 0.0),
        "evaluation_seconds": result.seconds,
    }


def metric_intervals(config: Config, values: np.ndarray) -> dict[str, dict]:
    """``{metric: {value, ci95}}`` of the values ``[instances, metrics]``."""
    intervals = mean_intervals(values, config.evaluation.bootstrap, config.seed)
    return {name: interval.as_json() for name, interval in zip(METRICS, intervals, strict=True)}


def _decode(
    config: Config, row: Row, outcome: Decoded, timings: Mapping[str, Timing], how: str
) -> dict | None:
    """Speed of a decoded row; None for a row that decodes nothing.

    Tokens a forward are totals over the instances. Tokens a second and the speed-up are measured at batch
    1; AR is timed once, with the permutation rule, and stands for both AR decodes.
    """
    if row.mode == "order":
        return None
    emitted, answer = sum(outcome.emitted), sum(outcome.emitted_answer)
    forwards, forwards_answer = sum(outcome.forwards), sum(outcome.forwards_answer)
    report = {
        "policy": outcome.policy["label"],
        "threshold": outcome.policy["threshold"],
        "block_size": outcome.policy["block_size"],
        "batch_size": 1,
        "accuracy_batch_size": config.decode.batch_size,
        "tokens_per_forward": _ratio(emitted, forwards),
        "tokens_per_forward_trace": _ratio(emitted - answer, forwards - forwards_answer),
        "tokens_per_forward_answer": _ratio(answer, forwards_answer),
    }
    timing = timings["ar" if row.mode == "ar" else how]
    resamples, seed = config.evaluation.bootstrap, config.seed
    rate = timing.tokens_per_second(resamples, seed)
    gain = timing.speedup(timings["ar"], resamples, seed)
    return report | {
        "tokens_per_second": rate.value,
        "tokens_per_second_ci95": [rate.low, rate.high],
        "speedup_vs_ar": gain.value,
        "speedup_vs_ar_ci95": [gain.low, gain.high],
        "timed_instances": len(timing.tokens),
    }


def _ratio(above: int, below: int) -> float:
    return above / below if below else 0.0


def _paired(config: Config, rows: Mapping[str, RowResult], values: Mapping[str, np.ndarray]) -> list[dict]:
    """Differences of rows over the instances that both decoded."""
    report = []
    for a, b in PAIRS:
        if a not in rows or b not in rows:
            continue
        _, at_a, at_b = np.intersect1d(rows[a].index, rows[b].index, return_indices=True)
        difference = values[a][at_a] - values[b][at_b]
        intervals = dict(
            zip(METRICS, mean_intervals(difference, config.evaluation.bootstrap, config.seed), strict=True)
        )
        for metric in PAIR_METRICS:
            delta = intervals[metric]
            report.append(
                {
                    "a": a,
                    "b": b,
                    "metric": metric,
                    "delta": delta.value,
                    "ci95": [delta.low, delta.high],
                    "n": len(at_a),
                }
            )
    return report


def _oracle(held_out: HeldOut) -> dict[str, float]:
    """Metrics of the best possible ranker; empty where the source knows none."""
    if not held_out.has_oracle:
        return {}
    scores = np.full((len(held_out), held_out.width), -np.inf)
    for row, known in zip(scores, held_out.oracle, strict=True):
        row[: len(known)] = known
    ranks = oracle_ranks(scores, np.array(held_out.targets))
    means = metric_values(ranks, held_out.width).mean(axis=0)
    return {name: float(value) for name, value in zip(METRICS, means, strict=True)}
