"""What became of the trials: a line an event while they run, a table at the end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ray import tune
from rich.console import Console
from rich.table import Table

from dgr2.tuning.plan import Plan, plain

Trial = Any  # Ray's own class; its callbacks hand it over


@dataclasses.dataclass
class Outcome:
    """A trial so far.

    Attributes:
        state: ``running``, ``finished``, ``stopped`` (by ASHA, the budget or an interrupt) or ``failed``.
        value: Latest value of the metric, None before the first report.
        cause: Why it failed.
    """

    name: str
    point: dict[str, Any]
    state: str = "running"
    step: int = 0
    value: float | None = None
    cause: str = ""


def trial_name(trial_id: str) -> str:
    """``trial-1`` for the first one; Ray's own names end with a count from 0."""
    return f"trial-{int(trial_id.rsplit('_', 1)[-1]) + 1}"


class SweepLog(tune.Callback):
    """Keeps the outcomes and says what happens."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan, self._console = plan, console
        self.outcomes: dict[str, Outcome] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"outcomes": self.outcomes}  # Ray stores the sweep's settings; a console is none

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        outcome = self._of(trial)
        where = ", ".join(f"{key}={value}" for key, value in outcome.point.items())
        self._say(f"{outcome.name} starts: {where}")

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        outcome = self._of(trial)
        outcome.step, outcome.value = int(result["step"]), float(result[self._plan.metric])
        self._say(f"{outcome.name} step {outcome.step}/{self._plan.steps}: {self._figure(outcome)}")

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        outcome = self._of(trial)
        outcome.state = "finished" if outcome.step >= self._plan.steps else "stopped"
        self._say(f"{outcome.name} {outcome.state} at step {outcome.step}: {self._figure(outcome)}")

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        outcome = self._of(trial)
        outcome.state, outcome.cause = "failed", _last_line(trial.error_file)
        self._say(f"{outcome.name} failed at step {outcome.step}: {outcome.cause}")

    def _of(self, trial: Trial) -> Outcome:
        name = trial_name(trial.trial_id)
        point = {key: plain(value) for key, value in trial.config.items()}
        return self.outcomes.setdefault(name, Outcome(name, point))

    def _figure(self, outcome: Outcome) -> str:
        return f"{self._plan.metric} {'none' if outcome.value is None else f'{outcome.value:.4g}'}"

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def best_outcome(outcomes: Iterable[Outcome], plan: Plan) -> Outcome | None:
    """The best trial by its last value, among those that ran to the end where any did; else None."""
    known = [o for o in outcomes if o.state != "failed" and o.value is not None and math.isfinite(o.value)]
    finished = [o for o in known if o.state == "finished"]
    sign = 1.0 if plan.mode == "min" else -1.0
    return min(finished or known, key=lambda o: sign * (o.value or 0.0), default=None)


def outcome_table(outcomes: Iterable[Outcome], plan: Plan, best: Outcome | None) -> Table:
    """A row a trial, the best one marked."""
    table = Table(title=f"{plan.stage}: {plan.metric} ({plan.mode})")
    table.add_column("trial")
    for domain in plan.space:
        table.add_column(domain.key.removeprefix(f"{plan.stage}."), justify="right", overflow="fold")
    for name in ("steps", plan.metric):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("")
    for o in outcomes:
        values = [f"{v:g}" if isinstance(v, float) else str(v) for v in o.point.values()]
        figure = "" if o.value is None else f"{o.value:.4g}"
        note = "best" if o is best else o.state
        table.add_row(o.name, *values, str(o.step), figure, note, style="bold" if o is best else None)
    return table


def _last_line(file: str | None) -> str:
    """Of the traceback that Ray wrote: the cause."""
    lines = Path(file).read_text(encoding="utf-8").split("\n") if file and Path(file).is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "unknown cause")
