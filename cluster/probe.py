"""What every node of a cluster has: one small task a node, its facts on one line of JSON.

Runs where a driver can join the cluster: in this process for a local one, as a job for another.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import dgr2
from dgr2.config import RayConfig
from dgr2.errors import DGR2Error
from dgr2.training.session import ray_session

MARK = "dgr2-cluster-facts "


@dataclass(frozen=True)
class NodeFacts:
    """One node.

    Attributes:
        node: address.
        stdlib_platform: whether ``import platform`` gives Python's own.
        dgr2_from: folder that ``dgr2`` is imported from.
        storage: empty, or why the folder of runs cannot be used there.
    """

    node: str
    python: str
    ray: str
    torch: str
    dgr2_from: str
    stdlib_platform: bool
    storage: str


@dataclass(frozen=True)
class ClusterFacts:
    """All nodes, and logical resources in total and free."""

    nodes: tuple[NodeFacts, ...]
    total: dict[str, float]
    free: dict[str, float]


def gather(folder: str, timeout_s: float) -> ClusterFacts:
    """Ask every node of the cluster that this process has joined.

    Args:
        folder: where runs are kept; empty leaves storage out.

    Raises:
        DGR2Error: a node did not answer in time, or the driver cannot write the folder.
    """
    mark = _leave_mark(Path(folder)) if folder else None
    try:
        nodes = [n for n in ray.nodes() if n["Alive"]]
        asked = [_look.options(scheduling_strategy=_on(n["NodeID"])).remote(str(mark or "")) for n in nodes]
        ready, waiting = ray.wait(asked, num_returns=len(asked), timeout=timeout_s)
        if waiting:
            silent = [n["NodeManagerAddress"] for n, ref in zip(nodes, asked, strict=True) if ref in waiting]
            raise DGR2Error(f"no answer within {timeout_s:g} s from {', '.join(silent)}")
        return ClusterFacts(
            tuple(ray.get(ready, timeout=timeout_s)), ray.cluster_resources(), ray.available_resources()
        )
    finally:
        if mark is not None:
            mark.unlink(missing_ok=True)


def facts_from_log(text: str) -> ClusterFacts | None:
    """The facts in a job's log, None when the job did not come so far."""
    for line in reversed(text.splitlines()):
        if line.startswith(MARK):
            tree = json.loads(line[len(MARK) :])
            return ClusterFacts(tuple(NodeFacts(**n) for n in tree["nodes"]), tree["total"], tree["free"])
    return None


def _leave_mark(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder / f".dgr2-doctor-{uuid.uuid4().hex}"
        mark.write_text("seen", encoding="utf-8")
    except OSError as error:
        raise DGR2Error(f"cannot write to {folder} where the driver runs: {error.strerror}") from error
    return mark


def _on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


@ray.remote(num_cpus=0, max_retries=0)
def _look(mark: str) -> NodeFacts:
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "none"
    return NodeFacts(
        node=ray.util.get_node_ip_address(),
        python=platform.python_version() if hasattr(platform, "python_version") else "?",
        ray=ray.__version__,
        torch=torch,
        dgr2_from=str(Path(dgr2.__file__).parent),
        stdlib_platform=hasattr(platform, "system"),
        storage=_storage(Path(mark)) if mark else "",
    )


def _storage(mark: Path) -> str:
    """Empty when this node sees the driver's file and can write beside it."""
    if not mark.is_file():
        return "does not see what the driver wrote: not the same storage"
    own = mark.with_name(f"{mark.name}-{os.getpid()}")
    try:
        own.write_text("seen", encoding="utf-8")
        own.unlink()
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    return ""


def main() -> None:
    """Join the cluster that this job runs on and write its facts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="")
    parser.add_argument("--timeout", type=float, default=60.0)
    options = parser.parse_args()
    try:
        with ray_session(RayConfig(address="auto", timeout_s=options.timeout)):
            facts = gather(options.folder, options.timeout)
    except DGR2Error as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(f"{MARK}{json.dumps(asdict(facts))}\n")


if __name__ == "__main__":
    from dgr2.cluster import probe  # as itself, so that its tasks are found by name on the nodes

    probe.main()
