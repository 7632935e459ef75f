"""What a decode leaves behind: tokens, when each was committed, how probable it was, and by which policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dgr2.data.vocabulary import Vocabulary


@dataclass
class Trajectory:
    """One decoded response.

    Attributes:
        tokens: Response ids up to and including EOS, or all of them when the limit was hit.
        steps: For each token the step *within its block* at which it was committed; step 0 is the forward
            that gives the block's anchor.
        logprobs: Log-probability of each token under the policy in the state at its step (temperature of
            the policy; temperature 1 for greedy decoding).
        forced: True where a rule left no choice (log-probability 0): not a decision of the model.
        tail: ``(token, step, logprob)`` of what stands behind EOS in its block, token -1 where nothing was
            committed: no part of the response, but part of the states that its tokens were decided in.
        forwards: Forwards this row took part in; prefill and commit forwards counted.
        forwards_answer: Those that drafted or denoised the answer.
        answer_start: Index in ``tokens`` where the answer begins; None when it never opened.
        candidates: Number of candidates.
        scores: Probability of each candidate at the anchor of the answer, where it was opened: a calibrated
            score of being the best one.
        policy: The policy, as recorded.
    """

    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    tail: list[tuple[int, int, float]] = field(default_factory=list)
    forwards: int = 0
    forwards_answer: int = 0
    answer_start: int | None = None
    candidates: int = 0
    scores: list[float] = field(default_factory=list)
    policy: dict[str, Any] = field(default_factory=dict)

    def emitted(self, vocabulary: Vocabulary) -> int:
        """Tokens up to and including EOS; fill is not counted."""
        return sum(token != vocabulary.fill for token in self.tokens)

    def emitted_answer(self, vocabulary: Vocabulary) -> int:
        """The same, of the answer."""
        if self.answer_start is None:
            return 0
        return sum(token != vocabulary.fill for token in self.tokens[self.answer_start :])
