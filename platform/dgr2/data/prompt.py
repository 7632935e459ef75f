"""The prompt: history as semantic ids, candidates with ids, category, brand and bucketed evidence.

``<|user|> Rank these candidates {id of history item}… {<A> id category brand evidence×8}… <|assistant|>``
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from dgr2.config.schema import Config
from dgr2.data.evidence import EVIDENCE
from dgr2.data.source import Item
from dgr2.data.tokenizer import INSTRUCTION, LAST, OFTEN, OR, THEN, encode
from dgr2.data.vocabulary import ASSISTANT, FILL, THINK_END, USER, code_tokens, grade_tokens, label_tokens

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
    table: TokenTable, histories: list[list[int]], candidates: np.ndarray, levels: np.ndarray, shown: int
) -> list[list[int]]:
    """Token ids of every prompt.

    Args:
        histories: oldest first; the latest ``shown`` items are written.
        candidates: ``[lists, width]`` item ids in pre-rank order, 0 is padding at the end.
        levels: ``[lists, width, 8]`` evidence levels.
    """
    rows, width = candidates.shape
    recent = np.zeros((rows, shown), dtype=np.int64)
    for row, history in enumerate(histories):
        tail = history[-shown:]
        recent[row, shown - len(tail) :] = tail
    labels = np.broadcast_to(table.labels[:width, None], (rows, width, 1))
    evidence = table.evidence[np.arange(len(EVIDENCE))[None, None, :], levels]
    parts = [labels, table.codes[candidates], table.category[candidates], table.brand[candidates], evidence]
    lines = np.where(candidates[:, :, None] > 0, np.concatenate(parts, axis=-1), ABSENT)
    blocks = [
        np.broadcast_to(table.head, (rows, len(table.head))),
        table.codes[recent].reshape(rows, -1),
        lines.reshape(rows, -1),
        np.broadcast_to(table.tail, (rows, 1)),
    ]
    tokens = np.concatenate(blocks, axis=1)
    present = tokens != ABSENT
    ends = np.cumsum(present.sum(axis=1))[:-1]
    return [part.tolist() for part in np.split(tokens[present], ends)]
