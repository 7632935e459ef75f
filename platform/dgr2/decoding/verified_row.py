"""Lossless block decoding: blocks are drafted whole, and the forward that commits one verifies it.

The clean stream of the student is an AR model. Its log-probabilities behind each drafted token, which the
commit computes anyway, say what AR decoding would have written there: greedy decoding compares tokens, and a
drawn token is accepted with probability min(1, p/q) (speculative sampling, arXiv 2211.17192). Commit rules
and levels play no part: what is verified need not be denoised step by step.
"""

from __future__ import annotations

import numpy as np

from dgr2.decoding.block_row import BlockRow
from dgr2.decoding.policy import readout_order, restricted, surest_first


class VerifiedRow(BlockRow):
    """Drafts a block in one forward and takes back what AR decoding would not have written."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.ended = False  # the last block waits for its verification

    def _reset(self) -> None:
        super()._reset()
        self.drafts: dict[int, np.ndarray] = {}  # [vocabulary] that a drawn token was drawn from
        self.checked = 1  # tokens at the head of the block that AR decoding would have written; an anchor is

    def inputs(self) -> tuple[list[int], list[int]]:
        """Clean tokens to commit and noisy tokens to draft in the next forward."""
        return (self.clean, []) if self.ended else super().inputs()

    def advance(
        self, anchor: np.ndarray | None, block: np.ndarray | None, commit: np.ndarray | None = None
    ) -> None:
        """Verify the block that this forward commits, and go on where it was right."""
        t = self.trajectory
        right = commit is None or self._verify(commit)
        if right and not self.ended:
            super().advance(anchor, block)
            return
        t.forwards += 1
        t.forwards_answer += t.answer_start is not None
        if right:
            self.finish(t.tokens)

    # drafts

    def _denoise(self, block: np.ndarray, positions: np.ndarray, at_least_one: bool) -> None:
        """Draft all the positions: a draw each, or the best token each and fill behind the end of a trace."""
        if not self.greedy:
            block = self.without_end(block)
            for position in np.flatnonzero(positions).tolist():
                token = self.draw(block[position])
                self._put(position, token, float(block[position, token]))
                self.drafts[position] = block[position]
            return
        if self.policy.rules:
            block[:, self.vocabulary.eos] = -np.inf
        self.ids[positions] = block[positions].argmax(axis=-1)
        self.masked[positions], self.steps[positions] = False, self.step
        if self.policy.rules:
            ends = np.flatnonzero(self.ids == self.vocabulary.think_end)
            behind = slice(ends[0] + 1 if len(ends) else self.size, None)
            self.ids[behind], self.forced[behind] = self.vocabulary.fill, True

    def _fill_slots(
        self, anchor: np.ndarray | None, block: np.ndarray | None, open_slots: list[int], placed: list[int]
    ) -> list[tuple[int, int, float]]:
        """Draft the open slots: a draw each, no candidate twice, or the surest pairs of slot and candidate.

        The first slot takes the best candidate of the anchor, and where no block was denoised, the others
        follow in the order of its scores. Log-probabilities are 0 where AR decoding has yet to say them.
        """
        if not self.greedy:
            return self._drawn_slots(anchor, block, open_slots, placed)
        assert anchor is not None
        left = restricted(anchor[self.labels], placed)
        order = readout_order(left)
        if block is None:
            return [(slot, c, float(left[c])) for slot, c in zip(open_slots, order, strict=False)]
        pairs = surest_first(block[open_slots[1:]][:, self.labels], [*placed, order[0]])
        first = (open_slots[0], order[0], float(left[order[0]]))
        return [first, *((open_slots[1 + slot], candidate, 0.0) for slot, candidate in pairs)]

    def _drawn_slots(
        self, anchor: np.ndarray | None, block: np.ndarray | None, open_slots: list[int], placed: list[int]
    ) -> list[tuple[int, int, float]]:
        chosen, gone = [], list(placed)
        for position in open_slots:
            logp = anchor if position == 0 else None if block is None else block[position]
            if logp is None:
                break
            left = restricted(logp[self.labels], gone)
            candidate = self.draw(left)
            self.drafts[position] = np.full(self.vocabulary.size, -np.inf)
            self.drafts[position][self.labels] = left
            chosen.append((position, candidate, float(left[candidate])))
            gone.append(candidate)
        return chosen

    # verification

    def _end(self, last: int) -> None:
        if self._known() > last:
            super()._end(last)
        else:
            self.ended = True

    def _known(self) -> int:
        """Tokens at the head of the block just closed that need no verification."""
        t = self.trajectory
        first = self.length - self.size
        while self.checked < self.size and self.rule_token(t.tokens[: first + self.checked]) == int(
            self.ids[self.checked]
        ):
            self.checked += 1
        return self.checked

    def _verify(self, commit: np.ndarray) -> bool:
        """Whether AR decoding would have written the block; else take back what it would not have.

        Greedy decoding compares tokens; a drawn token is accepted with probability min(1, p/q), else drawn
        anew from the part of p above q (arXiv 2211.17192). What was right stays and the right token follows
        it; the rest of the block is drafted from what this forward says or, of drawn tokens, denoised.
        """
        t = self.trajectory
        first = self.length - self.size
        for i in range(self._known(), self.size):
            before = t.tokens[: first + i]
            if self.vocabulary.eos in before[first:]:
                break
            token = self.rule_token(before)
            logp = 0.0
            if token is None:
                token, logp = self._accept(before, commit[i - 1], i)
            if token != t.tokens[first + i]:
                self._take_back(first, i, token, logp)
                if self.greedy and self.masked.any():
                    self._draft_on(i, commit)
                self._close()
                return False
            t.logprobs[first + i] = logp
        return True

    def _accept(self, tokens: list[int], logp: np.ndarray, position: int) -> tuple[int, float]:
        """The token behind these, at a position of the block, and its log-probability.

        It is the drafted one if that passes, else its correction.
        """
        drafted, q = int(self.ids[position]), self.drafts.get(position)
        if q is None:
            return self.ar_token(tokens, logp)
        p = self.ar_distribution(tokens, logp)
        chances, proposed = np.exp(p.astype(np.float64)), np.exp(q.astype(np.float64))
        token = drafted
        if self.random.random() * proposed[drafted] >= chances[drafted]:
            with np.errstate(divide="ignore"):
                token = self.draw(np.log(np.maximum(chances - proposed, 0.0)))
        return token, float(p[token])

    def _take_back(self, first: int, position: int, token: int, logp: float) -> None:
        """Open the block again, kept up to a position; the right token, and what rules write, follow."""
        t = self.trajectory
        self.logprobs[:position] = t.logprobs[first : first + position]
        del t.tokens[first:], t.steps[first:], t.logprobs[first:], t.forced[first:]
        self.ids[position:], self.masked[position:] = self.vocabulary.mask, True
        self.steps[position:], self.logprobs[position:], self.forced[position:] = 0, 0.0, False
        self.drafts.clear()
        self._put(position, token, logp)
        self.checked = position + 1
        while self.checked < self.size:
            written = self.rule_token(t.tokens + self.ids[: self.checked].tolist())
            if written is None:
                break
            self._put(self.checked, written, 0.0, forced=True)
            self.checked += 1
            if written == self.vocabulary.eos:
                break
        self.step += 1
        self.opening, self.ended = False, False

    def _draft_on(self, corrected: int, commit: np.ndarray) -> None:
        """Draft greedily what follows a correction, without a forward.

        An answer goes on in the order of the scores that corrected it. In a trace every token is what the AR
        model would have written behind the draft as it was (Jacobi decoding, arXiv 2305.10427).
        """
        t = self.trajectory
        if t.answer_start is not None and self.policy.rules:
            self._commit_answer(commit[corrected - 1], None)
            return
        for position in np.flatnonzero(self.masked).tolist():
            before = t.tokens + self.ids[:position].tolist()
            token, logp = self.rule_token(before), 0.0
            forced = token is not None
            if token is None:
                token, logp = self.ar_token(before, commit[position - 1])
            self._put(position, token, logp, forced)
            if token == self.vocabulary.eos:
                return
