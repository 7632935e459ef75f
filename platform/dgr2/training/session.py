"""Joining or starting Ray, and asking what it has before asking for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from dgr2.config.schema import RayConfig
from dgr2.errors import CapacityError

log = logging.getLogger(__name__)


@contextmanager
def ray_session(config: RayConfig, dashboard: bool = False) -> Iterator[None]:
    """Use the cluster of ``config.address``, or a local one that ends with the block.

    A session that is up already is used and left up.

    Args:
        dashboard: Start the local cluster with its dashboard (Tune needs it to free stopped trials).
    """
    if ray.is_initialized():
        yield
        return
    # explicit, so that the default of a release never decides who may talk to the cluster
    os.environ.setdefault("RAY_AUTH_MODE", "token" if config.address else "disabled")
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(config.timeout_s))
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # by default workers run at 15 and lose to everything else
    if config.address:
        ray.init(address=config.address, logging_level=logging.ERROR, log_to_driver=False)
    else:
        cpus = max(os.cpu_count() or 1, config.num_workers * config.threads_per_worker)
        ray.init(
            num_cpus=cpus,
            include_dashboard=dashboard,
            logging_level=logging.ERROR,
            log_to_driver=False,
            configure_logging=False,
        )
    try:
        yield
    finally:
        ray.shutdown()


def require_capacity(config: RayConfig, cpus: float, gpus: float = 0.0, what: str = "training") -> None:
    """Refuse a request that the cluster could never place.

    Raises:
        CapacityError: with what was asked for and what the cluster has.
    """
    total = ray.cluster_resources()
    if cpus > total.get("CPU", 0) or gpus > total.get("GPU", 0):
        raise CapacityError(
            f"{what} asks for {cpus:g} CPUs and {gpus:g} GPUs; the cluster has {total.get('CPU', 0):g} and "
            f"{total.get('GPU', 0):g}: lower ray.num_workers or ray.threads_per_worker, or join a larger cluster"
        )
