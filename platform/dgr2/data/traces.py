"""The ``evidence`` generator: traces and answers written from measured evidence, laid out on the block grid.

A response is the reading of the history (steps 1 and 2; see ``reading``), then for every candidate in
pre-rank order ``label, strongest evidence…, grade`` (step 3), then ``</think>``, which is the last token of
the last trace block where all K candidates are there. The answer starts on a block boundary: the labels,
best first, and ``<|end|>`` to the end of the block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgr2.config.schema import GridConfig
from dgr2.data.prompt import TokenTable
from dgr2.data.reading import Reading


@dataclass(frozen=True)
class Grades:
    """Lower bounds of grades 1, 2, … on the grader's score."""

    edges: tuple[float, ...]

    @classmethod
    def fit(cls, scores: np.ndarray, levels: int) -> Grades:
        """Edges from training scores ``[lists, width]`` (-inf is padding), finer where winners are compared.

        Half of the edges are quantiles of all candidates, half of the lists' two best.
        """
        best = np.sort(scores, axis=1)[:, -2:]
        top = (levels - 1) // 2
        low = np.quantile(scores[np.isfinite(scores)], np.linspace(0, 1, levels - top + 1)[1:-1])
        high = np.quantile(best[np.isfinite(best)], np.linspace(0, 1, top + 2)[1:-1])
        return cls(tuple(float(edge) for edge in np.unique(np.concatenate([low, high]))))

    def apply(self, scores: np.ndarray) -> np.ndarray:
        """Grades of scores, any shape; padding gets -1."""
        return np.where(np.isfinite(scores), np.searchsorted(np.array(self.edges), scores, side="right"), -1)


def answer_order(grades: np.ndarray) -> np.ndarray:
    """``[lists, width]`` candidate indices by grade, equal grades in pre-rank order; padding comes last."""
    return np.argsort(-grades, axis=1, kind="stable")


def strongest_evidence(levels: np.ndarray, count: int) -> np.ndarray:
    """``[…, count]`` indices of the evidence that a trace cites, of levels ``[…, 8]``.

    Having followed the last item before is what the expert relies on by far: it is cited first wherever it
    happened. Else by level, highest first; the first in the order of ``EVIDENCE`` wins ties.
    """
    strength = levels.copy()
    strength[..., 0] = np.where(levels[..., 0] > 0, levels.max() + 1, 0)
    return np.argsort(-strength, axis=-1, kind="stable")[..., :count]


def rejection_sample(
    scores: np.ndarray, places: np.ndarray, grades: Grades, tries: int, noise: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw orders until the known target comes first.

    The first try is noise-free, the others add Gumbel noise of scale ``noise`` to the grader's scores.

    Args:
        scores: ``[lists, width]`` grader's scores, -inf is padding.
        places: ``[lists]`` index of the target, -1 where unknown (accepted with the first try).

    Returns:
        Grades ``[lists, width]`` of the accepted try and ``[lists]`` whether there was one.
    """
    kept = grades.apply(scores)
    accepted = (places < 0) | (answer_order(kept)[:, 0] == places)
    for _ in range(tries - 1):
        open_rows = np.flatnonzero(~accepted)
        drawn = scores[open_rows] + noise * rng.gumbel(size=(len(open_rows), scores.shape[1]))
        graded = grades.apply(drawn)
        good = answer_order(graded)[:, 0] == places[open_rows]
        kept[open_rows[good]] = graded[good]
        accepted[open_rows[good]] = True
    return kept, accepted


@dataclass(frozen=True)
class TraceWriter:
    """Writes responses on the block grid."""

    tokens: TokenTable
    grid: GridConfig
    evidence: int
    """Pieces of evidence a candidate."""

    def write(
        self,
        readings: list[Reading],
        counts: np.ndarray,
        levels: np.ndarray,
        grades: np.ndarray,
        order: np.ndarray,
    ) -> list[list[int]]:
        """Response ids of every list.

        Args:
            readings: what the prompts say of the histories.
            counts: ``[lists]`` number of candidates.
            levels: ``[lists, width, 8]`` evidence levels; grades, order: ``[lists, width]``.
        """
        strongest = strongest_evidence(levels, self.evidence)
        cited = self.tokens.evidence[strongest, np.take_along_axis(levels, strongest, -1)]
        labels = np.broadcast_to(self.tokens.labels[: order.shape[1]], order.shape)
        graded = self.tokens.grades[np.maximum(grades, 0)]
        matched = np.concatenate([labels[..., None], cited, graded[..., None]], axis=-1)
        responses = []
        for row, reading in enumerate(readings):
            count = int(counts[row])
            trace = reading.tokens + matched[row, :count].ravel().tolist()
            responses.append(self._laid_out(trace, self.tokens.labels[order[row, :count]].tolist()))
        return responses

    def _laid_out(self, trace: list[int], answer: list[int]) -> list[int]:
        size = self.grid.block_size
        trace = trace + self.tokens.close.tolist()
        trace += self.tokens.fill.tolist() * (-len(trace) % size)
        answer = answer + self.tokens.end.tolist()
        return trace + answer + self.tokens.end.tolist() * (-len(answer) % size)
