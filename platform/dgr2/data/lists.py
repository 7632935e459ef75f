"""The columns of the training, validation and test lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dgr2.config.schema import Config
from dgr2.data.crossfit import Fold, find
from dgr2.data.instances import Instance, InstanceBuilder
from dgr2.data.source import Source
from dgr2.data.splits import held_out_requests
from dgr2.data.traces import TraceWriter, answer_order, rejection_sample

Columns = dict[str, list[Any]]
NAMES = (
    *("user", "target", "history", "candidates", "scores", "features"),
    *("order", "prompt_ids", "response_ids"),
)


@dataclass(frozen=True)
class Part:
    """Lists as dataset columns, and how many came through.

    For ``train`` ``asked`` counts the lists with a known target and ``kept`` those that rejection sampling
    accepted; for ``valid`` and ``test`` they count the users and those whose target was retrieved.
    """

    columns: Columns
    asked: int
    kept: int


def training_columns(
    folds: list[Fold], builders: list[InstanceBuilder], writer: TraceWriter, config: Config
) -> dict[str, Part]:
    """Cross-fitted lists with traces.

    ``train`` leaves out lists that rejection sampling gave up: their trace would argue for the wrong item.
    ``reward`` holds every list with a known target, those too: a reward needs no trace.
    """
    columns: Columns = {name: [] for name in NAMES}
    reward: Columns = {name: [] for name in NAMES}
    asked = kept = 0
    for number, (fold, builder) in enumerate(zip(folds, builders, strict=True)):
        rng = np.random.default_rng([config.seed, 13, number])
        histories = fold.requests.histories
        measured = builder.measure(histories, fold.candidates.items, fold.candidates.scores)
        grades, accepted = rejection_sample(
            measured.graded, fold.places, builder.grades, config.traces.tries, config.traces.noise, rng
        )
        order = answer_order(grades)
        responses = writer.write(measured.readings, measured.counts, measured.levels, grades, order)
        rows = np.flatnonzero(accepted).tolist()
        targets = np.where(fold.known, fold.requests.targets, 0)
        instances = builder.instances(histories, measured)
        _append(columns, rows, fold.requests.users, targets, instances, order, responses)
        known = np.flatnonzero(fold.known).tolist()
        _append(reward, known, fold.requests.users, targets, instances, order, responses)
        asked += int(fold.known.sum())
        kept += int((accepted & fold.known).sum())
    for part in (columns, reward):
        part["oracle"] = [[] for _ in part["user"]]
    return {"train": Part(columns, asked, kept), "reward": Part(reward, asked, asked)}


def held_out_columns(
    source: Source, part: str, builder: InstanceBuilder, writer: TraceWriter, config: Config
) -> Part:
    """Lists of ``valid`` or ``test`` whose target is among K candidates; responses for ``valid`` only."""
    requests = held_out_requests(source.sequences, part)
    candidates = builder.retriever.retrieve(requests.histories, config.data.candidates)
    rows = np.flatnonzero(candidates.full & (find(candidates.items, requests.targets) >= 0))
    asked, kept = len(requests), len(rows)
    limit = config.data.max_test_instances
    if limit and len(rows) > limit:
        rng = np.random.default_rng([config.seed, 14])
        rows = np.sort(rng.choice(rows, limit, replace=False))
    requests, candidates = requests.take(rows), candidates.take(rows)
    measured = builder.measure(requests.histories, candidates.items, candidates.scores)
    responses: list[list[int]] = [[] for _ in rows]
    if part == "valid":
        order = answer_order(measured.grades)
        responses = writer.write(measured.readings, measured.counts, measured.levels, measured.grades, order)
    columns: Columns = {name: [] for name in NAMES}
    instances = builder.instances(requests.histories, measured)
    everything = list(range(len(rows)))
    _append(columns, everything, requests.users, requests.targets, instances, measured.order, responses)
    columns["oracle"] = [[] for _ in rows]
    if source.oracle is not None and len(rows):
        best = source.oracle.score(requests.users, requests.histories, candidates.items)
        columns["oracle"] = best.tolist()
    return Part(columns, asked, kept)


def _append(
    columns: Columns,
    rows: list[int],
    users: np.ndarray,
    targets: np.ndarray,
    instances: list[Instance],
    order: np.ndarray,
    responses: list[list[int]],
) -> None:
    for row in rows:
        instance = instances[row]
        columns["user"].append(int(users[row]))
        columns["target"].append(int(targets[row]))
        columns["history"].append(instance.history)
        columns["candidates"].append(instance.candidates)
        columns["scores"].append(instance.scores)
        columns["features"].append(instance.features)
        columns["order"].append(order[row, : len(instance.candidates)].tolist())
        columns["prompt_ids"].append(instance.prompt_ids)
        columns["response_ids"].append(responses[row])
