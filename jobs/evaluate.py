"""Evaluate: every row decoded natively and as shipped, timed against AR, compared, drawn and reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

from transformers import AutoTokenizer

from dgr2.config import fingerprint
from dgr2.data.instances import InstanceBuilder
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.policy import ar_policy, native_policy, shipped_policy
from dgr2.decoding.trajectory import Trajectory
from dgr2.evaluation.engine import Engine, Engines
from dgr2.evaluation.figures import Measured, build_report
from dgr2.evaluation.instances import HeldOut, evenly
from dgr2.evaluation.measure import (
    RowResult,
    cached,
    decode_row,
    judge,
    ordered_row,
    row_from_json,
    row_to_json,
)
from dgr2.evaluation.plots import write_plots
from dgr2.evaluation.position import position_check, relabelled, shuffled
from dgr2.evaluation.readable import Reader, sample
from dgr2.evaluation.report import markdown
from dgr2.evaluation.rows import ROWS, Row, describe, row_policies
from dgr2.evaluation.speed import Timing, time_in_turns
from dgr2.evaluation.sweep import threshold_sweep
from dgr2.jobs.run import StageContext
from dgr2.storage import write_json, write_text
from dgr2.telemetry import Task

SAMPLES = 50
"""Instances whose decodes are written out for every row."""
TIMED_COST = 20
"""Batch-decoded responses that take about as long as one instance timed at batch 1; steers the bar only."""


def evaluate(ctx: StageContext) -> dict:
    """Measure every row whose stage has finished; write report, plots and samples."""
    session = Session(ctx)
    rows = [row for row in ROWS if row.mode == "order" or ctx.run.has_checkpoint(row.stage)]
    decoded = [row for row in rows if row.mode != "order"]
    trained = [row for row in decoded if row.mode == "block" and not row.untrained]
    stages = list(dict.fromkeys(row.stage for row in decoded))
    with ctx.progress.task("evaluate", total=session.work(decoded, stages, bool(trained))) as session.task:
        results = {row.name: session.row(row) for row in rows}
        timings = {stage: session.speed(stage, decoded) for stage in stages}
        latest = trained[-1] if trained else None
        measured = Measured(
            rows=results,
            timings=timings,
            stage_seconds=session.stage_seconds(rows),
            position_bias=session.position(latest, results[latest.name]) if latest else {},
            sweep=session.sweep(latest) if latest else [],
            examples=session.examples(latest) if latest else [],
        )
    report = build_report(ctx.config, session.held_out, rows, measured)
    write_json(ctx.run.report, report)
    write_plots(report, ctx.run.plots, latest.name if latest else "")
    write_text(ctx.run.report.with_suffix(".md"), markdown(report))
    figures = {stage["name"]: _headline(stage) for stage in report["stages"]}
    for name, values in figures.items():
        ctx.metrics.log("evaluate", 0, {f"{name}/{key}": value for key, value in values.items()})
    return {"instances": report["instances"], "rows": figures}


class Session:
    """One evaluation: what all its measurements share. Each is stored as soon as it is made."""

    def __init__(self, ctx: StageContext) -> None:
        self.run, self.config = ctx.run, ctx.config
        self.held_out = HeldOut.load(self.run.data)
        tokenizer = AutoTokenizer.from_pretrained(self.run.tokenizer)
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, self.config.data.candidates)
        self.reader = Reader(tokenizer, self.vocabulary, self.run.data)
        self.engines = Engines(self.run, self.vocabulary, self.config)
        self.task: Task | None = None

    def work(self, decoded: list[Row], stages: list[str], swept: bool) -> int:
        """Responses to decode, timed ones counted by what they cost."""
        rows = sum(2 * len(self.instances(row)) for row in decoded)
        timed = sum(TIMED_COST * len(self.timed(stage, decoded)) for stage in stages)
        subset = len(self.subset()) * (2 + len(self.config.evaluation.sweep)) if swept else 0
        return rows + timed + subset

    def instances(self, row: Row) -> list[int]:
        """Positions of a row's instances."""
        return evenly(len(self.held_out), self.config.evaluation.naive_instances if row.broken else 0)

    def timed(self, stage: str, decoded: list[Row]) -> list[int]:
        """Positions of the instances timed; a quarter where a row runs to the limit on each."""
        wanted = self.config.evaluation.speed_instances
        broken = any(row.broken for row in decoded if row.stage == stage)
        return evenly(len(self.held_out), max(1, wanted // 4) if broken else wanted)

    def subset(self) -> list[int]:
        """Positions of the instances of the sweep and of the position check."""
        return evenly(len(self.held_out), self.config.evaluation.sweep_instances)

    def row(self, row: Row) -> RowResult:
        """Measure a row."""
        if row.mode == "order":
            orders = self.held_out.orders
            if row.name == "pre_rank":
                orders = [list(range(n)) for n in self.held_out.counts]
            return ordered_row(self.held_out, orders)
        index = self.instances(row)
        held_out, policies = self.held_out.take(index), row_policies(row, self.config)

        def compute() -> dict:
            engine = self.engines.get(row.stage)
            shipped, native, seconds = decode_row(engine, held_out, policies, self._advance)
            self._write_samples(row, engine, held_out, shipped, native)
            by_policy = judge(engine, shipped, held_out, policies[0], native=False)
            natively = judge(engine, native, held_out, policies[1], native=True)
            return row_to_json(RowResult(index, by_policy, natively, seconds))

        parts = {"policies": [describe(policy) for policy in policies], "held_out": held_out.digest()}
        return row_from_json(self._cached(row.name, row.stage, parts, compute, 2 * len(index)))

    def speed(self, stage: str, decoded: list[Row]) -> dict[str, Timing]:
        """Time AR and block decoding of a checkpoint in turns at batch 1."""
        subset = self.held_out.take(self.timed(stage, decoded))
        policies = {
            "ar": ar_policy(permutation=True, readout=self.config.decode.readout),
            "native": native_policy(self.config.decode, self.config.grid),
            "policy": shipped_policy(self.config.decode, self.config.grid),
        }

        def compute() -> dict:
            engine = self.engines.get(stage)
            timings = time_in_turns(
                engine, subset.prompts, subset.counts, policies, 1, lambda n: self._advance(n * TIMED_COST)
            )
            return {name: asdict(timing) for name, timing in timings.items()}

        parts = {name: describe(policy) for name, policy in policies.items()} | {"held_out": subset.digest()}
        stored = self._cached(f"speed-{stage}", stage, parts, compute, TIMED_COST * len(subset))
        return {name: Timing(**timing) for name, timing in stored.items()}

    def position(self, row: Row, result: RowResult) -> dict[str, dict]:
        """Position bias of a row decoded as shipped."""
        index, policy = self.subset(), shipped_policy(self.config.decode, self.config.grid)
        subset, seed = self.held_out.take(index), self.config.seed

        def compute() -> dict:
            variants = {
                "shuffled": shuffled(subset, InstanceBuilder.load(self.run.data), seed),
                "relabelled": relabelled(subset, self.vocabulary, seed),
            }
            first = [result.policy.first[i] for i in index]
            return position_check(self.engines.get(row.stage), subset, first, variants, policy, self._advance)

        parts = {"policy": describe(policy), "held_out": subset.digest()}
        return self._cached("position", row.stage, parts, compute, 2 * len(index))

    def sweep(self, row: Row) -> list[dict]:
        """Accuracy against speed over the threshold."""
        subset, thresholds = self.held_out.take(self.subset()), self.config.evaluation.sweep

        def compute() -> dict:
            return {"points": threshold_sweep(self.engines.get(row.stage), subset, self._advance)}

        policy = native_policy(self.config.decode, self.config.grid)
        parts = {"policy": describe(policy), "thresholds": thresholds, "held_out": subset.digest()}
        return self._cached("sweep", row.stage, parts, compute, len(subset) * len(thresholds))["points"]

    def examples(self, row: Row) -> list[dict]:
        """The first samples of a row, as shipped; not chosen by their outcome."""
        lines = (self.run.samples / f"{row.name}.jsonl").read_text(encoding="utf-8").splitlines()
        shipped = [entry for entry in map(json.loads, lines) if entry["decode"] == "policy"]
        return shipped[: self.config.evaluation.examples]

    def stage_seconds(self, rows: list[Row]) -> dict[str, float]:
        """Seconds that the stages behind the rows took."""
        states = {row.stage: self.run.stage_state(row.stage) for row in rows}
        return {stage: state.seconds for stage, state in states.items() if state is not None}

    def _cached(self, name: str, stage: str, parts: dict, compute: Callable[[], dict], work: int) -> dict:
        """A stored measurement, or a fresh one; advances the bar by ``work`` where it was stored."""
        evaluation = self.config.evaluation
        key = fingerprint(
            {
                "checkpoint": self.engines.digest(stage),
                "alignment": self.config.cft.alignment,
                "batch_size": self.config.decode.batch_size,
                "bootstrap": evaluation.bootstrap,
                "seed": self.config.seed,
                "parts": parts,
            }
        )
        result, stored = cached(self.run.evaluation / f"{name}.json", key, compute)
        if stored:
            self._advance(work)
        return result

    def _write_samples(
        self,
        row: Row,
        engine: Engine,
        held_out: HeldOut,
        shipped: list[Trajectory],
        native: list[Trajectory],
    ) -> None:
        """``samples/ROW.jsonl``: some instances, decoded as shipped and natively."""
        lines = []
        for i in evenly(len(held_out), SAMPLES):
            for decode, trajectory in (("policy", shipped[i]), ("native", native[i])):
                answer = engine.parse(trajectory, len(held_out.candidates[i]), native=decode == "native")
                entry = {"decode": decode, **sample(self.reader, held_out, i, trajectory, answer)}
                lines.append(json.dumps(entry, ensure_ascii=False))
        write_text(self.run.samples / f"{row.name}.jsonl", "\n".join(lines) + "\n")

    def _advance(self, count: int) -> None:
        if self.task is not None:
            self.task.advance(count)


def _headline(stage: dict) -> dict[str, float]:
    """A row's figures for the metric log and the stage's result."""
    figures = {name: metric["value"] for name, metric in stage["metrics"].items()}
    if stage["decode"]:
        figures |= {f"validity_{how}": stage["validity"][how] for how in ("native", "policy")}
        figures |= {
            k: stage["decode"][k] for k in ("tokens_per_forward", "tokens_per_second", "speedup_vs_ar")
        }
    return figures
