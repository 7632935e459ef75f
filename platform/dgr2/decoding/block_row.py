"""A row that decodes by blocks: anchors from the clean stream, the rest of a block denoised in parallel."""

from __future__ import annotations

import numpy as np

from dgr2.decoding.policy import commit_positions, conflict_free, prefix_length, restricted
from dgr2.decoding.rows import Row


class BlockRow(Row):
    """Block diffusion: every forward commits the positions of the block that the policy's rules take."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.size = self.policy.block_size
        self.opening = True  # the next forward gives an anchor
        self._reset()

    def _reset(self) -> None:
        """A block of masks."""
        self.ids = np.full(self.size, self.vocabulary.mask)
        self.masked = np.ones(self.size, dtype=bool)
        self.steps = np.zeros(self.size, dtype=int)
        self.logprobs = np.zeros(self.size)
        self.forced = np.zeros(self.size, dtype=bool)
        self.step = 0

    def inputs(self) -> tuple[list[int], list[int]]:
        """Clean tokens to commit and noisy tokens to denoise in the next forward."""
        if not self.opening:
            return [], self.ids.tolist()
        draft = self.size > 1 and self.policy.fused and not self._reads_out()
        return self.clean, [self.vocabulary.mask] * self.size if draft else []

    def _reads_out(self) -> bool:
        """Whether the next anchor is the whole answer."""
        return self.policy.readout and self.length % self.layout.size == 0 and self.answer_begins()

    def advance(
        self, anchor: np.ndarray | None, block: np.ndarray | None, commit: np.ndarray | None = None
    ) -> None:
        """Take the forward's log-probabilities.

        Args:
            anchor: ``[vocabulary]`` behind the clean tokens.
            block: ``[size, vocabulary]`` of the noisy block.
            commit: ``[size - 1, vocabulary]`` behind each token but the last of the block that this forward
                commits, where the policy verifies.
        """
        t = self.trajectory
        t.forwards += 1
        if self.opening:
            assert anchor is not None
            self._reset()
            self.opening = False
            if self.open_answer(anchor) and self.policy.readout:
                t.forwards_answer += 1
                self.read_out(anchor)
                return
        else:
            anchor = None
        in_answer = t.answer_start is not None
        t.forwards_answer += in_answer
        if in_answer and self.policy.rules:
            self._commit_answer(anchor, block)
        else:
            self._commit_free(anchor, block)
        self.step += 1
        self._close()

    def _put(self, position: int, token: int, logp: float, forced: bool = False) -> None:
        self.ids[position], self.masked[position] = token, False
        self.steps[position], self.logprobs[position], self.forced[position] = self.step, logp, forced

    def _commit_free(self, anchor: np.ndarray | None, block: np.ndarray | None) -> None:
        """Commit in a block where no rule keeps an order."""
        if self.policy.rules and self.vocabulary.think_end in self.trajectory.tokens:
            self._fill_masked()
            return
        open_positions = self.masked.copy()
        if anchor is not None:
            anchor = self.without_end(anchor)
            token = self.draw(anchor)
            open_positions[0] = False
            self._put(0, token, float(anchor[token]))
        if block is not None and open_positions.any():
            self._denoise(block, open_positions, at_least_one=anchor is None)
        if self.policy.rules:
            self._fill_after_trace()

    def _denoise(self, block: np.ndarray, positions: np.ndarray, at_least_one: bool) -> None:
        """Commit those of the positions that the commit rule takes."""
        block, policy = self.without_end(block), self.policy
        in_answer = self.trajectory.answer_start is not None
        level = policy.answer_threshold if in_answer else policy.threshold
        for position in commit_positions(policy.commit, block, positions, level, at_least_one).tolist():
            token = self.draw(block[position])
            self._put(position, token, float(block[position, token]))

    def _fill_after_trace(self) -> None:
        """Once the trace is closed, the rest of its layout block holds fill."""
        ends = np.flatnonzero(self.ids == self.vocabulary.think_end)
        if len(ends) and not self.masked[: ends[0]].any():
            self._fill_masked()

    def _fill_masked(self) -> None:
        for position in np.flatnonzero(self.masked).tolist():
            self._put(position, self.vocabulary.fill, 0.0, forced=True)

    def _commit_answer(self, anchor: np.ndarray | None, block: np.ndarray | None) -> None:
        """Commit answer slots so that the answer stays a permutation."""
        start = self.trajectory.answer_start or 0
        slots = max(min(self.size, self.candidates - (self.length - start)), 0)  # answer slots in this block
        placed = self.placed(self.trajectory.tokens[start:] + self.ids[~self.masked].tolist())
        open_slots = np.flatnonzero(self.masked[:slots]).tolist()
        chosen = self._fill_slots(anchor, block, open_slots, placed) if open_slots else []
        for position, candidate, logp in chosen:
            last = len(placed) == self.candidates - 1
            self._put(position, int(self.labels[candidate]), 0.0 if last else logp, last)
            placed.append(candidate)
        if len(placed) == self.candidates - 1 and self.masked[:slots].any():  # one is left for one slot
            last_one = (set(range(self.candidates)) - set(placed)).pop()
            self._put(int(self.masked.argmax()), int(self.labels[last_one]), 0.0, forced=True)
            placed.append(last_one)
        if len(placed) == self.candidates:
            for position in range(slots, self.size):
                self._put(position, self.vocabulary.eos, 0.0, forced=True)

    def _fill_slots(
        self, anchor: np.ndarray | None, block: np.ndarray | None, open_slots: list[int], placed: list[int]
    ) -> list[tuple[int, int, float]]:
        """Open slots that the answer's rule commits, what they take, and its log-probability."""
        scores: list[tuple[int, np.ndarray]] = []
        taken: list[int] = []
        others = open_slots
        if anchor is not None:
            first, *others = open_slots
            scores.append((first, anchor[self.labels]))
            taken.append(int(restricted(scores[0][1], placed).argmax()))
        if block is not None and others:
            logps = block[others][:, self.labels]
            sure = self._sure_slots(logps, placed, taken)
            if not sure and not scores:
                sure = [0]
            scores += [(others[i], logps[i]) for i in sure]
        chosen, gone = [], list(placed)
        for position, logp in scores:
            left = restricted(logp, gone)
            candidate = self.draw(left)
            chosen.append((position, candidate, float(left[candidate])))
            gone.append(candidate)
        return chosen

    def _sure_slots(self, logps: np.ndarray, placed: list[int], taken: list[int]) -> list[int]:
        """Open slots that this forward commits beside the anchor, by the rule of the answer."""
        policy = self.policy
        if policy.answer == "conflict":
            return conflict_free(logps, placed, policy.answer_threshold, taken)
        return list(range(prefix_length(logps, placed, policy.answer_threshold, taken)))

    def _close(self) -> None:
        """Finish the row at an EOS with nothing masked before it, or the block when it is full."""
        t = self.trajectory
        ends = np.flatnonzero(self.ids == self.vocabulary.eos)
        ended = len(ends) > 0 and not self.masked[: ends[0]].any()
        if not ended and self.masked.any():
            return
        block = np.where(self.masked, -1, self.ids).tolist()
        t.tokens += block
        t.steps += self.steps.tolist()
        t.logprobs += self.logprobs.tolist()
        t.forced += self.forced.tolist()
        if ended or self.length >= self.limit:
            self._end(int(ends[0]) if ended else self.size - 1)
        if not self.done:
            self.clean = [self.vocabulary.eos if token < 0 else token for token in block]
            self.opening = True

    def _end(self, last: int) -> None:
        """The response is complete with position ``last`` of the block just closed."""
        self.finish(self.trajectory.tokens)
