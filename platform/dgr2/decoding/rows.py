"""State machines of a row in flight: what it puts into the next forward, and what it does with the result.

:class:`BlockRow` decodes by blocks, :class:`ArRow` token by token. Neither knows of other rows, so a result
does not depend on the batch it was decoded in.
"""

from __future__ import annotations

import numpy as np

from dgr2.config.schema import GridConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.policy import DecodePolicy, prefix_length, restricted, threshold_positions
from dgr2.decoding.trajectory import Trajectory
from dgr2.models.grid import BlockGrid


class Row:
    """What both kinds share: the request, the rules of the answer, the record."""

    def __init__(
        self,
        index: int,
        prompt: list[int],
        candidates: int,
        policy: DecodePolicy,
        vocabulary: Vocabulary,
        grid: GridConfig,
        seed: int,
    ) -> None:
        self.index, self.prompt, self.candidates = index, prompt, candidates
        self.policy, self.vocabulary = policy, vocabulary
        self.layout = BlockGrid(grid.block_size)
        self.trace_limit = grid.trace_blocks * grid.block_size
        self.limit = self.trace_limit + self.layout.padded(candidates + 1)
        self.random = np.random.Generator(np.random.Philox(key=[seed, index]))
        self.labels = np.array(vocabulary.labels[:candidates])
        self.label_index = {int(token): i for i, token in enumerate(self.labels)}
        self.trajectory = Trajectory(candidates=candidates, policy=policy.record())
        self.done = False

    @property
    def length(self) -> int:
        """Response tokens in finished blocks."""
        return len(self.trajectory.tokens)

    def answer_begins(self) -> bool:
        """Whether the next token opens the answer (called on a boundary of the layout grid)."""
        t = self.trajectory
        closed = self.vocabulary.think_end in t.tokens
        return closed or (self.policy.rules and self.length >= self.trace_limit)

    def draw(self, logp: np.ndarray) -> int:
        """A token by the policy's temperature: the best one, or a sample by the row's own generator."""
        if self.policy.temperature == 0.0:
            return int(logp.argmax())
        p = np.exp(logp.astype(np.float64))
        return int(
            min(np.searchsorted(np.cumsum(p), self.random.random() * p.sum(), side="right"), len(p) - 1)
        )

    def without_end(self, logp: np.ndarray) -> np.ndarray:
        """Under the rules a trace cannot end the response: EOS removed, the rest renormalised."""
        if not self.policy.rules:
            return logp
        end = logp[..., self.vocabulary.eos, None].astype(np.float64)
        left = logp - np.log1p(-np.minimum(np.exp(end), 1 - 1e-12))
        left[..., self.vocabulary.eos] = -np.inf
        return left

    def placed(self, tokens: list[int]) -> list[int]:
        """Candidate indices among some tokens."""
        return [self.label_index[t] for t in tokens if t in self.label_index]

    def finish(self, tokens: list[int]) -> None:
        """Cut everything after EOS and close the row."""
        t = self.trajectory
        if self.vocabulary.eos in tokens:
            keep = tokens.index(self.vocabulary.eos) + 1
            if not all(t.forced[keep:]):
                t.tail = list(zip(t.tokens[keep:], t.steps[keep:], t.logprobs[keep:], strict=True))
            t.tokens, t.steps, t.logprobs, t.forced = (
                t.tokens[:keep],
                t.steps[:keep],
                t.logprobs[:keep],
                t.forced[:keep],
            )
        self.done = True


class BlockRow(Row):
    """Block diffusion: anchor from the clean stream, the rest of the block predicted in parallel."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.size = self.policy.block_size
        self.opening = True  # the next forward gives an anchor
        self.clean: list[int] = list(self.prompt)
        self.ids = np.full(self.size, self.vocabulary.mask)
        self._reset()

    def _reset(self) -> None:
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
        draft = self.size > 1 and self.policy.fused
        return self.clean, self.ids.tolist() if draft else []

    def advance(self, anchor: np.ndarray | None, block: np.ndarray | None) -> None:
        """Take the forward's log-probabilities: ``anchor [vocabulary]`` and ``block [size, vocabulary]``."""
        t = self.trajectory
        opened = self.opening
        if opened:
            if self.length % self.layout.size == 0 and t.answer_start is None and self.answer_begins():
                t.answer_start = self.length
            self.opening = False
        t.forwards += 1
        in_answer = t.answer_start is not None
        t.forwards_answer += in_answer
        if in_answer and self.policy.rules:
            self._commit_answer(anchor if opened else None, block)
        else:
            self._commit_by_threshold(anchor if opened else None, block)
        self.step += 1
        self._close()

    def _put(self, position: int, token: int, logp: float, forced: bool = False) -> None:
        self.ids[position], self.masked[position] = token, False
        self.steps[position], self.logprobs[position], self.forced[position] = self.step, logp, forced

    def _commit_by_threshold(self, anchor: np.ndarray | None, block: np.ndarray | None) -> None:
        if self.policy.rules and self.vocabulary.think_end in self.trajectory.tokens:
            self._fill_masked()
            return
        open_positions = self.masked.copy()
        if anchor is not None:
            anchor = self.without_end(anchor)
            token = self.draw(anchor)
            open_positions[0] = False
            self._put(0, token, float(anchor[token]))
        if block is not None:
            block = self.without_end(block)
            confidence = np.exp(block.max(axis=-1))
            in_answer = self.trajectory.answer_start is not None
            tau = self.policy.answer_threshold if in_answer else self.policy.threshold
            for position in threshold_positions(confidence, open_positions, tau, anchor is None):
                token = self.draw(block[position])
                self._put(int(position), token, float(block[position, token]))
        if self.policy.rules:
            self._fill_after_trace()

    def _fill_after_trace(self) -> None:
        """Once the trace is closed, the rest of its layout block holds fill."""
        ends = np.flatnonzero(self.ids == self.vocabulary.think_end)
        if len(ends) and not self.masked[: ends[0]].any():
            self._fill_masked()

    def _fill_masked(self) -> None:
        for position in np.flatnonzero(self.masked):
            self._put(int(position), self.vocabulary.fill, 0.0, forced=True)

    def _commit_answer(self, anchor: np.ndarray | None, block: np.ndarray | None) -> None:
        start = self.trajectory.answer_start or 0
        first_slot = self.length - start
        slots = min(self.size, self.candidates - first_slot)  # answer slots in this block
        state = self.trajectory.tokens[start:] + self.ids[~self.masked].tolist()
        placed = self.placed(state)
        open_slots = [i for i in range(max(slots, 0)) if self.masked[i]]
        chosen: list[tuple[int, np.ndarray]] = []
        taken: list[int] = []
        if anchor is not None and open_slots:
            logp = anchor[self.labels]
            chosen.append((open_slots.pop(0), logp))
            taken.append(int(restricted(logp, placed).argmax()))
        if block is not None and open_slots:
            logps = block[open_slots][:, self.labels]
            length = prefix_length(logps, placed, self.policy.answer_threshold, taken)
            length = max(length, 0 if chosen else 1)
            chosen += list(zip(open_slots[:length], logps[:length], strict=True))
        for position, logp in chosen:
            left = restricted(logp, placed)
            candidate = self.draw(left)
            self._put(
                position,
                int(self.labels[candidate]),
                float(left[candidate]),
                len(placed) == self.candidates - 1,
            )
            placed.append(candidate)
        if len(placed) == self.candidates - 1:  # one candidate is left for one slot
            for position in range(max(slots, 0)):
                if self.masked[position]:
                    last = (set(range(self.candidates)) - set(placed)).pop()
                    self._put(position, int(self.labels[last]), 0.0, forced=True)
                    placed.append(last)
        if len(placed) == self.candidates:
            for position in range(max(slots, 0), self.size):
                self._put(position, self.vocabulary.eos, 0.0, forced=True)

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
            self.finish(t.tokens)
            return
        self.clean = block
        self.opening = True
        self._reset()


class ArRow(Row):
    """Autoregressive decoding: one token a forward, left to right."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.clean: list[int] = list(self.prompt)

    def inputs(self) -> tuple[list[int], list[int]]:
        """Clean tokens of the next forward."""
        return self.clean, []

    def advance(self, anchor: np.ndarray | None, block: np.ndarray | None) -> None:
        """Take the next token's log-probabilities ``anchor [vocabulary]``."""
        assert anchor is not None
        t = self.trajectory
        if self.length % self.layout.size == 0 and t.answer_start is None and self.answer_begins():
            t.answer_start = self.length
        in_answer = t.answer_start is not None
        t.forwards += 1
        t.forwards_answer += in_answer
        before = self.length
        if in_answer and self.policy.rules:
            placed = self.placed(t.tokens[t.answer_start :])
            left = restricted(anchor[self.labels], placed)
            candidate = self.draw(left)
            self._put(int(self.labels[candidate]), float(left[candidate]))
            placed.append(candidate)
            if len(placed) == self.candidates - 1:
                last = (set(range(self.candidates)) - set(placed)).pop()
                self._put(int(self.labels[last]), 0.0, forced=True)
                placed.append(last)
            if len(placed) == self.candidates:
                self._put(self.vocabulary.eos, 0.0, forced=True)
        else:
            anchor = self.without_end(anchor)
            token = self.draw(anchor)
            self._put(token, float(anchor[token]))
            if self.policy.rules and token == self.vocabulary.think_end:
                while self.length % self.layout.size:
                    self._put(self.vocabulary.fill, 0.0, forced=True)
        self.clean = t.tokens[before:]
        if t.tokens[-1] == self.vocabulary.eos or self.length >= self.limit:
            self.finish(t.tokens)

    def _put(self, token: int, logp: float, forced: bool = False) -> None:
        t = self.trajectory
        t.tokens.append(token)
        t.steps.append(0)
        t.logprobs.append(logp)
        t.forced.append(forced)
