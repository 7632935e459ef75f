"""Capacity arithmetic, and the presets on two cores."""

from __future__ import annotations

import pytest

from dgr2.config import load_config, presets
from dgr2.errors import CapacityError
from dgr2.rollout.capacity import Demand, free_text, loop_demands, require


@pytest.mark.parametrize("preset", presets())
def test_a_preset_with_one_train_worker_fits_on_two_cores(preset: str) -> None:
    config = load_config(preset, inputs=False)
    require(loop_demands(config.rollout, 1, config.ray.threads_per_worker), {"CPU": 2.0}, [{"CPU": 2.0}])


def test_the_message_is_the_arithmetic() -> None:
    rollout = load_config("demo", ["rollout.workers=4", "rollout.cpus_per_worker=0.5"]).rollout
    with pytest.raises(CapacityError) as refused:
        require(loop_demands(rollout, 2, 1), {"CPU": 2.0})
    assert str(refused.value).splitlines()[:3] == [
        "4 rollout workers x 0.5 = 2 CPUs",
        "1 teacher workers x 0.25 = 0.25 CPUs",
        "2 train workers x 1 = 2 CPUs",
    ]
    assert "together 4.25 CPUs, and the cluster has 2 CPUs: lower rollout.workers" in str(refused.value)


def test_fractions_add_up_and_gpus_count() -> None:
    require([Demand("actors", 10, 0.1)], {"CPU": 1.0})
    with pytest.raises(
        CapacityError, match="1 train workers x 1 = 1 GPUs\ntogether 1 GPUs, and the cluster has 0"
    ):
        require([Demand("train workers", 1, 1, 1)], {"CPU": 8.0})


def test_a_single_actor_must_fit_on_a_node() -> None:
    nodes = [{"CPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}]
    require([Demand("train workers", 2, 2)], {"CPU": 4.0}, nodes)
    with pytest.raises(
        CapacityError, match="each of 1 train workers asks for 3 CPUs, and the largest node has 2"
    ):
        require([Demand("train workers", 1, 3)], {"CPU": 4.0}, nodes)


def test_what_is_free_is_said() -> None:
    assert free_text({"CPU": 0.25}, {}, {"CPU": 2.0}) == "asked for 0.25 CPUs each; free: 0 of 2 CPUs"
