"""Responses as people read them: items by title, evidence and grades in words, labels by what they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from datasets import load_from_disk
from transformers import PreTrainedTokenizerBase

from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.trajectory import Trajectory
from dgr2.evaluation.answer import Answer
from dgr2.evaluation.instances import HeldOut
from dgr2.storage import read_json

_CODE = re.compile(r"<s(\d+)_(\d+)>")
_LEVEL = re.compile(r"<([a-z_]+)_(\d+)>")


class Reader:
    """Turns tokens of this run into text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, data: Path) -> None:
        items = load_from_disk(str(data / "items"))
        self.titles = dict(zip(items["item_id"][:], items["title"][:], strict=True))
        codes = read_json(data / "semantic_ids.json")
        self.items = {tuple(code): int(item) for item, code in codes.items()}
        self.levels = len(next(iter(self.items)))
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary

    def title(self, item: int) -> str:
        """Title of an item, its number where the title is blank."""
        return self.titles.get(item) or f"item {item}"

    def reasoning(self, trace: Sequence[int], candidates: Sequence[int]) -> str:
        """The trace of a response, a candidate a line."""
        special = (self.vocabulary.think_end, self.vocabulary.fill, self.vocabulary.eos)
        pieces: list[str] = []
        plain: list[int] = []
        codes: list[int] = []
        for token in [t for t in trace if t not in special]:
            name = str(self.tokenizer.convert_ids_to_tokens(token))
            word, codes = self._word(token, name, codes, candidates)
            if word is None:
                plain.append(token)
                continue
            pieces += [self._text(plain)] * bool(plain) + [word] * bool(word)
            plain = []
        pieces += [self._text(plain)] * bool(plain)
        return " ".join(piece for piece in pieces if piece).replace(" \n", "\n").strip()

    def _text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens)).strip()

    def _word(
        self, token: int, name: str, codes: list[int], candidates: Sequence[int]
    ) -> tuple[str | None, list[int]]:
        """The word for an added token and the codes of the item being spelt; None for plain text."""
        if code := _CODE.fullmatch(name):
            codes = [*codes, int(code[2])] if int(code[1]) == len(codes) else [int(code[2])]
            if len(codes) < self.levels:
                return "", codes
            item = self.items.get(tuple(codes))
            return (f"“{self.title(item)}”" if item else "(no such item)"), []
        if token in self.vocabulary.labels:
            place = self.vocabulary.labels.index(token)
            known = self.title(candidates[place]) if place < len(candidates) else "not a candidate"
            return f"\n  {name.strip('<>')} “{known}”:", []
        if level := _LEVEL.fullmatch(name):
            return f"{level[1].replace('_', ' ')} {level[2]}", []
        return None, []


def sample(reader: Reader, held_out: HeldOut, i: int, trajectory: Trajectory, answer: Answer) -> dict:
    """A decoded instance with everything needed to show it."""
    candidates = held_out.candidates[i]
    return {
        "user": held_out.users[i],
        "history": [reader.title(item) for item in held_out.histories[i][-5:]],
        "candidates": [reader.title(item) for item in candidates],
        "target": held_out.targets[i],
        "ranking": list(answer.ranking),
        "valid": answer.valid,
        "reasoning": reader.reasoning(trajectory.tokens[: answer.start], candidates),
        "response": reader.tokenizer.decode(trajectory.tokens, skip_special_tokens=False),
        "tokens": list(trajectory.tokens),
        "steps": list(trajectory.steps),
        "forwards": trajectory.forwards,
        "policy": trajectory.policy,
    }
