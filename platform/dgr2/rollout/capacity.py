"""Capacity arithmetic: what a loop asks a cluster for, line by line, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dgr2.config.schema import RolloutConfig
from dgr2.errors import CapacityError

NAMES = {"CPU": "CPUs", "GPU": "GPUs"}
SLACK = 1e-6  # fractions of a CPU are sums of floats


@dataclass(frozen=True)
class Demand:
    """``count`` actors of a kind, each asking for ``cpus`` and ``gpus``."""

    what: str
    count: int
    cpus: float
    gpus: float = 0.0

    @property
    def each(self) -> dict[str, float]:
        """Resources of one of them, as Ray names them."""
        return {"CPU": self.cpus, "GPU": self.gpus}


def loop_demands(
    rollout: RolloutConfig, train_workers: int, train_cpus: float, train_gpus: float = 0.0
) -> list[Demand]:
    """What an online loop holds at the same time.

    Args:
        train_workers: Ray Train workers.
        train_cpus, train_gpus: Of each of them.
    """
    return [
        Demand("rollout workers", rollout.workers, rollout.cpus_per_worker),
        Demand("teacher workers", rollout.teacher_workers, rollout.teacher_cpus),
        Demand("train workers", train_workers, train_cpus, train_gpus),
    ]


def require(
    demands: Sequence[Demand], total: Mapping[str, float], nodes: Sequence[Mapping[str, float]] = ()
) -> None:
    """Refuse demands that a cluster could never meet, even when nothing else ran on it.

    Args:
        total: Resources of the cluster.
        nodes: Resources of each node; when given, every single actor must fit on one.

    Raises:
        CapacityError: with the arithmetic.
    """
    for resource, name in NAMES.items():
        asked = sum(d.count * d.each[resource] for d in demands)
        has = total.get(resource, 0.0)
        if asked > has + SLACK:
            raise CapacityError(
                f"{arithmetic(demands, resource)}, and the cluster has {has:g} {name}: lower "
                "rollout.workers, rollout.cpus_per_worker, rollout.teacher_workers, rollout.teacher_cpus or "
                "ray.num_workers, or join a larger cluster"
            )
        largest = max((node.get(resource, 0.0) for node in nodes), default=has)
        for d in demands:
            if d.count and d.each[resource] > largest + SLACK:
                raise CapacityError(
                    f"each of {d.count} {d.what} asks for {d.each[resource]:g} {name}, "
                    f"and the largest node has {largest:g}"
                )


def arithmetic(demands: Sequence[Demand], resource: str = "CPU") -> str:
    """One line a demand, then the sum."""
    name = NAMES[resource]
    lines = [
        f"{d.count} {d.what} x {d.each[resource]:g} = {d.count * d.each[resource]:g} {name}"
        for d in demands
        if d.count and d.each[resource]
    ]
    asked = sum(d.count * d.each[resource] for d in demands)
    return "\n".join([*lines, f"together {asked:g} {name}"])


def free_text(asked: Mapping[str, float], available: Mapping[str, float], total: Mapping[str, float]) -> str:
    """What was asked for and what is free, for the message of a time-out."""
    want = ", ".join(f"{value:g} {NAMES.get(name, name)}" for name, value in asked.items())
    have = ", ".join(f"{available.get(n, 0.0):g} of {total.get(n, 0.0):g} {NAMES.get(n, n)}" for n in asked)
    return f"asked for {want} each; free: {have}"
