"""The decoding engine: rows at different blocks and steps share forwards; a finished row frees its slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dgr2.config.schema import GridConfig
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.block_row import BlockRow
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.prompts import Prefilled, PromptStore, better_wait, head
from dgr2.decoding.rows import ArRow, Row
from dgr2.decoding.trajectory import Trajectory
from dgr2.decoding.verified_row import VerifiedRow
from dgr2.errors import DataError
from dgr2.models.grid import BlockGrid
from dgr2.models.inference import InferenceModel, require_compiler


class Decoder:
    """Decodes prompts with one model, autoregressively or by blocks.

    The cache is allocated once and grows when a batch needs more room; weights are read with
    it, so call :meth:`refresh` after changing them.

    Prompts of a call that begin alike (a template, one user's history) are prefilled once; see
    :meth:`remember` for those of other calls.
    """

    def __init__(
        self, model: Qwen3ForCausalLM, vocabulary: Vocabulary, grid: GridConfig, alignment: str = "in_place"
    ) -> None:
        self.model, self.vocabulary, self.grid = model, vocabulary, grid
        self.alignment, self.shift = alignment, alignment == "shift"
        self.context = int(model.config.max_position_embeddings)
        self.compiled = False
        self._inference: InferenceModel | None = None
        self.remember(0)

    @classmethod
    def of(cls, decoder: Decoder) -> Self:
        """Another decoder of the same model, with a cache of its own."""
        return cls(decoder.model, decoder.vocabulary, decoder.grid, decoder.alignment)

    def compile(self) -> None:
        """Compile the forwards from now on; see :class:`InferenceModel`. The first decode makes the programs.

        Raises:
            ConfigError: nothing could compile here.
        """
        require_compiler()
        self.compiled, self._inference = True, None

    def remember(self, prompts: int) -> None:
        """Keep the keys and values of the last ``prompts`` prompts for later calls.

        The last bits of a result may then depend on earlier calls.
        """
        self._remembered, self._prompts = prompts, PromptStore(prompts)

    def refresh(self) -> None:
        """Read the model's weights anew, after they were changed in place."""
        self._inference = None
        self.remember(self._remembered)

    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        candidates: Sequence[int],
        policy: DecodePolicy,
        batch_size: int = 1,
        on_done: Callable[[int], None] | None = None,
        seed: int = 0,
    ) -> list[Trajectory]:
        """Decode every prompt; results are in the order of the prompts.

        Args:
            prompts: Token ids of each prompt.
            candidates: Number of candidates of each prompt.
            policy: How to decode.
            batch_size: Rows in flight at most; it does not change a result.
            on_done: Called with the number of newly finished rows.
            seed: Seed of sampled decoding; a row's draws depend on (seed, its index) only.

        Raises:
            DataError: for an empty prompt, one that leaves no room for the response, one that holds the
                mask id, or a number of candidates that has no labels.
        """
        BlockGrid(self.grid.block_size).refine(policy.block_size)
        kind = ArRow if policy.name == "ar" else VerifiedRow if policy.verify else BlockRow
        rows: list[Row] = [
            kind(i, list(prompt), count, policy, self.vocabulary, self.grid, seed)
            for i, (prompt, count) in enumerate(zip(prompts, candidates, strict=True))
        ]
        self._check(rows)
        if not rows:
            return []
        slots = min(batch_size, len(rows))
        # longest first would be faster; the order of arrival is what a server sees
        inference = self._cache(slots, max(len(r.prompt) + r.limit for r in rows) + policy.block_size)
        if not self._remembered:  # strangers share nothing, and are not kept
            heads = {head(np.array(row.prompt)) for row in rows}
            self._prompts = PromptStore(batch_size if len(heads) < len(rows) else 0)
        waiting, free, active = deque(rows), list(range(slots))[::-1], {}
        while waiting or active:
            while waiting and free:
                active[free.pop()] = waiting.popleft()
            held = self._take_over(inference, active)
            for group in _groups({slot: row for slot, row in active.items() if slot not in held}):
                self._forward(inference, active, group)
            finished = [slot for slot, row in active.items() if row.done]
            for slot in finished:
                del active[slot]
                free.append(slot)
            if finished and on_done is not None:
                on_done(len(finished))
        return [row.trajectory for row in rows]

    def _take_over(self, inference: InferenceModel, active: dict[int, Row]) -> set[int]:
        """Copy what is known of new rows' prompts; returns the slots that wait for another's prefill."""
        fresh = [slot for slot, row in active.items() if not row.trajectory.forwards]
        if not fresh or not self._prompts.size:
            return set()
        prompts = [np.array(active[slot].prompt) for slot in fresh]
        found = [self._prompts.find(ids) for ids in prompts]
        waits = better_wait(prompts, [length for _, length in found])
        for slot, (stored, length), wait in zip(fresh, found, waits, strict=True):
            if stored is not None and not wait:
                inference.write(slot, stored.keys[:, :length], stored.values[:, :length])
                active[slot].skip(length)
        return {slot for slot, wait in zip(fresh, waits, strict=True) if wait}

    def _check(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if not row.prompt:
                raise DataError(f"prompt {row.index} is empty")
            if not 2 <= row.candidates <= len(self.vocabulary.labels):
                raise DataError(
                    f"prompt {row.index} has {row.candidates} candidates; "
                    f"this model ranks 2 to {len(self.vocabulary.labels)}"
                )
            if len(row.prompt) + row.limit > self.context:
                raise DataError(
                    f"prompt {row.index} has {len(row.prompt)} tokens; with {row.limit} for the response "
                    f"it exceeds the context of {self.context}"
                )
            if self.vocabulary.mask in row.prompt:
                raise DataError(f"prompt {row.index} holds the mask token, which only the decoder may place")

    def _cache(self, slots: int, context: int) -> InferenceModel:
        cached = self._inference
        if cached is None or cached.slots < slots or cached.context < context:
            if cached is not None:
                slots, context = max(slots, cached.slots), max(context, cached.context)
            context = min(-(-context // 32) * 32, self.context + self.grid.block_size)
            self._inference = cached = InferenceModel(
                self.model, self.vocabulary, slots, context, self.compiled
            )
        return cached

    def _forward(self, inference: InferenceModel, active: dict[int, Row], slots: list[int]) -> None:
        """One forward of rows that put equally many tokens in (prefills are padded on the right)."""
        rows = [active[slot] for slot in slots]
        inputs = [row.inputs() for row in rows]
        prefill, policy = not rows[0].trajectory.forwards, rows[0].policy
        width, size = max(len(clean) + len(noisy) for clean, noisy in inputs), len(inputs[0][1])
        ids = np.zeros((len(rows), width), dtype=np.int64)
        positions, limits = ids.copy(), np.ones_like(ids)
        places = np.arange(width)
        for i, (row, (clean, noisy)) in enumerate(zip(rows, inputs, strict=True)):
            known, used = len(clean), len(clean) + len(noisy)
            # a prefill starts behind what is cached; a commit's clean tokens are in the record already, a
            # denoise's are not
            start = row.cached if prefill else len(row.prompt) + row.length - known
            ids[i, :used] = clean + noisy
            positions[i] = places + start
            limits[i, :known] = positions[i, :known] + 1
            limits[i, known:used] = start + used
        lengths = [len(clean) for clean, _ in inputs]
        committed = lengths[0] if policy.verify and not prefill else 1
        first = max(min(lengths) - committed, 0)  # what stands before predicts nothing
        hidden = inference.forward(slots, ids, positions, limits, first)
        ends = [known - first for known in lengths]
        clean, block = self._predict(inference, hidden, ends, committed, size, policy.temperature)
        if prefill and self._prompts.size:
            for slot, row in zip(slots, rows, strict=True):
                cached = inference.read(slot, len(row.prompt))
                self._prompts.add(Prefilled(np.array(row.prompt), *cached))
        for i, row in enumerate(rows):
            row.advance(
                None if clean is None else clean[i, -1],
                None if block is None else block[i],
                clean[i, :-1] if clean is not None and committed > 1 else None,
            )

    def _predict(
        self,
        inference: InferenceModel,
        hidden: Tensor,
        clean: list[int],
        wanted: int,
        size: int,
        temperature: float,
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Log-probabilities behind clean tokens and of blocks.

        Args:
            hidden: ``[n, width, hidden]``.
            clean: Clean tokens of each row, of which ``hidden`` holds the states.
            wanted: Clean tokens, from the last one back, whose successors are asked for.
            size: Tokens of a noisy block, 0 where there is none.

        Returns:
            ``[n, wanted, vocabulary]`` (None without clean tokens) and ``[n, size, vocabulary]``.
        """
        if not clean[0]:
            logp = inference.log_probabilities(hidden, temperature)
            # shifted, a position is predicted by its left neighbour; the anchor's own row is never read
            return None, np.concatenate([logp[:, :1], logp[:, :-1]], axis=1) if self.shift else logp
        start = clean[0] - wanted
        if clean.count(clean[0]) == len(clean):
            hidden = hidden[:, start : start + wanted + size]
        else:
            take = (torch.tensor(clean) - wanted)[:, None] + torch.arange(wanted + size)
            hidden = hidden[torch.arange(len(clean))[:, None], take.to(hidden.device)]
        logp = inference.log_probabilities(hidden, temperature)
        if not size:
            return logp, None
        first = wanted - int(self.shift)
        return logp[:, :wanted], logp[:, first : first + size]


def _groups(active: dict[int, Row]) -> list[list[int]]:
    """Slots by what they put into a forward: prefills by what is cached, the others by their widths."""
    groups: dict[object, list[int]] = {}
    for slot, row in active.items():
        clean, noisy = row.inputs()
        first = not row.trajectory.forwards
        key = ("prefill", row.cached, len(noisy)) if first else (len(clean), len(noisy))
        groups.setdefault(key, []).append(slot)
    return [sorted(group) for group in groups.values()]
