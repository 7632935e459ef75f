"""From the raw tokens of a response to an answer: what was said, whether it is valid, how it is scored.

Nothing is repaired here. An answer is what stands between ``</think>`` (and the fill after it) and the end
of the response. A ranking is *valid* when it is a permutation of the candidates; an invalid one is scored
as the model gave it: identifiers in the set in the order of their first appearance, then the rest in
pre-rank order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dgr2.data.vocabulary import Vocabulary

FLAWS = ("duplicate", "dropped", "out_of_set", "unparsable")
"""Ways in which an answer can be invalid; the first three exclude the last."""


@dataclass(frozen=True)
class Answer:
    """A parsed answer over ``n`` candidates, numbered by their pre-rank position from 0."""

    start: int | None
    """Index in the response where the answer begins; None where no answer was opened."""
    ranking: tuple[int, ...]
    """All ``n`` candidates as scored, best first."""
    duplicate: bool
    """An identifier stands more than once."""
    dropped: bool
    """A candidate is missing."""
    out_of_set: bool
    """A token stands in the answer that names no candidate."""
    unparsable: bool
    """No answer was opened, or it names no candidate identifier at all."""

    @property
    def valid(self) -> bool:
        """Whether the answer is a permutation of the candidates."""
        return not (self.duplicate or self.dropped or self.out_of_set or self.unparsable)


def answer_start(tokens: Sequence[int], vocabulary: Vocabulary, opened: int | None = None) -> int | None:
    """Index of the first answer token: after the first ``</think>`` and the fill that follows it.

    ``opened`` is where a policy opened the answer by itself; it counts only where no ``</think>`` stands,
    and a native decode never passes it.
    """
    try:
        start = tokens.index(vocabulary.think_end) + 1
    except ValueError:
        return opened
    while start < len(tokens) and tokens[start] == vocabulary.fill:
        start += 1
    return start


def parse_answer(
    tokens: Sequence[int], vocabulary: Vocabulary, candidates: int, opened: int | None = None
) -> Answer:
    """Parse a raw response of label identifiers.

    Args:
        tokens: response ids, with or without the end token.
        vocabulary: names the special tokens and the labels; label ``i`` is the candidate at position ``i``.
        candidates: number of candidates shown in the prompt.
        opened: see :func:`answer_start`.
    """
    start = answer_start(tokens, vocabulary, opened)
    said = list(tokens[start:]) if start is not None else []
    if vocabulary.eos in said:
        said = said[: said.index(vocabulary.eos)]
    position = {label: index for index, label in enumerate(vocabulary.labels)}
    if not any(token in position for token in said):
        return Answer(start, tuple(range(candidates)), False, False, False, unparsable=True)
    named = [position.get(token, candidates) for token in said]
    inside = [index for index in named if index < candidates]
    placed = list(dict.fromkeys(inside))
    rest = sorted(set(range(candidates)) - set(placed))
    return Answer(
        start=start,
        ranking=(*placed, *rest),
        duplicate=len(placed) < len(inside),
        dropped=bool(rest),
        out_of_set=len(inside) < len(named),
        unparsable=False,
    )
