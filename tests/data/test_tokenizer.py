"""Vocabulary from scratch and on top of a checkpoint's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dgr2.data.tokenizer import INSTRUCTION, build_tokenizer, encode, load_tokenizer
from dgr2.data.vocabulary import Vocabulary
from dgr2.errors import ConfigError


def test_brands_and_categories_are_single_tokens(prepared):
    tokenizer = load_tokenizer(prepared.tokenizer)
    texts = [f" {name}" for item in prepared.source.items for name in (item.brand, item.leaf)]
    assert {len(ids) for ids in encode(tokenizer, texts)} == {1}
    assert len(encode(tokenizer, [INSTRUCTION])[0]) == 3


def test_vocabulary(prepared):
    tokenizer = load_tokenizer(prepared.tokenizer)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, prepared.config.data.candidates)
    assert vocabulary.size == len(tokenizer)
    assert tokenizer.convert_ids_to_tokens(list(vocabulary.labels)) == [
        "<A>",
        "<B>",
        "<C>",
        "<D>",
        "<E>",
        "<F>",
    ]
    assert len(vocabulary.grades) == prepared.config.traces.grades
    assert tokenizer.eos_token_id == vocabulary.eos and tokenizer.pad_token_id == vocabulary.pad
    assert len({vocabulary.pad, vocabulary.eos, vocabulary.mask, vocabulary.think_end, vocabulary.fill}) == 5
    with pytest.raises(ConfigError, match="no token <G>"):
        Vocabulary.from_tokenizer(tokenizer, 7)


def test_own_tokens_split_off_any_text(prepared):
    tokenizer = load_tokenizer(prepared.tokenizer)
    ids = encode(tokenizer, ["<A><follow_3><s0_5></think><|fill|> Pans"])[0]
    assert tokenizer.convert_ids_to_tokens(ids)[:5] == ["<A>", "<follow_3>", "<s0_5>", "</think>", "<|fill|>"]
    assert tokenizer.decode(ids).endswith(" Pans")


def test_checkpoint_tokenizer_is_extended(prepared, tmp_path):
    """Ids of the checkpoint stay where they are, ours come after them."""
    plain = replace(prepared.config, semantic_ids=replace(prepared.config.semantic_ids, codes=2))
    plain.data = replace(plain.data, candidates=2)
    own = build_tokenizer(prepared.source.items, plain)
    own.save_pretrained(tmp_path)
    config = replace(prepared.config, model=replace(prepared.config.model, init=str(tmp_path)))
    extended = build_tokenizer(prepared.source.items, config)
    before, after = own.get_vocab(), extended.get_vocab()
    assert all(after[token] == index for token, index in before.items())
    assert Vocabulary.from_tokenizer(extended, 6).size > len(own)
    assert extended.eos_token == "<|end|>"
