"""Frees what stopped trials leave behind: placement groups of Ray Train whose trial is over.

Ray Train has a cleaner of its own, an actor beside each run; a trial that is stopped at the wrong moment
takes it along, and the next trial would wait for ever. Ray does not say which trial a group belongs to, so a
group is put down to the trials that were live when it was first seen, and removed when they are all over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._raylet import PlacementGroupID
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.state import list_placement_groups

from dgr2.tuning.capacity import DRIVER

log = logging.getLogger(__name__)


@dataclass
class Orphans:
    """Which groups are nobody's any more; pure bookkeeping.

    Attributes:
        grace_s: Time that Ray's own cleaner gets after the end of a group's trials.
    """

    grace_s: float
    _owners: dict[str, frozenset[str]] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)

    def ignore(self, groups: set[str]) -> None:
        """Groups that were there before the sweep."""
        self._owners |= {group: frozenset({""}) for group in groups}

    def find(self, groups: set[str], live: set[str], now: float) -> list[str]:
        """Groups to remove, given those that exist and the trials that run."""
        found = []
        for group in sorted(groups):
            owners = self._owners.setdefault(group, frozenset(live))
            if owners & (live | {""}):
                self._since.pop(group, None)
            elif now - self._since.setdefault(group, now) >= self.grace_s:
                found.append(group)
        return found


class Reaper:
    """Looks every few seconds while its block runs."""

    def __init__(self, live: Callable[[], set[str]], grace_s: float = 8.0, every_s: float = 2.0) -> None:
        self._live, self._every = live, every_s
        self._orphans = Orphans(grace_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._job = ray.get_runtime_context().get_job_id()

    def __enter__(self) -> None:
        self._orphans.ignore(self._groups())
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stop.wait(self._every):
            for group in self._orphans.find(self._groups(), self._live(), time.monotonic()):
                log.info("removing placement group %s of a trial that is over", group)
                remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(group)))

    def _groups(self) -> set[str]:
        """This job's placement groups without Tune's own; none when Ray does not answer."""
        try:
            states = list_placement_groups(
                filters=[("creator_job_id", "=", self._job)],
                limit=10_000,
                detail=True,
                raise_on_missing_output=False,
            )
        except Exception as error:  # the State API is best effort: the next look is soon
            log.debug("cannot list placement groups: %s", error)
            return set()
        return {s.placement_group_id for s in states if s.state != "REMOVED" and not _holds_driver(s.bundles)}


def _holds_driver(bundles: list[dict[str, Any]] | None) -> bool:
    """Whether a group is a trial's own: Tune makes it before the trial starts and removes it by itself."""
    return any(DRIVER.keys() <= bundle["unit_resources"].keys() for bundle in bundles or [])
