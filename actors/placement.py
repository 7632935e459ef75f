"""Preflight of an online loop on the cluster it would run on."""

from __future__ import annotations

from collections.abc import Sequence

import ray

from dgr2.rollout.capacity import Demand, require


def require_capacity(demands: Sequence[Demand]) -> None:
    """Refuse demands that this cluster could never meet.

    Raises:
        CapacityError: with the arithmetic.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    require(demands, ray.cluster_resources(), nodes)
