"""State machines of a row in flight: what it puts into the next forward, and what it does with the result.

:class:`BlockRow` decodes by blocks, :class:`ArRow` token by token. Neither knows of other rows, so a result
does not depend on the batch it was decoded in.
"""

from __future__ import annotations

import math

import numpy as np

from dgr2.config.schema import GridConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.policy import (
    DecodePolicy,
    commit_positions,
    conflict_free,
    prefix_length,
    readout_order,
    restricted,
    surest_first,
)
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
        self.clean: list[int] = list(prompt)  # clean tokens of the next forward
        self.cached = 0  # tokens of the prompt that the cache has already
        self.done = False

    def skip(self, cached: int) -> None:
        """The cache has the first tokens of the prompt, fewer than all, before the first forward."""
        self.clean, self.cached = self.prompt[cached:], cached

    @property
    def length(self) -> int:
        """Response tokens in finished blocks."""
        return len(self.trajectory.tokens)

    def answer_begins(self) -> bool:
        """Whether the next token opens the answer (called on a boundary of the layout grid)."""
        t = self.trajectory
        closed = self.vocabulary.think_end in t.tokens
        return closed or (self.policy.rules and self.length >= self.trace_limit)

    def open_answer(self, anchor: np.ndarray) -> bool:
        """Open the answer where it begins, with its anchor's scores; returns whether it just did."""
        t = self.trajectory
        opens = self.length % self.layout.size == 0 and t.answer_start is None and self.answer_begins()
        if opens:
            t.answer_start = self.length
            t.scores = np.exp(restricted(anchor[self.labels], ())).tolist()
        return opens

    def rule_token(self, tokens: list[int]) -> int | None:
        """What a rule writes behind these tokens, leaving AR decoding no choice; None where it has one."""
        if not self.policy.rules:
            return None
        start = self.trajectory.answer_start
        if start is not None and len(tokens) >= start:
            placed = self.placed(tokens[start:])
            if len(placed) == self.candidates:
                return self.vocabulary.eos
            if len(placed) == self.candidates - 1:
                return int(self.labels[(set(range(self.candidates)) - set(placed)).pop()])
        elif self.vocabulary.think_end in tokens and len(tokens) % self.layout.size:
            return self.vocabulary.fill
        return None

    def ar_distribution(self, tokens: list[int], logp: np.ndarray) -> np.ndarray:
        """Log-probabilities ``[vocabulary]`` of the token behind these, as AR decoding sees them."""
        left = self._left(tokens, logp)
        if left is None:
            return self.without_end(logp)
        allowed = np.full(len(logp), -np.inf)
        allowed[self.labels] = left
        return allowed

    def ar_token(self, tokens: list[int], logp: np.ndarray) -> tuple[int, float]:
        """The token that AR decoding draws behind these, and its log-probability."""
        if self.policy.temperature == 0.0:  # the same, without a vector over the vocabulary
            left = self._left(tokens, logp)
            if left is not None:
                best = int(left.argmax())
                return int(self.labels[best]), float(left[best])
            best = int(logp.argmax())
            if not self.policy.rules:
                return best, float(logp[best])
            if best != self.vocabulary.eos:
                end = math.exp(logp[self.vocabulary.eos])
                return best, float(logp[best]) - math.log1p(-min(end, 1 - 1e-12))
        p = self.ar_distribution(tokens, logp)
        token = self.draw(p)
        return token, float(p[token])

    def _left(self, tokens: list[int], logp: np.ndarray) -> np.ndarray | None:
        """Log-probabilities ``[candidates]`` of those not placed yet; None where no rule keeps an order."""
        start = self.trajectory.answer_start
        if not self.policy.rules or start is None or len(tokens) < start:
            return None
        return restricted(logp[self.labels], self.placed(tokens[start:]))

    def read_out(self, anchor: np.ndarray) -> None:
        """Write the whole answer in the order of its anchor's probabilities, and close the row."""
        t = self.trajectory
        order = readout_order(anchor[self.labels])
        t.tokens += [*self.labels[order].tolist(), self.vocabulary.eos]
        t.steps += [0] * (len(order) + 1)
        t.logprobs += [float(restricted(anchor[self.labels], ())[order[0]])] + [0.0] * len(order)
        t.forced += [False] + [True] * len(order)
        self.finish(t.tokens)

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
        self._checks_draws = self.policy.verify and self.policy.temperature > 0
        # what is verified need not be denoised step by step
        self._drafts_at_once = (
            self.policy.verify
            and self.policy.temperature == 0
            and (self.policy.commit, self.policy.threshold) == ("threshold", 0.0)
        )
        self._drafts_whole = self.policy.verify and self.policy.rules and self.policy.temperature == 0
        self.opening = True  # the next forward gives an anchor
        self.ended = False  # the last block waits for its verification
        self._reset()

    def _reset(self) -> None:
        self.ids = np.full(self.size, self.vocabulary.mask)
        self.masked = np.ones(self.size, dtype=bool)
        self.steps = np.zeros(self.size, dtype=int)
        self.logprobs = np.zeros(self.size)
        self.forced = np.zeros(self.size, dtype=bool)
        self.drafts: dict[int, np.ndarray] = {}  # what drawn tokens were drawn from, if they are verified
        self.checked = 0  # tokens at the head of the block that AR decoding would have written
        self.step = 0

    def inputs(self) -> tuple[list[int], list[int]]:
        """Clean tokens to commit and noisy tokens to denoise in the next forward."""
        if not self.opening:
            return [], self.ids.tolist()
        draft = self.size > 1 and self.policy.fused and not self.ended and not self._reads_out()
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
                commits; it is verified against them.
        """
        t = self.trajectory
        opened = self.opening
        t.forwards += 1
        if commit is not None and not self._verify(commit):
            t.forwards_answer += t.answer_start is not None
            return
        if self.ended:
            t.forwards_answer += t.answer_start is not None
            self.finish(t.tokens)
            return
        if opened:
            assert anchor is not None
            self._reset()
            self.opening = False
            if self.open_answer(anchor) and self.policy.readout:
                t.forwards_answer += 1
                self.read_out(anchor)
                return
        in_answer = t.answer_start is not None
        t.forwards_answer += in_answer
        if in_answer and self.policy.rules:
            self._commit_answer(anchor if opened else None, block)
        else:
            self._commit_by_rule(anchor if opened else None, block)
        if opened:
            self.checked = 1
        self.step += 1
        self._close()

    def _put(self, position: int, token: int, logp: float, forced: bool = False) -> None:
        self.ids[position], self.masked[position] = token, False
        self.steps[position], self.logprobs[position], self.forced[position] = self.step, logp, forced

    def _commit_by_rule(self, anchor: np.ndarray | None, block: np.ndarray | None) -> None:
        if self.policy.rules and self.vocabulary.think_end in self.trajectory.tokens:
            self._fill_masked()
            return
        open_positions = self.masked.copy()
        if anchor is not None:
            anchor = self.without_end(anchor)
            token = self.draw(anchor)
            open_positions[0] = False
            self._put(0, token, float(anchor[token]))
        policy = self.policy
        if block is not None and self._drafts_at_once:
            self._draft(block, open_positions)
        elif block is not None and open_positions.any():
            block = self.without_end(block)
            in_answer = self.trajectory.answer_start is not None
            level = policy.answer_threshold if in_answer else policy.threshold
            for position in commit_positions(policy.commit, block, open_positions, level, anchor is None):
                token = self.draw(block[position])
                self._put(int(position), token, float(block[position, token]))
                if self._checks_draws:
                    self.drafts[int(position)] = block[position]
        if self.policy.rules:
            self._fill_after_trace()

    def _draft(self, block: np.ndarray, positions: np.ndarray) -> None:
        """Put the best token everywhere, and fill behind the end of a trace; the commit verifies them."""
        if self.policy.rules:
            block[:, self.vocabulary.eos] = -np.inf
        self.ids[positions] = block[positions].argmax(axis=-1)
        self.masked[positions], self.steps[positions] = False, self.step
        if self.policy.rules:
            ends = np.flatnonzero(self.ids == self.vocabulary.think_end)
            behind = slice(ends[0] + 1 if len(ends) else self.size, None)
            self.ids[behind], self.forced[behind] = self.vocabulary.fill, True

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
        if not open_slots:
            chosen = []
        elif self._drafts_whole:
            assert anchor is not None
            chosen = self._whole_draft(anchor, block, open_slots, placed)
        else:
            chosen = self._sure_part(anchor, block, open_slots, placed)
        for position, candidate, logp in chosen:
            last = len(placed) == self.candidates - 1
            self._put(position, int(self.labels[candidate]), 0.0 if last else logp, last)
            placed.append(candidate)
        if len(placed) == self.candidates - 1:  # one candidate is left for one slot
            for position in range(max(slots, 0)):
                if self.masked[position]:
                    last_one = (set(range(self.candidates)) - set(placed)).pop()
                    self._put(position, int(self.labels[last_one]), 0.0, forced=True)
                    placed.append(last_one)
        if len(placed) == self.candidates:
            for position in range(max(slots, 0), self.size):
                self._put(position, self.vocabulary.eos, 0.0, forced=True)

    def _sure_part(
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
            if self._checks_draws and position:
                self.drafts[position] = np.full(self.vocabulary.size, -np.inf)
                self.drafts[position][self.labels] = left
            chosen.append((position, candidate, float(left[candidate])))
            gone.append(candidate)
        return chosen

    def _whole_draft(
        self, anchor: np.ndarray, block: np.ndarray | None, open_slots: list[int], placed: list[int]
    ) -> list[tuple[int, int, float]]:
        """Open slots, what they take, and its log-probability where it is AR decoding's own choice.

        The first slot takes the best candidate of the anchor. The others are the block's, the surest first,
        or, where none was denoised, follow in the order of the anchor's scores.
        """
        left = restricted(anchor[self.labels], placed)
        order = readout_order(left)
        if block is None:
            return [(slot, c, float(left[c])) for slot, c in zip(open_slots, order, strict=False)]
        pairs = surest_first(block[open_slots[1:]][:, self.labels], [*placed, order[0]])
        first = (open_slots[0], order[0], float(left[order[0]]))
        return [first, *((open_slots[1 + slot], candidate, 0.0) for slot, candidate in pairs)]

    def _sure_slots(self, logps: np.ndarray, placed: list[int], taken: list[int]) -> list[int]:
        """Open slots that this forward commits beside the anchor, by the rule of the answer."""
        policy = self.policy
        if self._checks_draws:  # a draft in one forward: repeats are taken back
            return list(range(len(logps)))
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
        last = ended or self.length >= self.limit
        if last and (not self.policy.verify or self._known() > (ends[0] if ended else self.size - 1)):
            self.finish(t.tokens)
            return
        self.ended = last
        self.clean = [self.vocabulary.eos if token < 0 else token for token in block]
        self.opening = True

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
                if self.policy.temperature == 0 and self.masked.any():
                    self._draft_on(i, commit)
                self._close()
                return False
            t.logprobs[first + i] = logp
        return True

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
        logprobs = t.logprobs[first : first + position]
        del t.tokens[first:], t.steps[first:], t.logprobs[first:], t.forced[first:]
        ids, steps, forced, step = self.ids, self.steps, self.forced, self.step
        self._reset()
        self.ids[:position], self.masked[:position] = ids[:position], False
        self.steps[:position], self.forced[:position] = steps[:position], forced[:position]
        self.logprobs[:position], self.step = logprobs, step
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


class ArRow(Row):
    """Autoregressive decoding: one token a forward, left to right."""

    def inputs(self) -> tuple[list[int], list[int]]:
        """Clean tokens of the next forward."""
        return self.clean, []

    def advance(
        self, anchor: np.ndarray | None, block: np.ndarray | None, commit: np.ndarray | None = None
    ) -> None:
        """Take the next token's log-probabilities ``anchor [vocabulary]``."""
        assert anchor is not None
        t = self.trajectory
        opens = self.open_answer(anchor)
        t.forwards += 1
        t.forwards_answer += t.answer_start is not None
        if opens and self.policy.readout:
            self.read_out(anchor)
            return
        before = self.length
        token: int | None
        token, logp = self.ar_token(t.tokens, anchor)
        self._put(token, logp)
        while t.tokens[-1] != self.vocabulary.eos and (token := self.rule_token(t.tokens)) is not None:
            self._put(token, 0.0, forced=True)
        self.clean = t.tokens[before:]
        if t.tokens[-1] == self.vocabulary.eos or self.length >= self.limit:
            self.finish(t.tokens)

    def _put(self, token: int, logp: float, forced: bool = False) -> None:
        t = self.trajectory
        t.tokens.append(token)
        t.steps.append(0)
        t.logprobs.append(logp)
        t.forced.append(forced)
