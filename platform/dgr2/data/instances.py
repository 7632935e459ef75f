"""From raw ids to what the model reads: features, evidence, expert order and prompt, one builder for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dgr2.config.schema import RetrievalConfig
from dgr2.data.evidence import Buckets, features, shown_features
from dgr2.data.expert import Expert
from dgr2.data.prompt import TokenTable, render_prompts
from dgr2.data.reading import HistoryReader, Reading
from dgr2.data.retrieval import Retriever
from dgr2.data.statistics import ItemTable, Statistics
from dgr2.data.traces import Grades
from dgr2.errors import DataError
from dgr2.storage import read_json, write_json


@dataclass(frozen=True)
class Instance:
    """One list, ready to decode. ``order`` holds candidate indices of the expert, best first."""

    history: list[int]
    candidates: list[int]
    scores: list[float]
    features: list[list[float]]
    order: list[int]
    prompt_ids: list[int]


@dataclass(frozen=True)
class Measured:
    """Arrays of many lists: ``candidates``, ``scores``, ``graded`` (the grader's scores), ``grades`` and the
    expert's ``order`` ``[lists, width]`` (grade -1 and score -inf where a list is shorter), ``features``
    ``[lists, width, 14]``, ``levels`` ``[lists, width, 8]``; and the reading of every history."""

    candidates: np.ndarray
    scores: np.ndarray
    features: np.ndarray
    levels: np.ndarray
    graded: np.ndarray
    grades: np.ndarray
    order: np.ndarray
    readings: list[Reading]

    @property
    def counts(self) -> np.ndarray:
        """``[lists]`` number of candidates."""
        return (self.candidates > 0).sum(axis=1)


@dataclass(frozen=True)
class InstanceBuilder:
    """Everything between ids and prompt; a fold's builder differs in what was fitted without its users."""

    retriever: Retriever
    statistics: Statistics
    items: ItemTable
    expert: Expert
    buckets: Buckets
    grader: Expert
    """Ranks by what the prompt shows, so that a grade is a function of the prompt."""
    grades: Grades
    tokens: TokenTable
    reader: HistoryReader

    def build(
        self, histories: list[list[int]], candidates: list[list[int]], scores: list[list[float]] | None = None
    ) -> list[Instance]:
        """Instances for given candidates in first-stage order.

        Args:
            histories: item ids, oldest first.
            candidates: item ids of every list, best of the first stage first.
            scores: first-stage scores; the retriever's own when not given.

        Raises:
            DataError: empty history or list, unknown or repeated item, more candidates than labels.
        """
        self._check(histories, candidates)
        width = max((len(row) for row in candidates), default=0)
        items = _rectangle(candidates, width, np.int64)
        if scores is None:
            first_stage = self.retriever.score(histories, items)
        else:
            first_stage = _rectangle(scores, width, np.float64)
        measured = self.measure(histories, items, first_stage)
        return self.instances(histories, measured)

    def measure(self, histories: list[list[int]], candidates: np.ndarray, scores: np.ndarray) -> Measured:
        """Features, levels, expert scores and order of ``[lists, width]`` candidates (0 is padding)."""
        values = features(
            histories, candidates, scores, self.retriever.similarity, self.statistics, self.items
        )
        there = candidates > 0
        expert = np.where(there, self.expert.score(values), -np.inf)
        levels = self.buckets.apply(values)
        graded = np.where(there, self.grader.score(shown_features(levels)), -np.inf)
        order = np.argsort(-expert, axis=1, kind="stable")
        readings = self.reader.read(histories, self.statistics)
        return Measured(
            candidates, scores, values, levels, graded, self.grades.apply(graded), order, readings
        )

    def prompts(self, histories: list[list[int]], measured: Measured) -> list[list[int]]:
        """Prompt ids of every list."""
        return render_prompts(
            self.tokens, histories, measured.readings, measured.candidates, measured.levels, self.reader.shown
        )

    def instances(self, histories: list[list[int]], measured: Measured) -> list[Instance]:
        """One ``Instance`` a list, without padding."""
        prompts = self.prompts(histories, measured)
        values = np.nan_to_num(measured.features, nan=-1.0)
        return [
            Instance(
                history=list(history),
                candidates=measured.candidates[row, :count].tolist(),
                scores=measured.scores[row, :count].tolist(),
                features=values[row, :count].tolist(),
                order=measured.order[row, :count].tolist(),
                prompt_ids=prompts[row],
            )
            for row, (history, count) in enumerate(zip(histories, measured.counts.tolist(), strict=True))
        ]

    def _check(self, histories: list[list[int]], candidates: list[list[int]]) -> None:
        if len(histories) != len(candidates):
            raise DataError(f"{len(histories)} histories but {len(candidates)} candidate lists")
        size = len(self.items.leaf)
        for row, (history, listed) in enumerate(zip(histories, candidates, strict=True)):
            for name, ids in (("history", history), ("candidates", listed)):
                if not ids:
                    raise DataError(f"list {row}: {name} is empty")
                unknown = next((item for item in ids if not 1 <= item < size), None)
                if unknown is not None:
                    raise DataError(f"list {row}: {name} names item {unknown}, which is not in the catalogue")
            if len(set(listed)) < len(listed):
                raise DataError(f"list {row}: a candidate appears twice")
            most = len(self.tokens.labels)
            if len(listed) > most:
                raise DataError(f"list {row}: {len(listed)} candidates, this run was prepared for {most}")

    def save(self, folder: Path, retrieval: RetrievalConfig) -> None:
        """Write all that ``load`` reads into the data folder of a run."""
        self.retriever.save(folder / "retriever")
        self.statistics.save(folder / "statistics")
        self.items.save(folder / "statistics" / "items.npz")
        self.expert.save(folder / "expert.json")
        self.grader.save(folder / "grader.json")
        self.tokens.save(folder / "tokens.npz")
        settings = {
            "retrieval": asdict(retrieval),
            "buckets": self.buckets.edges,
            "grades": self.grades.edges,
            "shown": self.reader.shown,
            "room": self.reader.room,
        }
        write_json(folder / "builder.json", settings)

    @classmethod
    def load(cls, folder: Path) -> InstanceBuilder:
        """The builder of a prepared run (``run.data``)."""
        settings = read_json(folder / "builder.json")
        items = ItemTable.load(folder / "statistics" / "items.npz")
        tokens = TokenTable.load(folder / "tokens.npz")
        return cls(
            retriever=Retriever.load(folder / "retriever", RetrievalConfig(**settings["retrieval"])),
            statistics=Statistics.load(folder / "statistics"),
            items=items,
            expert=Expert.load(folder / "expert.json"),
            buckets=Buckets(tuple(tuple(edges) for edges in settings["buckets"])),
            grader=Expert.load(folder / "grader.json"),
            grades=Grades(tuple(settings["grades"])),
            tokens=tokens,
            reader=HistoryReader.build(tokens, items, settings["shown"], settings["room"]),
        )


def _rectangle(rows: Sequence[Sequence[float]], width: int, dtype: type) -> np.ndarray:
    filled: np.ndarray = np.zeros((len(rows), width), dtype=dtype)
    for index, row in enumerate(rows):
        filled[index, : len(row)] = row
    return filled
