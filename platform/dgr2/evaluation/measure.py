"""Decoding a row of the table and judging what came out, instance by instance.

What is kept per instance is small (ranks, flaws, counts), goes into ``evaluation/ROW.json`` and is all that
the report is built from: an interrupted evaluation continues at the next row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.trajectory import Trajectory
from dgr2.evaluation.answer import FLAWS
from dgr2.evaluation.engine import Engine, OnDone
from dgr2.evaluation.instances import HeldOut
from dgr2.evaluation.metrics import target_ranks
from dgr2.evaluation.rows import describe
from dgr2.storage import read_json, write_json


@dataclass
class Decoded:
    """Outcome of one decode over a list of instances; every list runs over them."""

    policy: dict = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    """Rank of the target from 0, invalid answers scored as given."""
    first: list[int] = field(default_factory=list)
    """Pre-rank position of the candidate put first."""
    valid: list[bool] = field(default_factory=list)
    flaws: dict[str, list[bool]] = field(default_factory=dict)
    emitted: list[int] = field(default_factory=list)
    """Tokens up to the end token, fill not counted."""
    emitted_answer: list[int] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    """All forwards, prefill and commit forwards counted."""
    forwards_answer: list[int] = field(default_factory=list)


@dataclass
class RowResult:
    """A measured row."""

    index: list[int]
    """Positions of its instances among the held-out ones."""
    policy: Decoded
    native: Decoded
    seconds: float
    """Wall time of its decodes."""


def judge(
    engine: Engine, trajectories: Sequence[Trajectory], held_out: HeldOut, policy: DecodePolicy, native: bool
) -> Decoded:
    """Score the trajectories of ``held_out``, in its order."""
    answers = [engine.parse(t, n, native) for t, n in zip(trajectories, held_out.counts, strict=True)]
    return Decoded(
        policy=describe(policy),
        ranks=target_ranks([a.ranking for a in answers], held_out.targets).tolist(),
        first=[a.ranking[0] for a in answers],
        valid=[a.valid for a in answers],
        flaws={flaw: [getattr(a, flaw) for a in answers] for flaw in FLAWS},
        emitted=[t.emitted(engine.vocabulary) for t in trajectories],
        emitted_answer=[t.emitted_answer(engine.vocabulary) for t in trajectories],
        forwards=[t.forwards for t in trajectories],
        forwards_answer=[t.forwards_answer for t in trajectories],
    )


def ordered_row(held_out: HeldOut, orders: Sequence[Sequence[int]]) -> RowResult:
    """A row that is an ordering of the candidates and decodes nothing."""
    size = len(held_out)
    outcome = Decoded(
        ranks=target_ranks(orders, held_out.targets).tolist(),
        first=[order[0] for order in orders],
        valid=[True] * size,
        flaws={flaw: [False] * size for flaw in FLAWS},
    )
    return RowResult(list(range(size)), outcome, outcome, 0.0)


def decode_row(
    engine: Engine,
    held_out: HeldOut,
    policies: tuple[DecodePolicy, DecodePolicy],
    on_done: OnDone | None = None,
) -> tuple[list[Trajectory], list[Trajectory], float]:
    """Decode with the policy and natively: both trajectories and the seconds they took.

    Where neither policy has rules, the two are one. AR's differ by the permutation rule only, which
    changes nothing in a greedy answer that is a permutation already, opened on the grid in time: only the
    others are decoded again (their forwards stay those of the native decode, which spends one each on the
    last label and the end token that the rule would fill in).
    """
    shipped, native = policies
    began = time.perf_counter()
    natively = engine.decode(held_out.prompts, held_out.counts, native, on_done)
    again: list[int] = []
    if shipped.rules:
        again = list(range(len(held_out)))
        if shipped.name == "ar" and not shipped.readout:
            again = [i for i in again if not _undisturbed(engine, natively[i], held_out.counts[i])]
    subset = held_out.take(again)
    redone = engine.decode(subset.prompts, subset.counts, shipped, on_done) if again else []
    if on_done:
        on_done(len(held_out) - len(again))
    changed = dict(zip(again, redone, strict=True))
    as_shipped = [changed.get(i, trajectory) for i, trajectory in enumerate(natively)]
    return as_shipped, natively, time.perf_counter() - began


def _undisturbed(engine: Engine, trajectory: Trajectory, candidates: int) -> bool:
    """Whether the permutation rule would have left this native AR response as it is."""
    grid = engine.config.grid
    answer = engine.parse(trajectory, candidates, native=True)
    return (
        answer.valid
        and answer.start is not None
        and answer.start % grid.block_size == 0
        and answer.start <= grid.trace_blocks * grid.block_size
    )


def cached(path: Path, key: str, compute: Callable[[], dict]) -> tuple[dict, bool]:
    """The result stored at ``path`` under ``key``, else a fresh one, stored; and whether it was there."""
    if path.exists() and (stored := read_json(path)).get("key") == key:
        return stored["result"], True
    result = compute()
    write_json(path, {"key": key, "result": result})
    return result, False


def row_to_json(result: RowResult) -> dict:
    """A row result as plain values."""
    return asdict(result)


def row_from_json(stored: dict) -> RowResult:
    """Inverse of :func:`row_to_json`."""
    return RowResult(
        stored["index"], Decoded(**stored["policy"]), Decoded(**stored["native"]), stored["seconds"]
    )
