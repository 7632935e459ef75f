"""Where a served model lies: a run folder, or a folder published in S3, which is a run folder reduced to what
serving needs."""

from __future__ import annotations

import os
from pathlib import Path

from dgr2.config import Config
from dgr2.decoding.shipped import Shipped
from dgr2.errors import ConfigError
from dgr2.storage import RunFolder, read_json
from dgr2.storage.objects import SCHEME, ObjectStore, StorageUri

STUDENTS = ("rl", "opd", "cft")
"""Stages that make a student, the newest first."""
KEPT_BACK = ("instances", "midtrain", "sequences")
"""Prepared data that only training and evaluation read: lists and histories of users are not published."""


def locate(model: str, cache: Path | None = None, endpoint_url: str | None = None) -> RunFolder:
    """The run folder of a path, or of a verified download of an ``s3://`` address.

    Args:
        cache: folder for downloads; by default one in the user's cache folder.

    Raises:
        ConfigError: no run folder, or an address that is none.
        UserError, StorageError: see ``ObjectStore.download``.
    """
    if not model.startswith(SCHEME):
        if "://" in model:
            raise ConfigError(f"'{model}' is neither a run folder nor an address s3://bucket/prefix")
        return RunFolder.open(model)
    uri = StorageUri.parse(model)
    return RunFolder.open(ObjectStore(endpoint_url).download(uri, cache or default_cache()))


def default_cache() -> Path:
    """Folder for downloaded models."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgr2" / "models"


def students(run: RunFolder) -> list[str]:
    """Finished students of a run, the newest first."""
    return [s for s in STUDENTS if run.stage_state(s) is not None and run.checkpoint(s).is_dir()]


def published_files(run: RunFolder, stage: str) -> dict[str, Path]:
    """All files that serving a student needs, by their names in the published folder."""
    places = [place for place in run.data.iterdir() if place.name not in KEPT_BACK]
    places += [run.tokenizer, run.checkpoint(stage), run.path / "config.yaml", run.path / "run.json"]
    places += [run.path / "stages" / f"{stage}.json", run.report]
    files = sorted(f for place in places for f in ([place] if place.is_file() else place.rglob("*")))
    return {f.relative_to(run.path).as_posix(): f for f in files if f.is_file()}


def description(run: RunFolder, stage: str, version: str) -> dict[str, object]:
    """What the manifest says about a student: where it comes from and how good it was measured to be."""
    config: Config = run.config()
    state = run.stage_state(stage)
    return {
        "name": stage,
        "version": version,
        "preset": config.preset,
        "seed": config.seed,
        "fingerprint": state.fingerprint if state else "",
        "decoding": Shipped.load(run.checkpoint(stage)),
        "metrics": _metrics(run, stage),
    }


def _metrics(run: RunFolder, stage: str) -> dict[str, object]:
    """The student's row of the report; empty when the run was not evaluated."""
    if not run.report.is_file():
        return {}
    rows = {row["name"]: row for row in read_json(run.report)["stages"]}
    row = rows.get(stage, {})
    return {part: row[part] for part in ("metrics", "validity", "decode") if part in row}
