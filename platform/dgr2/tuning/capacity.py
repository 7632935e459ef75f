"""Capacity arithmetic of a sweep: what a trial holds, and how many trials fit at a time.

A trial that waits for resources another one holds waits for ever, so trials that do not fit are never
started. The process that drives a trial asks for no CPU: it sits on the head node, held by a sliver of the
resource that Ray gives that node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dgr2.config import Config
from dgr2.errors import CapacityError
from dgr2.rollout.capacity import NAMES, SLACK, Demand, arithmetic

DRIVER = {"node:__internal_head__": 0.001}
"""What the process that drives a trial asks for."""


def actor_demand(stage: str, config: Config) -> Demand:
    """Rollout and teacher workers of a trial; all of a size, so that each fits where any other one does."""
    rollout = config.rollout
    if stage == "cft":
        return Demand("actors", 0, 0.0)
    if stage == "rl":
        return Demand("rollout workers", rollout.workers, rollout.cpus_per_worker)
    cpus = max(rollout.cpus_per_worker, rollout.teacher_cpus)
    return Demand("rollout and teacher workers", rollout.workers + rollout.teacher_workers, cpus)


def trial_demands(stage: str, config: Config) -> list[Demand]:
    """What a trial holds while it runs."""
    ray = config.ray
    cpus = ray.threads_per_worker if stage == "cft" else config.rollout.train_cpus
    train = Demand("train workers", ray.num_workers, cpus, 1.0 if ray.use_gpu else 0.0)
    return [demand for demand in (actor_demand(stage, config), train) if demand.count]


def trial_bundles(stage: str, config: Config) -> list[dict[str, float]]:
    """Bundles of a trial's own placement group: its driver and the actors that the driver starts.

    Ray Train makes a second group for its workers.
    """
    actors = actor_demand(stage, config)
    return [dict(DRIVER), *({"CPU": actors.cpus} for _ in range(actors.count))]


def trials_at_a_time(
    demands: Sequence[Demand],
    wanted: int,
    samples: int,
    free: Mapping[str, float],
    nodes: Sequence[Mapping[str, float]],
) -> int:
    """How many trials to run at a time.

    Args:
        demands: Of one trial.
        wanted: ``tune.max_concurrent``; 0 takes what fits.
        samples: Trials of the sweep.
        free: What is free on the cluster.
        nodes: Resources of each node: an actor is never spread over two.

    Raises:
        CapacityError: not one trial fits, or not as many as wanted; with the arithmetic.
    """
    fits = min(_by_sum(demands, free), _by_node(demands, nodes, samples))
    asked = {r: sum(d.count * d.each[r] for d in demands) for r in NAMES}
    lines = "; ".join(arithmetic(demands, r).replace("\n", ", ") for r in NAMES if asked[r])
    have = ", ".join(f"{free.get(r, 0.0):g} {NAMES[r]}" for r in NAMES if asked[r])
    if fits < 1:
        raise CapacityError(
            f"a trial asks for {lines}, and the cluster has {have} free on {len(nodes)} nodes: not one fits; "
            "lower ray.num_workers, ray.threads_per_worker or rollout.workers, or join a larger cluster"
        )
    wanted = min(wanted, samples)
    if wanted > fits:
        products = (f"{wanted} x {asked[r]:g} = {wanted * asked[r]:g} {NAMES[r]}" for r in NAMES if asked[r])
        raise CapacityError(
            f"{wanted} trials at a time ask for {', '.join(products)} (each: {lines}), and the cluster has "
            f"{have} free: {fits} would fit; lower tune.max_concurrent or leave it at 0"
        )
    return wanted or min(fits, samples)


def _by_sum(demands: Sequence[Demand], free: Mapping[str, float]) -> int:
    fits = [
        math.floor((free.get(resource, 0.0) + SLACK) / asked)
        for resource in NAMES
        if (asked := sum(d.count * d.each[resource] for d in demands)) > 0
    ]
    return min(fits)


def _by_node(demands: Sequence[Demand], nodes: Sequence[Mapping[str, float]], most: int) -> int:
    """Trials that fit when each actor takes the first node with room, the largest actors first."""
    left = [{resource: node.get(resource, 0.0) for resource in NAMES} for node in nodes]
    each = sorted((d.each for d in demands for _ in range(d.count)), key=lambda e: (-e["GPU"], -e["CPU"]))
    for trial in range(most):
        for actor in each:
            room = next((n for n in left if all(n[r] + SLACK >= actor[r] for r in NAMES)), None)
            if room is None:
                return trial
            for resource in NAMES:
                room[resource] -= actor[resource]
    return most
