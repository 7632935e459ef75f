"""Tokenizer: byte-level BPE trained on the catalogue, or the checkpoint's own, plus the added tokens."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dgr2.config.schema import Config
from dgr2.data.evidence import EVIDENCE
from dgr2.data.source import Item
from dgr2.data.vocabulary import CONTROL, END, MASK, PAD, code_tokens, grade_tokens, label_tokens

# Words of prompts and traces; every one becomes a single token of a trained vocabulary.
INSTRUCTION = " Rank these candidates"
OFTEN, LAST, THEN, OR = " often", " last", " then", " or"
CARD, NEXT = " item", " next"
FREQUENT = 64  # a word of ours counts as often as a frequent word of the catalogue


def build_tokenizer(items: list[Item], config: Config) -> PreTrainedTokenizerBase:
    """Train on item texts, or load that of ``model.init``; then add control, id and evidence tokens."""
    tokenizer: PreTrainedTokenizerBase
    if config.model.init:
        tokenizer = AutoTokenizer.from_pretrained(config.model.init)
    else:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=_train(items, config.tokenizer.vocabulary))
    tokenizer.add_special_tokens({"pad_token": PAD, "eos_token": END, "mask_token": MASK})
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added_tokens(config)])
    return tokenizer


def added_tokens(config: Config) -> list[str]:
    """Labels, semantic ids, evidence and grades."""
    ids = config.semantic_ids
    return [
        *label_tokens(config.data.candidates),
        *(token for level in code_tokens(ids.levels + 1, ids.codes) for token in level),
        *(f"<{name}_{level}>" for name, _, _ in EVIDENCE for level in range(config.prompt.buckets)),
        *grade_tokens(config.traces.grades),
    ]


def item_text(item: Item) -> str:
    """Title, brand and categories, every part with a leading space as in the prompt."""
    return "".join(f" {part}" for part in (item.title, item.brand, *item.categories) if part)


def encode(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Token ids of texts, without control tokens."""
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else []


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer that the prepare stage wrote."""
    return AutoTokenizer.from_pretrained(str(folder))


def _train(items: list[Item], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    words = [INSTRUCTION + OFTEN + LAST + THEN + OR + CARD + NEXT] * FREQUENT
    # Brands and categories stand in every prompt: they count twice beside the titles.
    fields = ["".join(f" {part}" for part in (item.brand, item.leaf) if part) for item in items]
    tokenizer.train_from_iterator(words + [item_text(item) for item in items] + fields, trainer)
    return tokenizer
