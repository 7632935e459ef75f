"""Capacity of a sweep: the arithmetic, and what is refused before anything starts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgr2.config import load_config
from dgr2.errors import CapacityError
from dgr2.rollout.capacity import Demand
from dgr2.tuning.capacity import DRIVER, trial_bundles, trial_demands, trials_at_a_time


def at_a_time(stage: str, *overrides: str, cpus: float = 2.0, gpus: float = 0.0, nodes: int = 1) -> int:
    config = load_config("demo", overrides)
    node = {"CPU": cpus / nodes, "GPU": gpus / nodes}
    free = {"CPU": cpus, "GPU": gpus}
    demands = trial_demands(stage, config)
    return trials_at_a_time(demands, config.tune.max_concurrent, config.tune.samples, free, [node] * nodes)


def test_the_demo_fits_on_two_cores() -> None:
    assert [at_a_time(stage) for stage in ("cft", "opd", "rl")] == [1, 1, 1]


def test_as_many_as_fit_and_never_more_than_trials() -> None:
    assert at_a_time("cft", cpus=7) == 3
    assert at_a_time("cft", cpus=64) == 8
    assert at_a_time("cft", "tune.max_concurrent=2", cpus=64) == 2
    assert at_a_time("cft", "tune.samples=2", "tune.max_concurrent=9", cpus=64) == 2
    assert at_a_time("cft", "ray.use_gpu=true", cpus=64, gpus=4) == 2


def test_tenths_of_a_cpu_add_up() -> None:
    settings = ("rollout.cpus_per_worker=0.1", "rollout.train_cpus=0.1", "ray.num_workers=1")
    assert at_a_time("rl", *settings, cpus=0.3) == 1
    assert at_a_time("rl", *settings, cpus=0.9) == 3


def test_an_actor_is_never_spread_over_nodes() -> None:
    settings = ("ray.threads_per_worker=3", "ray.num_workers=1")
    assert at_a_time("cft", *settings, cpus=8) == 2
    with pytest.raises(CapacityError, match="free on 4 nodes: not one fits"):
        at_a_time("cft", *settings, cpus=8, nodes=4)


@pytest.mark.parametrize(
    ("stage", "overrides", "words"),
    [
        ("cft", ["ray.num_workers=4"], "x 1 = 4 CPUs, together 4 CPUs, and the cluster has 2 CPUs free"),
        ("cft", ["tune.max_concurrent=3"], "3 x 2 = 6 CPUs (each: 2 train workers x 1 = 2 CPUs"),
        ("cft", ["ray.use_gpu=true"], "2 train workers x 1 = 2 GPUs"),
        ("opd", ["rollout.workers=6"], "7 rollout and teacher workers x 0.25 = 1.75 CPUs"),
        ("rl", ["tune.max_concurrent=2"], "1 would fit"),
    ],
)
def test_what_does_not_fit_is_refused(stage: str, overrides: list[str], words: str) -> None:
    with pytest.raises(CapacityError) as refused:
        at_a_time(stage, *overrides)
    assert words in str(refused.value)


def test_a_trial_reserves_its_actors_and_no_cpu_for_its_driver() -> None:
    config = load_config("demo", ["rollout.teacher_cpus=0.5"])
    assert trial_bundles("cft", config) == [DRIVER]
    assert trial_bundles("rl", config) == [DRIVER, *[{"CPU": 0.25}] * 2]
    assert trial_bundles("opd", config) == [DRIVER, *[{"CPU": 0.5}] * 3]
    assert "CPU" not in DRIVER


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 8)), min_size=1, max_size=3),
    st.lists(st.integers(0, 16), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_what_runs_at_a_time_fits_the_cluster(kinds, nodes, samples) -> None:
    demands = [Demand("actors", count, quarters / 4) for count, quarters in kinds]
    free = {"CPU": float(sum(nodes))}
    try:
        count = trials_at_a_time(demands, 0, samples, free, [{"CPU": float(n)} for n in nodes])
    except CapacityError:
        return
    assert 1 <= count <= samples
    assert count * sum(d.count * d.cpus for d in demands) <= free["CPU"]
