"""Ray on two logical CPUs for a module, and a check that nothing of it is still in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A local Ray without dashboard; actors of earlier tests never hold its CPUs."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    yield
    ray.shutdown()


@pytest.fixture
def all_free(cluster: None) -> Callable[[], None]:
    """Fails unless all CPUs are free again soon: a killed actor gives them back a little later."""

    def check() -> None:
        deadline = time.monotonic() + 20
        while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
            assert time.monotonic() < deadline, ray.available_resources()
            time.sleep(0.05)

    return check
