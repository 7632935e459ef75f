"""Joining or starting Ray, and asking what it has before asking for it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import ray

from dgr2.config.schema import RayConfig
from dgr2.errors import CapacityError

log = logging.getLogger(__name__)

API_SERVER = "RAY_API_SERVER_ADDRESS"


@contextmanager
def ray_session(config: RayConfig, dashboard: bool = False) -> Iterator[None]:
    """Use the cluster of ``config.address`` or of Ray's own ``RAY_ADDRESS`` (set inside a Ray job).

    Without either, start a local one that ends with the block.

    A session that is up already is used and left up.

    Args:
        dashboard: Start the local cluster with its dashboard (Tune needs it to free stopped trials).
    """
    if ray.is_initialized():
        yield
        return
    address = config.address or os.environ.get("RAY_ADDRESS", "")
    if not address:  # a private cluster; explicit, so that the default of a release never decides
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(config.timeout_s))
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # by default workers run at 15 and lose to everything else
    os.environ.setdefault("RAY_worker_niceness", "0")
    with ExitStack() as stack:
        if address:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        else:
            ray.init(
                num_cpus=max(os.cpu_count() or 1, config.num_workers * config.threads_per_worker),
                include_dashboard=dashboard,
                dashboard_port=stack.enter_context(_api_server_port()) if dashboard else None,
                logging_level=logging.ERROR,
                log_to_driver=False,
                configure_logging=False,
            )
        stack.callback(ray.shutdown)
        yield


@contextmanager
def _api_server_port() -> Iterator[int]:
    """A free port for the dashboard, made known to all processes of the cluster that starts within the block.

    Left to themselves they look for a Ray on their machine and give up when they find two of them, and what
    frees the workers of a dead trial would give up with them.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    before = os.environ.get(API_SERVER)
    os.environ[API_SERVER] = f"http://127.0.0.1:{port}"
    try:
        yield port
    finally:
        if before is None:
            del os.environ[API_SERVER]
        else:
            os.environ[API_SERVER] = before


def require_capacity(config: RayConfig, cpus: float, gpus: float = 0.0, what: str = "training") -> None:
    """Refuse a request that the cluster could never place.

    Raises:
        CapacityError: with what was asked for and what the cluster has.
    """
    total = ray.cluster_resources()
    if cpus > total.get("CPU", 0) or gpus > total.get("GPU", 0):
        raise CapacityError(
            f"{what} asks for {cpus:g} CPUs and {gpus:g} GPUs; the cluster has {total.get('CPU', 0):g} and "
            f"{total.get('GPU', 0):g}: lower ray.num_workers or ray.threads_per_worker, or join a larger one"
        )
