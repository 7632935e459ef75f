"""``dgr2 doctor``: what would keep a run from working, here or on another cluster, before it starts."""

from __future__ import annotations

import os
import platform
import shlex
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dgr2.cluster.client import JobsClient, cluster_errors, connect
from dgr2.cluster.follow import follow
from dgr2.cluster.probe import ClusterFacts, facts_from_log, gather
from dgr2.cluster.staging import StagedTree, checkout, staged_tree
from dgr2.config import Config
from dgr2.errors import DGR2Error
from dgr2.rollout.capacity import Demand, loop_demands
from dgr2.training.session import ray_session

Outcome = Literal["ok", "warning", "failed"]
COLOURS: dict[Outcome, str] = {"ok": "green", "warning": "yellow", "failed": "red"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and what was found."""

    name: str
    outcome: Outcome
    found: str


def examine(cfg: Config, address: str, folder: Path | None, timeout_s: float) -> list[Check]:
    """Look at this checkout and at a cluster.

    Args:
        address: URL of a cluster's dashboard; empty starts a local Ray.
        folder: where runs are kept, as the cluster sees it.
        timeout_s: longest wait for an answer.
    """
    checks = [shadowing()]
    place = "" if folder is None else os.path.abspath(folder)
    try:
        with staged_tree() as tree:
            checks.append(Check("package tree", "ok", f"{tree.size / 2**10:.0f} KiB, {tree.digest}"))
            if address:
                checks += _elsewhere(cfg, address, tree, place, timeout_s)
            else:
                with ray_session(cfg.ray):
                    checks += judge(gather(place, timeout_s), cfg, place)
    except DGR2Error as error:
        checks.append(Check("stopped", "failed", str(error)))
    return checks


def shadowing() -> Check:
    """Whether a package called ``platform`` hides Python's own, here."""
    root = checkout()
    package = None if root is None else root / "platform" / "__init__.py"
    if package is not None and package.exists():
        return Check("platform", "failed", f"{package} hides Python's own module: remove it")
    if not hasattr(platform, "system"):
        return Check("platform", "failed", f"{platform.__file__} hides Python's own module")
    return Check("platform", "ok", "Python's own module")


def judge(facts: ClusterFacts, cfg: Config, folder: str) -> list[Check]:
    """What a cluster's facts mean for a configuration."""
    nodes = facts.nodes
    checks = [
        _same("Python", {n.node: n.python for n in nodes}),
        _same("Ray", {n.node: n.ray for n in nodes}),
        _same("torch", {n.node: n.torch for n in nodes}),
    ]
    shadowed = [n.node for n in nodes if not n.stdlib_platform]
    if shadowed:
        checks.append(Check("platform on the nodes", "failed", f"hidden on {', '.join(shadowed)}"))
    if folder:
        bad = [f"{n.node} {n.storage}" for n in nodes if n.storage]
        found = f"{folder}: " + ("; ".join(bad) if bad else f"written from {len(nodes)} node(s)")
        checks.append(Check("storage", "failed" if bad else "ok", found))
    return checks + [_resources(what, need, facts) for what, need in demands(cfg).items()]


def demands(cfg: Config) -> dict[str, dict[str, float]]:
    """Logical resources that the parts of a configuration hold at a time."""
    workers, gpus = cfg.ray.num_workers, float(cfg.ray.use_gpu)
    parts = {
        "training": [Demand("train workers", workers, cfg.ray.threads_per_worker, gpus)],
        "loops (opd, rl)": loop_demands(cfg.rollout, workers, cfg.rollout.train_cpus, gpus),
        "serving": [Demand("replicas", cfg.serve.replicas, cfg.serve.threads)],
    }
    return {
        part: {kind: sum(d.count * d.each[kind] for d in asked) for kind in ("CPU", "GPU")}
        for part, asked in parts.items()
    }


def print_checks(checks: Iterable[Check], console: Console) -> bool:
    """Show the checks as a table; whether none failed."""
    table, checks = Table("check", "outcome", "found", box=None), list(checks)
    for check in checks:
        colour = COLOURS[check.outcome]
        table.add_row(check.name, f"[{colour}]{check.outcome}[/]", escape(check.found))
    console.print(table)
    return all(c.outcome != "failed" for c in checks)


def _elsewhere(cfg: Config, address: str, tree: StagedTree, folder: str, timeout_s: float) -> list[Check]:
    client = connect(address, timeout_s)
    checks = [Check("dashboard", "ok", f"{client.address}, Ray {ray.__version__}"), _authentication(client)]
    with cluster_errors(client.address):
        return checks + _by_job(client, cfg, tree, folder, timeout_s)


def _by_job(client: JobsClient, cfg: Config, tree: StagedTree, folder: str, timeout_s: float) -> list[Check]:
    command = [
        "python",
        "-m",
        "dgr2.cluster.probe",
        "--timeout",
        f"{cfg.ray.timeout_s:g}",
        "--folder",
        folder,
    ]
    job = client.submit_job(
        entrypoint=shlex.join(command),
        submission_id=f"dgr2-doctor-{uuid.uuid4().hex[:12]}",
        runtime_env={"working_dir": str(tree.path), "env_vars": {"RAY_AUTH_MODE": client.auth_mode}},
    )
    pieces: list[str] = []
    follow(client, job, pieces.append, timeout_s)
    text = "".join(pieces)
    facts = facts_from_log(text)
    if facts is None:
        last = (text.strip() or "no output").splitlines()[-1]
        return [Check("job", "failed", f"{job}: {last}")]
    foreign = [n.node for n in facts.nodes if "runtime_resources" not in n.dgr2_from]
    job_found = f"another dgr2 than the one sent is used on {', '.join(foreign)}" if foreign else job
    return [Check("job", "failed" if foreign else "ok", job_found), *judge(facts, cfg, folder)]


def _authentication(client: JobsClient) -> Check:
    if client.auth_mode == "token":
        return Check("authentication", "ok", "token")
    return Check("authentication", "warning", f"{client.auth_mode}: whoever reaches it runs code on it")


def _same(what: str, versions: dict[str, str]) -> Check:
    if len(set(versions.values())) == 1:
        return Check(what, "ok", next(iter(versions.values())))
    return Check(what, "failed", "differs: " + ", ".join(f"{v} on {n}" for n, v in sorted(versions.items())))


def _resources(what: str, need: dict[str, float], facts: ClusterFacts) -> Check:
    asked = ", ".join(
        f"{amount:g} {kind} of {facts.free.get(kind, 0):g} free, {facts.total.get(kind, 0):g} in all"
        for kind, amount in need.items()
        if amount
    )
    if any(amount > facts.total.get(kind, 0) for kind, amount in need.items()):
        return Check(what, "failed", f"{asked}: ask for less or join a larger cluster")
    busy = any(amount > facts.free.get(kind, 0) for kind, amount in need.items())
    return Check(what, "warning" if busy else "ok", asked)
