"""The state machine of a fleet: no way back to work but through an arming that was completed."""

from __future__ import annotations

import pytest

from dgr2.errors import DGR2Error
from dgr2.rollout.health import Fleet, State


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def healthy(fleet: Fleet, slot: int) -> None:
    fleet.restarting(slot)
    fleet.up(slot)
    fleet.armed(slot, fleet.epoch)


def test_a_dead_actor_returns_through_stale_and_an_arming() -> None:
    fleet = Fleet(1, retries=3)
    assert fleet.state(0) is State.DEAD and not fleet.settled()
    healthy(fleet, 0)
    assert fleet.settled()
    fleet.dead(0, "killed")
    for shortcut in (
        fleet.up,
        lambda slot: fleet.armed(slot, 0),
        fleet.worked,
        fleet.suspect,
        fleet.outdated,
    ):
        with pytest.raises(DGR2Error, match="dead"):
            shortcut(0)
    fleet.restarting(0)
    with pytest.raises(DGR2Error, match="restarting cannot become healthy"):
        fleet.armed(0, 0)
    fleet.up(0)
    assert fleet.state(0) is State.STALE and not fleet.settled()
    fleet.armed(0, 0)
    assert fleet.state(0) is State.HEALTHY and fleet.deaths == 1


def test_new_weights_make_the_healthy_stale_and_an_old_arming_does_not_count() -> None:
    fleet = Fleet(2, retries=3)
    healthy(fleet, 0)
    fleet.restarting(1)
    fleet.up(1)
    begun = fleet.epoch
    assert fleet.renew() == begun + 1
    assert fleet.state(0) is State.STALE
    fleet.armed(1, begun)
    assert fleet.state(1) is State.STALE
    fleet.armed(1, fleet.epoch)
    assert fleet.state(1) is State.HEALTHY


def test_a_suspect_works_on_or_is_armed_anew() -> None:
    clock = Clock()
    fleet = Fleet(1, retries=3, clock=clock)
    healthy(fleet, 0)
    clock.now += 5
    fleet.suspect(0)
    clock.now += 2
    assert fleet.age(0) == 2
    fleet.worked(0)
    assert fleet.state(0) is State.HEALTHY
    fleet.suspect(0)
    fleet.up(0)
    assert fleet.state(0) is State.STALE
    fleet.renew()
    assert fleet.state(0) is State.STALE


def test_an_actor_that_keeps_failing_is_given_up_and_work_clears_its_record() -> None:
    clock = Clock()
    fleet = Fleet(2, retries=1, clock=clock)
    healthy(fleet, 0)
    healthy(fleet, 1)
    fleet.dead(0, "first")
    clock.now += 1
    fleet.dead(1, "second")
    assert fleet.first_cause == "first" and not fleet.given_up(0)
    healthy(fleet, 0)
    fleet.worked(0)
    assert fleet.first_cause == "second"
    fleet.dead(0, "third")
    assert not fleet.given_up(0)
    fleet.restarting(0)
    fleet.dead(0, "fourth")
    assert fleet.given_up(0) and not fleet.lost()
    healthy(fleet, 1)
    assert fleet.settled()
    fleet.dead(1, "never placed", for_good=True)
    assert fleet.lost() and fleet.first_cause == "second" and fleet.deaths == 5
