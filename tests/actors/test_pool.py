"""The pool: order, replacement, arming, first causes; what happens to its actors does not show in results."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from dgr2.actors.pool import Pool
from dgr2.errors import RolloutDataError, RolloutInfraError, StaleWeightsError

pytestmark = pytest.mark.ray
CHUNKS = {f"chunk {i}": i for i in range(8)}
SQUARES = [i * i for i in range(8)]
MakePool = Callable[..., Pool]


def make_worker(folder: Path) -> Any:
    """An actor class that squares numbers and does what files in the folder tell it to."""

    class Unpicklable(Exception):
        def __init__(self) -> None:
            super().__init__("out of words")
            self.lock = threading.Lock()

    def told(what: str) -> bool:
        """Whether a file says so; it says so once."""
        try:
            (folder / what).unlink()
        except FileNotFoundError:
            return False
        return True

    class Worker:
        def __init__(self) -> None:
            if (folder / "unbuildable").exists():
                raise ValueError("no such model")
            (folder / "built").touch()
            self.version = -1

        def load(self, version: int) -> None:
            if (folder / "refuse").exists():
                raise ValueError("weights of another model")
            self.version = version

        def forget(self) -> None:
            self.version = -1

        def square(self, version: int, x: int) -> int:
            with open(folder / "log", "a") as log:
                log.write(f"{x}\n")
            if version != self.version:
                raise StaleWeightsError(f"holds {self.version}, not {version}")
            if told(f"die {x}") or (folder / f"poison {x}").exists():
                os._exit(1)
            if (folder / f"bad {x}").exists():
                raise ValueError(f"cannot square\n{x}")
            if (folder / f"mute {x}").exists():
                raise Unpicklable
            if told(f"slow {x}"):
                time.sleep(6.5)
            if told(f"hang {x}"):
                time.sleep(600)
            return x * x

    return ray.remote(num_cpus=0.25, max_restarts=0)(Worker)


@pytest.fixture
def pool(tmp_path: Path, all_free: Callable[[], None]) -> Iterator[MakePool]:
    """Makes pools; afterwards nothing of them may be left."""
    made: list[Pool] = []

    def make(size: int = 2, timeout_s: float = 60.0, retries: int = 2, cpus: float = 0.25) -> Pool:
        worker = make_worker(tmp_path)
        factory = worker.options(num_cpus=cpus).remote
        made.append(Pool("workers", factory, size, timeout_s, retries, {"CPU": cpus}))
        return made[-1]

    yield make
    for each in made:
        each.close()
    all_free()


def arm(pool: Pool, version: int) -> None:
    pool.arm(lambda actor: actor.load.remote(version))


def squares(pool: Pool, version: int) -> list[int]:
    return pool.map(lambda actor, x: actor.square.remote(version, x), CHUNKS)


def test_results_come_in_order_and_new_weights_reach_everyone(pool: MakePool) -> None:
    with pool() as workers:
        for version in (0, 1):
            arm(workers, version)
            assert squares(workers, version) == SQUARES
        assert workers.replacements == 0 and workers.map(lambda actor, x: None, {}) == []


def test_a_worker_that_dies_in_its_work_is_replaced_and_armed(pool: MakePool, tmp_path: Path) -> None:
    (tmp_path / "die 1").touch()
    (tmp_path / "die 6").touch()
    with pool() as workers:
        arm(workers, 3)
        assert squares(workers, 3) == SQUARES
        assert workers.replacements == 2
        arm(workers, 4)
        assert squares(workers, 4) == SQUARES


def kill(actor: Any) -> None:
    """Kill an actor and wait until it is dead."""
    ray.kill(actor)
    with pytest.raises(ray.exceptions.RayActorError):
        while True:
            ray.get(actor.__ray_ready__.remote(), timeout=60)


def test_a_worker_killed_from_outside_is_replaced_and_armed(pool: MakePool) -> None:
    with pool() as workers:
        arm(workers, 0)
        ray.kill(workers.actors[0])
        assert squares(workers, 0) == SQUARES and workers.replacements == 1

        def call(actor: Any, x: int) -> ray.ObjectRef:
            if x == 5 and workers.replacements == 1:
                kill(actor)  # else the call might be done sooner than the actor is dead
            return actor.square.remote(0, x)

        assert workers.map(call, CHUNKS) == SQUARES and workers.replacements == 2
        ray.kill(workers.actors[1])
        arm(workers, 1)
        assert squares(workers, 1) == SQUARES and workers.replacements == 3


def test_a_worker_that_lost_its_weights_is_armed_again(pool: MakePool) -> None:
    with pool() as workers:
        arm(workers, 7)
        ray.get(workers.actors[0].forget.remote(), timeout=60)
        assert squares(workers, 7) == SQUARES and workers.replacements == 0


def test_a_chunk_whose_data_fails_is_tried_twice_and_named(pool: MakePool, tmp_path: Path) -> None:
    (tmp_path / "bad 3").touch()
    workers = pool()
    arm(workers, 0)
    with pytest.raises(RolloutDataError, match="workers, chunk 3: ValueError: cannot square 3"):
        squares(workers, 0)
    assert (tmp_path / "log").read_text().split().count("3") == 2 and workers.actors == [None, None]


def test_an_error_that_does_not_travel_is_named_all_the_same(pool: MakePool, tmp_path: Path) -> None:
    (tmp_path / "mute 0").touch()
    workers = pool(size=1)
    arm(workers, 0)
    with pytest.raises(RolloutDataError, match=r"workers, chunk 0: .*Unpicklable: out of words"):
        squares(workers, 0)


def test_a_chunk_that_kills_every_worker_ends_the_map(pool: MakePool, tmp_path: Path) -> None:
    (tmp_path / "poison 2").touch()
    workers = pool(retries=1)
    arm(workers, 0)
    with pytest.raises(RolloutInfraError, match="chunk 2: given up after 2 tries; first cause: .*died"):
        squares(workers, 0)


def test_a_slow_worker_is_waited_for_and_a_hung_one_replaced(pool: MakePool, tmp_path: Path) -> None:
    (tmp_path / "slow 2").touch()
    (tmp_path / "hang 5").touch()
    with pool(timeout_s=12.0) as workers:
        arm(workers, 0)
        assert squares(workers, 0) == SQUARES
        assert workers.replacements == 1


def test_what_cannot_be_placed_says_what_is_free(pool: MakePool) -> None:
    with pytest.raises(
        RolloutInfraError, match="start: no answer .*asked for 5 CPUs each; free: 2 of 2 CPUs"
    ):
        arm(pool(timeout_s=1.0, cpus=5), 0)


def test_a_worker_that_cannot_be_built_or_armed_says_why(pool: MakePool, tmp_path: Path) -> None:
    (tmp_path / "refuse").touch()
    with pytest.raises(RolloutDataError, match="does not take its weights: ValueError: weights of another"):
        arm(pool(size=1), 0)
    (tmp_path / "unbuildable").touch()
    with pytest.raises(RolloutDataError, match="cannot start: ValueError: no such model"):
        arm(pool(size=1), 0)


def test_an_interrupt_leaves_nothing(pool: MakePool) -> None:
    def interrupted(actor: Any, x: int) -> ray.ObjectRef:
        raise KeyboardInterrupt

    workers = pool()
    arm(workers, 0)
    with pytest.raises(KeyboardInterrupt):
        workers.map(interrupted, CHUNKS)
    assert workers.actors == [None, None]


def test_an_actor_is_let_up_before_it_is_killed(pool: MakePool, tmp_path: Path) -> None:
    """Ray may never give back the CPUs of an actor that is killed while it is placed."""
    workers = pool()
    start, started = workers._factory, []

    def interrupted() -> Any:
        if started:
            raise KeyboardInterrupt
        started.append(start())
        return started[0]

    workers._factory = interrupted
    with pytest.raises(KeyboardInterrupt):
        arm(workers, 0)
    assert (tmp_path / "built").exists() and workers.actors == [None, None]
