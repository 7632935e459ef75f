"""A sweep: trials drawn at random from the space, cut short by ASHA, never more than fit at a time."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator
from rich.console import Console

from dgr2.tuning.outcome import Outcome, SweepLog, trial_name
from dgr2.tuning.plan import Plan
from dgr2.tuning.reaper import Reaper
from dgr2.tuning.space import Domain

log = logging.getLogger(__name__)

DOMAINS: dict[str, Callable[..., Any]] = {
    "uniform": tune.uniform,
    "loguniform": tune.loguniform,
    "randint": tune.randint,
    "choice": lambda *values: tune.choice(list(values)),
}


def run_sweep(
    trial: Callable[[dict[str, Any]], None],
    plan: Plan,
    start: dict[str, Any],
    bundles: Sequence[Mapping[str, float]],
    at_a_time: int,
    folder: Path,
    console: Console,
    timeout_s: float,
) -> list[Outcome]:
    """Run all trials and wait until what they held is free again.

    Args:
        trial: Runs one trial at a point (key -> value) and reports ``step`` and the metric to Tune.
        start: The first point.
        bundles: Placement group of a trial, its driver first.
        folder: Where Tune keeps its own state.
        timeout_s: Longest wait for resources that stopped trials held.

    Raises:
        KeyboardInterrupt: after the running trials were stopped.
    """
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new one has a header even where it should be silent
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # a trial's own folder holds its metrics
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failures have a line and a row of their own
    before = ray.available_resources()
    watcher = SweepLog(plan, console)
    tuner = tune.Tuner(
        tune.with_resources(trial, tune.PlacementGroupFactory([dict(b) for b in bundles])),
        param_space={domain.key: _tune_domain(domain) for domain in plan.space},
        tune_config=tune.TuneConfig(
            metric=plan.metric,
            mode=plan.mode,
            num_samples=plan.samples,
            time_budget_s=plan.budget_s or None,
            # TuneConfig.max_concurrent_trials does not reach a generator that is handed over
            search_alg=BasicVariantGenerator([start], max_concurrent=at_a_time, random_state=plan.seed),
            scheduler=_Asha(
                time_attr="step",
                max_t=plan.steps,
                grace_period=plan.grace,
                reduction_factor=plan.reduction,
            ),
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name="ray",
            storage_path=str(folder),
            verbose=0,
            callbacks=[watcher],
            failure_config=tune.FailureConfig(max_failures=0),
        ),
    )
    reaper = Reaper(lambda: {o.name for o in list(watcher.outcomes.values()) if o.state == "running"})
    with reaper:
        with _interruptible():
            tuner.fit()
        outcomes = _ended(watcher)
        _wait_until_free(before, timeout_s)
    return outcomes


def _ended(watcher: SweepLog) -> list[Outcome]:
    """Outcomes in the order of the trials; one that still ran was cut off by the budget."""
    outcomes = sorted(watcher.outcomes.values(), key=lambda o: int(o.name.rsplit("-", 1)[-1]))
    for outcome in outcomes:
        if outcome.state == "running":  # the budget ran out
            outcome.state = "stopped"
    return outcomes


class _Asha(ASHAScheduler):
    """ASHA that lets a trial end by itself after its last step: it still has a checkpoint to write."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if result["step"] >= self._max_t:
            return TrialScheduler.CONTINUE
        return super().on_trial_result(tune_controller, trial, result)


def _tune_domain(domain: Domain) -> Any:
    return DOMAINS[domain.kind](*domain.values)


def _name(trial: Any) -> str:
    return trial_name(trial.trial_id)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise the KeyboardInterrupt that Tune takes as the wish to stop its trials and return.

    Tune puts its own handler in place and puts the earlier one back only when it was interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
        if signal.getsignal(signal.SIGINT) is before:
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)


def _wait_until_free(before: Mapping[str, float], timeout_s: float) -> None:
    """Ray Train frees the workers of a stopped trial some seconds after it died."""
    deadline = time.monotonic() + timeout_s
    while True:
        free = ray.available_resources()
        held = {r: before.get(r, 0.0) - free.get(r, 0.0) for r in ("CPU", "GPU")}
        if max(held.values()) <= 0:
            return
        if time.monotonic() > deadline:
            log.warning("still held %g s after the sweep: %s", timeout_s, held)
            return
        time.sleep(0.2)
