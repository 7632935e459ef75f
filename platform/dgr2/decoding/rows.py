"""State machines of a row in flight: what it puts into the next forward, and what it does with the result.

:class:`ArRow` decodes token by token, :class:`~dgr2.decoding.block_row.BlockRow` by blocks, and
:class:`~dgr2.decoding.verified_row.VerifiedRow` drafts blocks and verifies them. None knows of other rows,
so a result does not depend on the batch it was decoded in.
"""

from __future__ import annotations

import math

import numpy as np

from dgr2.config.schema import GridConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.policy import DecodePolicy, readout_order, restricted
from dgr2.decoding.trajectory import Trajectory
from dgr2.models.grid import BlockGrid


class Row:
    """What all kinds share: the request, the rules of the answer, the record."""

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
        self.policy, self.vocabulary, self.greedy = policy, vocabulary, policy.temperature == 0.0
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
        if self.greedy:  # the same, without a vector over the vocabulary
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
        if self.greedy:
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
