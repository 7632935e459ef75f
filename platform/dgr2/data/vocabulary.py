"""The ids that training, decoding and evaluation need from a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase

from transformers import PreTrainedTokenizerBase

from dgr2.errors import ConfigError

PAD, END, MASK = "<|pad|>", "<|end|>", "<|mask|>"
USER, ASSISTANT, THINK_END, FILL = "<|user|>", "<|assistant|>", "</think>", "<|fill|>"
CONTROL = (PAD, END, MASK, USER, ASSISTANT, THINK_END, FILL)


def label_tokens(count: int) -> list[str]:
    """Labels of the candidates in pre-rank order: ``<A>``, ``<B>``, …"""
    return [f"<{letter}>" for letter in ascii_uppercase[:count]]


def grade_tokens(levels: int) -> list[str]:
    """Grades of a candidate, worst first: ``<grade_0>``, …"""
    return [f"<grade_{level}>" for level in range(levels)]


def code_tokens(levels: int, codes: int) -> list[list[str]]:
    """Semantic-id tokens ``<s{level}_{code}>``, one list a level."""
    return [[f"<s{level}_{code}>" for code in range(codes)] for level in range(levels)]


@dataclass(frozen=True)
class Vocabulary:
    """Token ids; ``labels`` are those of the K candidates in pre-rank order, ``grades`` worst first."""

    size: int
    pad: int
    eos: int
    mask: int
    think_end: int
    fill: int
    labels: tuple[int, ...]
    grades: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerBase, candidates: int) -> Vocabulary:
        """Look the tokens up.

        Raises:
            ConfigError: the tokenizer lacks one, so it was not made by the prepare stage.
        """
        known = tokenizer.get_vocab()

        def find(token: str) -> int:
            if token not in known:
                raise ConfigError(f"the tokenizer has no token {token}: run the prepare stage again")
            return int(known[token])

        grades: list[int] = []
        while f"<grade_{len(grades)}>" in known:
            grades.append(known[f"<grade_{len(grades)}>"])
        return cls(
            size=len(tokenizer),
            pad=find(PAD),
            eos=find(END),
            mask=find(MASK),
            think_end=find(THINK_END),
            fill=find(FILL),
            labels=tuple(find(token) for token in label_tokens(candidates)),
            grades=tuple(grades),
        )
