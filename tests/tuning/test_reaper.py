"""Placement groups outlive neither their trial nor the patience with Ray's own cleaner."""

from __future__ import annotations

import time

import pytest
import ray
from ray.util.placement_group import placement_group

from dgr2.config import Config
from dgr2.training.session import ray_session
from dgr2.tuning.capacity import DRIVER
from dgr2.tuning.reaper import Orphans, Reaper


def test_a_group_goes_when_all_that_may_own_it_are_over_for_a_while() -> None:
    orphans = Orphans(grace_s=5.0)
    orphans.ignore({"before"})
    assert orphans.find({"before", "a"}, {"trial-1", "trial-2"}, 0.0) == []
    assert orphans.find({"before", "a", "b"}, {"trial-2"}, 1.0) == []
    assert orphans.find({"before", "a", "b"}, {"trial-3"}, 2.0) == []  # trial-2 is over: both wait
    assert orphans.find({"before", "a", "b", "c"}, {"trial-3"}, 6.9) == []
    assert orphans.find({"before", "a", "b", "c"}, {"trial-3"}, 7.0) == ["a", "b"]
    assert orphans.find({"before", "c"}, {"trial-3"}, 100.0) == []


def test_a_group_seen_without_any_trial_is_nobodys() -> None:
    orphans = Orphans(grace_s=1.0)
    assert orphans.find({"late"}, set(), 0.0) == []
    assert orphans.find({"late"}, set(), 1.0) == ["late"]


@pytest.mark.ray
def test_what_a_dead_trial_held_is_freed_and_the_rest_is_left() -> None:
    live = {"trial-1"}
    with ray_session(Config().ray, dashboard=True):
        total = ray.cluster_resources()["CPU"]
        mine = placement_group([{"CPU": 0.5}])
        ray.get(mine.ready(), timeout=60)
        with Reaper(lambda: set(live), grace_s=0.5, every_s=0.2):
            theirs = placement_group([{"CPU": 1}])
            tunes = placement_group([DRIVER, {"CPU": 0.25}])  # made by Tune for a trial to come
            ray.get([theirs.ready(), tunes.ready()], timeout=60)
            time.sleep(3.0)
            assert ray.available_resources().get("CPU", 0.0) == total - 1.75
            live.clear()
            deadline = time.monotonic() + 30
            while ray.available_resources().get("CPU", 0.0) != total - 0.75:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            time.sleep(2.0)
            assert ray.available_resources().get("CPU", 0.0) == total - 0.75
