"""The prompt: history as semantic ids, its reading, candidates with id, category, brand and evidence.

``<|user|> Rank these candidates {older item}… {reading} {<A> id category brand evidence×8}… <|assistant|>``
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from transformers import PreTrainedTokenizerBase

from dgr2.config.schema import Config
from dgr2.data.evidence import EVIDENCE
from dgr2.data.source import Item
from dgr2.data.tokenizer import INSTRUCTION, LAST, OFTEN, OR, THEN, encode
from dgr2.data.vocabulary import (
    ASSISTANT,
    FILL,
    THINK_END,
    USER,
    code_tokens,
    grade_tokens,
    label_tokens,
)

if TYPE_CHECKING:
    from dgr2.data.reading import Reading

ABSENT = -1


@dataclass(frozen=True)
class TokenTable:
    """Everything of prompt and trace as token ids, so that rendering needs no tokenizer.

    ``codes`` ``[items + 1, levels + 1]``; ``category`` and ``brand`` ``[items + 1, field_tokens]`` with
    ``ABSENT`` where a text is shorter; ``evidence`` ``[8, buckets]``; ``words`` holds the ids of the
    trace's words, ``ABSENT`` padded, in the order often, last, then, or.
    """

    codes: np.ndarray
    category: np.ndarray
    brand: np.ndarray
    evidence: np.ndarray
    labels: np.ndarray
    grades: np.ndarray
    words: np.ndarray
    head: np.ndarray
    tail: np.ndarray
    close: np.ndarray
    fill: np.ndarray
    end: np.ndarray

    @classmethod
    def build(
        cls, items: list[Item], codes: np.ndarray, tokenizer: PreTrainedTokenizerBase, config: Config
    ) -> TokenTable:
        """Look up and encode once; ``codes`` ``[items, levels + 1]``."""

        def ids(tokens: list[str]) -> np.ndarray:
            return np.array(tokenizer.convert_tokens_to_ids(tokens), dtype=np.int64)

        levels = np.stack([ids(level) for level in code_tokens(codes.shape[1], config.semantic_ids.codes)])
        by_item = levels[np.arange(codes.shape[1])[None, :], codes]
        size = config.prompt.field_tokens
        names = [[f"<{name}_{level}>" for level in range(config.prompt.buckets)] for name, _, _ in EVIDENCE]
        return cls(
            codes=np.concatenate([np.full((1, codes.shape[1]), ABSENT), by_item]),
            category=_padded([[], *encode(tokenizer, [_field(item.leaf) for item in items])], size),
            brand=_padded([[], *encode(tokenizer, [_field(item.brand) for item in items])], size),
            evidence=np.stack([ids(row) for row in names]),
            labels=ids(label_tokens(config.data.candidates)),
            grades=ids(grade_tokens(config.traces.grades)),
            words=_padded(encode(tokenizer, [OFTEN, LAST, THEN, OR]), 2),
            head=np.concatenate([ids([USER]), np.array(encode(tokenizer, [INSTRUCTION])[0], dtype=np.int64)]),
            tail=ids([ASSISTANT]),
            close=ids([THINK_END]),
            fill=ids([FILL]),
            end=np.array([tokenizer.eos_token_id], dtype=np.int64),
        )

    def save(self, path: Path) -> None:
        """Write the arrays to one ``.npz``."""
        np.savez(path, **self.__dict__)

    @classmethod
    def load(cls, path: Path) -> TokenTable:
        """Read what ``save`` wrote."""
        with np.load(path) as arrays:
            return cls(**{name: arrays[name] for name in arrays.files})


def _field(text: str) -> str:
    return f" {text}" if text else ""


def _padded(rows: list[list[int]], size: int) -> np.ndarray:
    return np.array([(row + [ABSENT] * size)[:size] for row in rows], dtype=np.int64)


def render_prompts(
    table: TokenTable,
    histories: list[list[int]],
    readings: list[Reading],
    candidates: np.ndarray,
    levels: np.ndarray,
    shown: int,
) -> list[list[int]]:
    """Token ids of every prompt.

    Args:
        histories: oldest first; the latest ``shown`` items are written, the last of them by the reading.
        readings: see :class:`dgr2.data.reading.HistoryReader`.
        candidates: ``[lists, width]`` item ids in pre-rank order, 0 is padding at the end.
        levels: ``[lists, width, 8]`` evidence levels.
    """
    rows, width = candidates.shape
    labels = np.broadcast_to(table.labels[:width, None], (rows, width, 1))
    evidence = table.evidence[np.arange(len(EVIDENCE))[None, None, :], levels]
    parts = [labels, table.codes[candidates], table.category[candidates], table.brand[candidates], evidence]
    lines = np.where(candidates[:, :, None] > 0, np.concatenate(parts, axis=-1), ABSENT)
    present = lines != ABSENT
    prompts = []
    for row, (history, reading) in enumerate(zip(histories, readings, strict=True)):
        older = history[-shown : len(history) - reading.cited]
        listed = lines[row][present[row]]
        prompts.append(
            [*table.head, *table.codes[older].ravel(), *reading.tokens, *listed.tolist(), *table.tail]
        )
    return [[int(token) for token in prompt] for prompt in prompts]
