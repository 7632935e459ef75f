"""Search over the settings of a stage: ``dgr2 tune cft|opd|rl PRESET``.

The stages before it run first, unless they are finished. Every trial is a run of the stage in a run folder of
its own, which shares what those stages made; the best settings are written as a preset.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune as ray_tune
from rich.console import Console
from rich.text import Text

from dgr2.config import Config, load_config, presets
from dgr2.errors import ConfigError, DGR2Error
from dgr2.jobs.run import (
    STAGES,
    StageContext,
    current_fingerprint,
    nothing_written,
    refuse_upstream_changes,
    run_stage,
)
from dgr2.storage import RunFolder, write_json
from dgr2.storage.files import write_text
from dgr2.telemetry import MetricLog, Progress
from dgr2.training.session import ray_session
from dgr2.tuning.capacity import trial_bundles, trial_demands, trials_at_a_time
from dgr2.tuning.outcome import Outcome, best_outcome, outcome_table, trial_name
from dgr2.tuning.plan import Plan, at_point, make_plan, preset_text, start_point
from dgr2.tuning.sweep import run_sweep
from dgr2.tuning.trial import TrialLog


@dataclass(frozen=True)
class Sweep:
    """What every trial needs to know.

    Attributes:
        config: What the trials start from.
        run: Run folder with the stages before.
        folder: Where the trials' run folders go.
    """

    plan: Plan
    config: Config
    run: Path
    folder: Path


def tune(
    stage: str, preset: str, overrides: Sequence[str], path: Path | None, file: Path | None, console: Console
) -> Path:
    """Search, show the trials and write the best settings; returns the preset's path.

    Raises:
        UserError: a bad space or configuration, or more resources asked for than there are; nothing is
            written then.
        DGR2Error: every trial failed.
    """
    config, path = _configuration(stage, preset, overrides, path, file)
    plan = make_plan(stage, config)
    with ray_session(config.ray, dashboard=True), nothing_written(path):
        at_a_time = trials_at_a_time(
            trial_demands(stage, config),
            config.tune.max_concurrent,
            plan.samples,
            ray.available_resources(),
            [node["Resources"] for node in ray.nodes() if node["Alive"]],
        )
        run = RunFolder.open(path) if RunFolder.is_run(path) else RunFolder.create_or_open(path, config)
        for name in stages_before(stage):
            run_stage(run, config, name, console)
        sweep = Sweep(plan, config, run.path, _new_folder(run.tuning(stage)))
        size = f"{plan.samples} trials of {plan.steps} steps, {at_a_time} at a time"
        console.print(f"[bold]tune {stage}[/] {size}")
        outcomes = run_sweep(
            ray_tune.with_parameters(run_trial, sweep=sweep),
            plan,
            start_point(config, plan.space),
            trial_bundles(stage, config),
            at_a_time,
            sweep.folder,
            console,
            config.ray.timeout_s,
        )
    return _conclude(sweep, outcomes, console)


def run_trial(point: dict[str, Any], sweep: Sweep) -> None:
    """One trial, in a process of its own: the stage at a point of the space, its figures reported to Tune."""
    plan, stage = sweep.plan, sweep.plan.stage
    config = at_point(sweep.config, point)
    name = trial_name(ray_tune.get_context().get_trial_id())
    run = RunFolder(sweep.run).branch(sweep.folder / name, config, stages_before(stage))
    made_from = current_fingerprint(run, config, stage)
    run.begin_stage(stage, made_from)
    worst = float("inf") if plan.mode == "min" else float("-inf")
    metrics = MetricLog(run) if stage == "cft" else TrialLog(run, plan.report_every, plan.steps, worst)
    quiet = Console(quiet=True)
    start = time.monotonic()
    try:
        figures = _train(StageContext(run, config, Progress(quiet), metrics, quiet), sweep)
    finally:
        metrics.close()
    run.finish_stage(stage, made_from, time.monotonic() - start, figures)


def _train(context: StageContext, sweep: Sweep) -> dict[str, Any]:
    """The stage itself; ``cft`` reports from its workers, the loops through their log."""
    if sweep.plan.stage == "cft":
        from ray.tune.integration.ray_train import TuneReportCallback

        from dgr2.jobs.cft import cft

        measure = {"validate_every": sweep.plan.report_every, "validation": asdict(sweep.config)}
        return cft(context, measure, (TuneReportCallback(),))
    stage = next(s for s in STAGES if s.name == sweep.plan.stage)
    return stage.function(context)


def stages_before(stage: str) -> list[str]:
    """Names of the stages that must have finished, in order."""
    needed = {stage}
    for each in reversed(STAGES):
        if each.name in needed:
            needed.update(each.needs)
    return [s.name for s in STAGES if s.name in needed - {stage}]


def _configuration(
    stage: str, preset: str, overrides: Sequence[str], path: Path | None, file: Path | None
) -> tuple[Config, Path]:
    """The run's stored configuration, if there is a run, and what the command changes in it."""
    config = load_config(preset, overrides, file=file)
    path = path or Path("runs") / f"{Path(preset).stem}-seed{config.seed}"
    if not RunFolder.is_run(path):
        return config, path
    run = RunFolder.open(path)
    stored = run.config()
    if config.preset != stored.preset:
        raise ConfigError(f"{path} was made by preset '{stored.preset}', not '{config.preset}'")
    if preset in presets():  # a file says all it has to say
        config = load_config(None, overrides, base=stored, file=file)
    if stage in (s.name for s in STAGES):
        refuse_upstream_changes(run, config, stage)
    return config, path


def _new_folder(parent: Path) -> Path:
    """The first ``sweep-N`` that is not there yet."""
    number = 1
    while (parent / f"sweep-{number}").exists():
        number += 1
    folder = parent / f"sweep-{number}"
    folder.mkdir(parents=True)
    return folder


def _conclude(sweep: Sweep, outcomes: list[Outcome], console: Console) -> Path:
    plan, run = sweep.plan, RunFolder(sweep.run)
    best = best_outcome(outcomes, plan)
    console.print(outcome_table(outcomes, plan, best))
    if best is None:
        causes = [f"{o.name}: {o.cause}" for o in outcomes if o.cause]
        cause = causes[0] if causes else "no trial came to its first report"
        raise DGR2Error(f"the sweep has no result: {cause}; its files are in {sweep.folder}")
    for outcome in outcomes:
        if outcome is not best:
            RunFolder(sweep.folder / outcome.name).forget_stage(plan.stage)
    file = run.tuning(plan.stage) / "best.yaml"
    figure = f"{plan.metric} {best.value:.6g}"
    comment = f"Best of {len(outcomes)} trials of '{plan.stage}': {figure} ({best.name})"
    write_text(file, preset_text(at_point(sweep.config, best.point), comment))
    summary = {"stage": plan.stage, "metric": plan.metric, "mode": plan.mode, "best": best.name}
    write_json(run.tuning(plan.stage) / "trials.json", {**summary, "trials": outcomes})
    for line in (
        f"best: {best.name}, {figure}",
        f"trials: {sweep.folder}",
        f"preset: {file}",
        f"dgr2 run {file}",
        f"dgr2 {plan.stage} --run {run.path} --config {file}",
    ):
        console.print(Text(line), soft_wrap=True)
    return file
