"""The pipeline: which stages there are, what each depends on, and which of them need to run.

A stage is finished for good as long as its fingerprint stands: the keys it reads, the seed, the fingerprints
of the stages before it and the digest of its input files.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dgr2.config import Config, fingerprint, walk
from dgr2.errors import ConfigError, UserError
from dgr2.storage import RunFolder, StageState, changed_keys
from dgr2.telemetry import MetricLog, Progress

log = logging.getLogger(__name__)


@dataclass
class StageContext:
    """What a stage works with."""

    run: RunFolder
    config: Config
    progress: Progress
    metrics: MetricLog
    console: Console


@dataclass(frozen=True)
class Stage:
    """A step of the pipeline.

    Attributes:
        needs: stages that must have finished.
        sections: configuration it reads, as sections or single keys; what a stage before it owns may be
            left out, since that stage's fingerprint is part of this one's.
        function: does the work and returns figures that JSON can hold.
        uses: stages whose outcome it reads when they have finished.
        on_ray: runs on Ray; in a whole run such stages share one local cluster.
    """

    name: str
    needs: tuple[str, ...]
    sections: tuple[str, ...]
    function: Callable[[StageContext], dict[str, Any]]
    uses: tuple[str, ...] = ()
    on_ray: bool = False

    def owns(self, key: str) -> bool:
        """Whether a dotted key lies in the sections of this stage."""
        return any(key == s or key.startswith(f"{s}.") for s in self.sections)


def _job(module: str, name: str = "") -> Callable[[StageContext], dict[str, Any]]:
    """The function of a stage, imported when it runs: a command pays for what it uses."""

    def function(context: StageContext) -> dict[str, Any]:
        return getattr(importlib.import_module(f"dgr2.jobs.{module}"), name or module)(context)

    return function


PREPARE = ("data", "retrieval", "semantic_ids", "expert", "prompt", "traces", "answer", "tokenizer", "grid")
# What decides which tokens a rollout writes.
ROLLOUT = tuple(
    f"decode.{key}" for key in ("commit", "threshold", "answer_threshold", "answer_policy", "fused", "verify")
)
STAGES = [
    Stage("prepare", (), ("seed", *PREPARE, "model.init"), _job("prepare")),
    Stage("teacher", ("prepare",), ("model", "teacher"), _job("teacher"), on_ray=True),
    Stage("cft", ("teacher",), ("cft",), _job("cft"), on_ray=True),
    Stage("opd_off_policy", ("cft",), ("opd", *ROLLOUT), _job("opd", "opd_off_policy"), on_ray=True),
    Stage("opd", ("cft",), ("opd", *ROLLOUT), _job("opd"), on_ray=True),
    Stage("rl", ("opd",), ("rl", *ROLLOUT), _job("rl"), on_ray=True),
    Stage(
        "evaluate",
        ("prepare",),
        ("decode", "evaluation"),
        _job("evaluate"),
        uses=("teacher", "cft", "opd", "opd_off_policy", "rl"),
    ),
]
# Named by a path in the configuration, by their content in a fingerprint.
INPUTS = ("data.path", "model.init")


def run_pipeline(run: RunFolder, cfg: Config, console: Console) -> None:
    """Run every stage whose fingerprint is not that of its last finish."""
    inputs = input_digests(cfg)
    with ExitStack() as cluster:
        for stage in STAGES:
            if not stage.on_ray:
                cluster.close()
            elif _finish(run, stage, stage_fingerprint(run, cfg, stage, inputs)) is None:
                from dgr2.training.session import ray_session

                cluster.enter_context(ray_session(cfg.ray))
            _run(run, cfg, stage, inputs, console)


def run_stage(run: RunFolder, cfg: Config, name: str, console: Console) -> None:
    """Run one stage, unless it is finished.

    Raises:
        UserError: a stage before it has not finished, or is out of date.
    """
    stage, inputs = _stage(name), input_digests(cfg)
    for before in map(_stage, _upstream(run, stage)):
        state = run.stage_state(before.name)
        if state is None or state.fingerprint != stage_fingerprint(run, cfg, before, inputs):
            why = "has not finished" if state is None else "is out of date"
            raise UserError(
                f"'{name}' needs '{before.name}', which {why}: dgr2 {before.name} --run {run.path}"
            )
    _run(run, cfg, stage, inputs, console)


def refuse_upstream_changes(run: RunFolder, cfg: Config, name: str, free: tuple[str, ...] = ()) -> None:
    """Refuse a configuration that differs from the run's in what an earlier stage than ``name`` reads.

    A stage that has not run is none of the earlier ones, unless ``name`` needs it.

    Args:
        free: Sections that may differ all the same.

    Raises:
        ConfigError: naming the keys and the command that may change them.
    """
    earlier = _all_upstream(run, _stage(name))
    for key in changed_keys(run.config(), cfg):
        owner = next((s.name for s in STAGES if s.name in earlier and s.owns(key)), None)
        if owner is not None and key.split(".")[0] not in free:
            advice = f"dgr2 {owner} --run {run.path}"
            raise ConfigError(f"'{key}' belongs to stage '{owner}', not '{name}': change it with {advice}")


def stage_fingerprint(run: RunFolder, cfg: Config, stage: Stage, inputs: dict[str, str]) -> str:
    """What a stage would be made from now.

    Args:
        inputs: see ``input_digests``.
    """
    keys = {k: inputs.get(k, v) for k, v in walk(cfg) if stage.owns(k)}
    before = {n: stage_fingerprint(run, cfg, _stage(n), inputs) for n in _upstream(run, stage)}
    return fingerprint({"stage": stage.name, "seed": cfg.seed, "keys": keys, "before": before})


def current_fingerprint(run: RunFolder, cfg: Config, name: str) -> str:
    """Fingerprint of what the named stage would be made from now."""
    return stage_fingerprint(run, cfg, _stage(name), input_digests(cfg))


def input_digests(cfg: Config) -> dict[str, str]:
    """Key -> digest of the folder that it names; empty where it names none."""
    digests = {}
    for key in INPUTS:
        section, name = key.split(".")
        folder = getattr(getattr(cfg, section), name)
        used = folder and (key != "data.path" or cfg.data.source == "folder")
        digests[key] = _digest(Path(folder)) if used else ""
    return digests


@contextmanager
def nothing_written(path: Path) -> Iterator[None]:
    """Undo what a ``UserError`` leaves: a run folder that finished no stage, or a changed configuration."""
    new = path = path.resolve()
    while not new.parent.exists():
        new = new.parent
    existed, is_run = path.exists(), RunFolder.is_run(path)
    before = RunFolder(path).config() if is_run else None
    try:
        yield
    except UserError:
        run = RunFolder(path)
        if before is not None:
            if before != run.config():
                run.write_config(before)
        elif RunFolder.is_run(path) and not run.finished():
            shutil.rmtree(new if not existed else path, ignore_errors=True)
            if existed:
                path.mkdir()
        raise


def _run(run: RunFolder, cfg: Config, stage: Stage, inputs: dict[str, str], console: Console) -> None:
    made_from = stage_fingerprint(run, cfg, stage, inputs)
    before = _finish(run, stage, made_from)
    if before is not None:
        console.print(f"[bold]{stage.name}[/] finished before in {before.seconds:.0f} s: skipped")
        return
    console.print(f"[bold]{stage.name}[/]")
    run.begin_stage(stage.name, made_from)
    start, metrics = time.monotonic(), MetricLog(run)
    try:
        with Progress(console) as progress:
            result = stage.function(StageContext(run, cfg, progress, metrics, console))
    finally:
        metrics.close()
    seconds = time.monotonic() - start
    run.finish_stage(stage.name, made_from, seconds, result)
    console.print(f"[bold]{stage.name}[/] finished in {seconds:.0f} s")


def _finish(run: RunFolder, stage: Stage, made_from: str) -> StageState | None:
    """How a stage finished, if it was made from this."""
    state = run.stage_state(stage.name)
    return state if state is not None and state.fingerprint == made_from else None


def _stage(name: str) -> Stage:
    return next(s for s in STAGES if s.name == name)


def _upstream(run: RunFolder, stage: Stage) -> list[str]:
    return [*stage.needs, *(n for n in stage.uses if run.stage_state(n) is not None)]


def _all_upstream(run: RunFolder, stage: Stage) -> set[str]:
    before = _upstream(run, stage)
    return set(before).union(*(_all_upstream(run, _stage(name)) for name in before))


def _digest(folder: Path) -> str:
    """Of names and contents; of weights, too large to read for every command, name, size and time."""
    digest = hashlib.sha256()
    for file in sorted(p for p in folder.iterdir() if p.is_file()):
        digest.update(file.name.encode())
        if file.suffix in (".safetensors", ".bin", ".pt"):
            stat = file.stat()
            digest.update(f"{stat.st_size} {stat.st_mtime_ns}".encode())
        else:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
