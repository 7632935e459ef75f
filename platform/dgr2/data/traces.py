"""The ``evidence`` generator: traces and answers written from measured evidence, laid out on the block grid.

A response is ``often {category} {brand} last {id} {id}… then {category} [or {category}…]``, then for every
candidate in pre-rank order ``label, strongest evidence, grade``, then ``</think>``; the first two steps are
extended by further cited ids or cut so that ``</think>`` is the last token of the last trace block. The
answer starts on a block boundary: the labels, best first, and ``<|end|>`` to the end of the block.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from dgr2.config.schema import GridConfig
from dgr2.data.prompt import ABSENT, TokenTable
from dgr2.data.statistics import ItemTable, Statistics

STEP_TOKENS = 3  # a candidate's share of the trace: label, evidence, grade
FOLLOWERS = 4  # categories that step 2 can name


@dataclass(frozen=True)
class Grades:
    """Lower bounds of grades 1, 2, … on the expert's score."""

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


def strongest_evidence(levels: np.ndarray) -> np.ndarray:
    """``[…]`` index of the evidence that a trace cites.

    Having followed the last item before is what the expert relies on by far: it is cited wherever it
    happened. Else the evidence with the highest level; the first in the order of ``EVIDENCE`` wins ties.
    """
    return np.where(levels[..., 0] > 0, 0, levels.argmax(axis=-1))


def rejection_sample(
    scores: np.ndarray, places: np.ndarray, grades: Grades, tries: int, noise: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw orders until the known target comes first.

    The first try is noise-free, the others add Gumbel noise of scale ``noise`` to the expert's scores.

    Args:
        scores: ``[lists, width]`` expert scores, -inf is padding.
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
    """Writes responses; ``shown`` is the number of history items that the prompt holds."""

    tokens: TokenTable
    items: ItemTable
    grid: GridConfig
    shown: int
    kind_names: np.ndarray
    """``[leaves, field_tokens]`` token ids of every leaf category."""

    @classmethod
    def build(cls, tokens: TokenTable, items: ItemTable, grid: GridConfig, shown: int) -> TraceWriter:
        """Take the name of a category from any item that has it."""
        names = np.full((int(items.leaf.max()) + 1, tokens.category.shape[1]), ABSENT)
        names[items.leaf] = tokens.category
        return cls(tokens, items, grid, shown, names)

    def write(
        self,
        histories: list[list[int]],
        counts: np.ndarray,
        levels: np.ndarray,
        grades: np.ndarray,
        order: np.ndarray,
        statistics: Statistics,
    ) -> list[list[int]]:
        """Response ids of every list.

        Args:
            counts: ``[lists]`` number of candidates.
            levels: ``[lists, width, 8]`` evidence levels; grades, order: ``[lists, width]``.
        """
        strongest = strongest_evidence(levels)
        cited = self.tokens.evidence[strongest, np.take_along_axis(levels, strongest[..., None], -1)[..., 0]]
        labels = np.broadcast_to(self.tokens.labels[: order.shape[1]], order.shape)
        graded = self.tokens.grades[np.maximum(grades, 0)]
        matched = np.stack([labels, cited, graded], axis=-1)
        likely = np.argsort(-statistics.kinds[:, 1:], axis=1, kind="stable")[:, :FOLLOWERS] + 1
        last = self.items.leaf[np.array([history[-1] for history in histories])]
        responses = []
        for row, history in enumerate(histories):
            count = int(counts[row])
            room = self.grid.trace_blocks * self.grid.block_size - STEP_TOKENS * count - 1
            trace = self._reading(history, likely[last[row]], room)
            trace += matched[row, :count].ravel().tolist()
            responses.append(self._laid_out(trace, self.tokens.labels[order[row, :count]].tolist()))
        return responses

    def _reading(self, history: list[int], likely: np.ndarray, room: int) -> list[int]:
        """Steps 1 and 2 in at most ``room`` tokens; exactly ``room`` where there are enough ids to cite."""
        recent = history[-self.shown :][::-1]
        often, last, then, other = self.tokens.words
        pattern = [often, self.kind_names[_commonest(self.items.leaf[recent])]]
        brand = _commonest(self.items.brand[recent])
        carrier = next(item for item in recent if self.items.brand[item] == brand)
        pattern += [self.tokens.brand[carrier], last, self.tokens.codes[recent[0]]]
        following = [then, self.kind_names[likely[0]]]
        spare = room - sum(len(_present(part)) for part in pattern + following)
        width = self.tokens.codes.shape[1]
        citations = max(0, min(spare // width, len(recent) - 1))
        pattern += [self.tokens.codes[item] for item in recent[1 : 1 + citations]]
        for kind in likely[1:]:
            following += [other, self.kind_names[kind]]
        first = [int(t) for part in pattern for t in _present(part)]
        second = [int(t) for part in following for t in _present(part)]
        return (first + second)[:room]

    def _laid_out(self, trace: list[int], answer: list[int]) -> list[int]:
        size = self.grid.block_size
        trace = trace + self.tokens.close.tolist()
        trace += self.tokens.fill.tolist() * (-len(trace) % size)
        answer = answer + self.tokens.end.tolist()
        return trace + answer + self.tokens.end.tolist() * (-len(answer) % size)


def _present(part: np.ndarray) -> np.ndarray:
    return part[part != ABSENT]


def _commonest(codes: np.ndarray) -> int:
    """The most frequent code; the latest wins ties (codes come latest first)."""
    return Counter(codes.tolist()).most_common(1)[0][0]
