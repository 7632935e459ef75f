"""The run folder: where everything of a run lies, and which stages are done.

config.yaml, run.json       resolved configuration; its fingerprint and the version that wrote it
data/, tokenizer/           what ``prepare`` made
checkpoints/<stage>/        Hugging Face-format checkpoint of a finished stage
train/<stage>/              resumable checkpoints of a stage under way
stages/<stage>.json         fingerprint, seconds and figures of a finished stage
tune/<stage>/               sweeps: best.yaml, trials.json, a run folder a trial
evaluation/, samples/, plots/, tensorboard/, metrics.jsonl
report.json, report.md
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgr2 import __version__
from dgr2.config import NOT_FINGERPRINTED, Config, fingerprint, from_yaml, to_yaml, walk
from dgr2.errors import ConfigError
from dgr2.storage.files import read_json, write_json, write_text


@dataclass(frozen=True)
class StageState:
    """A finished stage: what it was made from, how long it took and what it found."""

    fingerprint: str
    seconds: float
    result: dict[str, Any]


class RunFolder:
    """Paths and state of one run; every path of a run is made here and nowhere else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create_or_open(cls, path: str | Path, cfg: Config) -> RunFolder:
        """The run folder of a configuration, made when it is not there yet.

        Raises:
            ConfigError: the folder holds something else, or a run of another configuration; nothing is
                written then. ``NOT_FINGERPRINTED`` sections are no part of the comparison.
        """
        folder = Path(path).resolve()
        if cls.is_run(folder):
            run = cls.open(folder)
            differing = changed_keys(run.config(), cfg)
            if differing:
                raise ConfigError(
                    f"{path} was made by another configuration: it differs in {', '.join(differing)}; "
                    "choose another --run folder"
                )
            return run
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{path} exists and is no run folder; choose another --run folder")
        run = cls(folder)
        for place in (run.data, run.checkpoints, run.samples, run.plots, run.evaluation, run.tensorboard):
            place.mkdir(parents=True, exist_ok=True)
        run.write_config(cfg)
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run folder.

        Raises:
            ConfigError: there is none.
        """
        folder = Path(path).resolve()
        if not cls.is_run(folder):
            raise ConfigError(f"{path} is no run folder (no config.yaml)")
        return cls(folder)

    @staticmethod
    def is_run(path: str | Path) -> bool:
        return (Path(path) / "config.yaml").is_file()

    @property
    def data(self) -> Path:
        """What ``prepare`` made, the tokenizer apart."""
        return self.path / "data"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer that every stage uses."""
        return self.path / "tokenizer"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of finished stages."""
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        """Sample decodes, a file a stage."""
        return self.path / "samples"

    @property
    def plots(self) -> Path:
        """Plots of the report."""
        return self.path / "plots"

    @property
    def evaluation(self) -> Path:
        """Evaluated rows, kept so that an interrupted evaluation continues."""
        return self.path / "evaluation"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard events."""
        return self.path / "tensorboard"

    @property
    def metrics_file(self) -> Path:
        """Metrics as JSON lines."""
        return self.path / "metrics.jsonl"

    @property
    def report(self) -> Path:
        """The report of ``evaluate``; ``report.md`` stands beside it."""
        return self.path / "report.json"

    def checkpoint(self, stage: str) -> Path:
        """Hugging Face-format checkpoint of a finished stage."""
        return self.checkpoints / stage

    def has_checkpoint(self, stage: str) -> bool:
        """Whether a stage has finished and left a checkpoint."""
        return self.stage_state(stage) is not None and self.checkpoint(stage).is_dir()

    def train(self, stage: str) -> Path:
        """Working folder of a stage's trainer: resumable checkpoints."""
        return self.path / "train" / stage

    def tuning(self, stage: str) -> Path:
        """Sweeps over the settings of a stage, and the best ones as a preset."""
        return self.path / "tune" / stage

    def config(self) -> Config:
        """The resolved configuration that the run is made by."""
        return from_yaml(self.path / "config.yaml")

    def write_config(self, cfg: Config) -> None:
        """Store a configuration and its fingerprint."""
        write_json(self.path / "run.json", {"fingerprint": config_fingerprint(cfg), "version": __version__})
        write_text(self.path / "config.yaml", to_yaml(cfg))

    def stage_state(self, name: str) -> StageState | None:
        """State of a finished stage, None when it has not finished."""
        file = self._state(name)
        return StageState(**read_json(file)) if file.is_file() else None

    def finished(self) -> list[str]:
        """Names of the finished stages."""
        files = (self.path / "stages").glob("*.json")
        return sorted(f.stem for f in files if not f.name.endswith(".started.json"))

    def begin_stage(self, name: str, fingerprint: str) -> None:
        """Take up a stage: what an earlier start from other inputs left is removed, its own is kept.

        From here until ``finish_stage`` the stage counts as unfinished.
        """
        started = self.path / "stages" / f"{name}.started.json"
        if not started.is_file() or read_json(started)["fingerprint"] != fingerprint:
            shutil.rmtree(self.train(name), ignore_errors=True)
            shutil.rmtree(self.checkpoint(name), ignore_errors=True)
            write_json(started, {"fingerprint": fingerprint})
        self._state(name).unlink(missing_ok=True)

    def forget_stage(self, name: str) -> None:
        """Remove what a stage left: checkpoints, resumable ones too, and its state."""
        shutil.rmtree(self.train(name), ignore_errors=True)
        shutil.rmtree(self.checkpoint(name), ignore_errors=True)
        self._state(name).unlink(missing_ok=True)

    def branch(self, path: Path, cfg: Config, stages: Iterable[str]) -> RunFolder:
        """A new run folder that takes over, by links, what the finished ``stages`` made."""
        run = RunFolder(path)
        links = {run.data: self.data, run.tokenizer: self.tokenizer}
        for place in (run.checkpoints, run.samples, run.plots, run.evaluation, run.tensorboard):
            place.mkdir(parents=True)
        for name in stages:
            write_json(run._state(name), self.stage_state(name))
            if self.has_checkpoint(name):
                links[run.checkpoint(name)] = self.checkpoint(name)
        for link, target in links.items():
            link.symlink_to(os.path.relpath(target, link.parent))
        run.write_config(cfg)
        return run

    def finish_stage(self, name: str, fingerprint: str, seconds: float, result: dict[str, Any]) -> StageState:
        """Record that a stage is done."""
        state = StageState(fingerprint, seconds, result)
        write_json(self._state(name), state)
        return state

    def _state(self, name: str) -> Path:
        return self.path / "stages" / f"{name}.json"


def changed_keys(a: Config, b: Config) -> list[str]:
    """Dotted keys in which two configurations differ; where it runs and the preset's name do not count."""
    other = dict(walk(b))
    return [k for k, v in walk(a) if v != other[k] and k != "preset" and not _infrastructure(k)]


def config_fingerprint(cfg: Config) -> str:
    """Fingerprint of all that a run's results depend on: every key outside ``NOT_FINGERPRINTED``."""
    return fingerprint({k: v for k, v in walk(cfg) if not _infrastructure(k)})


def _infrastructure(key: str) -> bool:
    return key.split(".")[0] in NOT_FINGERPRINTED
