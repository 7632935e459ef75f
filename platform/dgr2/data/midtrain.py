"""Documents of mid-training: item cards, text to id, and histories, so that ids carry meaning."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerBase

from dgr2.data.prompt import ABSENT, TokenTable
from dgr2.data.source import Item
from dgr2.data.tokenizer import CARD, NEXT, encode, item_text

LONGEST = 256  # tokens a row
TEXT = 48  # tokens of an item's text
RECENT = 24  # latest items of a history


def midtrain_rows(
    items: list[Item],
    training: list[list[int]],
    tokens: TokenTable,
    tokenizer: PreTrainedTokenizerBase,
    rng: np.random.Generator,
) -> list[list[int]]:
    """Documents in random order, packed into rows of at most 256 tokens; each ends with ``<|end|>``.

    Kinds: id then text; text then id; a history of ids with category and brand; ids alone and the next one.
    """
    card, after = (encode(tokenizer, [word])[0] for word in (CARD, NEXT))
    end = tokens.end.tolist()
    texts = [ids[:TEXT] for ids in encode(tokenizer, [item_text(item) for item in items])]
    documents = []
    for item, text in zip(items, texts, strict=True):
        code = tokens.codes[item.item_id].tolist()
        documents.append(card + code + text + end)
        documents.append(card + text + code + end)
    fields = np.concatenate([tokens.codes, tokens.category, tokens.brand], axis=1)
    for sequence in training:
        recent = np.array(sequence[-RECENT:], dtype=np.int64)
        if len(recent) < 2:
            continue
        described = fields[recent].ravel()
        documents.append(described[described != ABSENT].tolist() + end)
        ids = tokens.codes[recent]
        documents.append(ids[:-1].ravel().tolist() + after + ids[-1].tolist() + end)
    return _packed([documents[i][:LONGEST] for i in rng.permutation(len(documents))])


def _packed(documents: list[list[int]]) -> list[list[int]]:
    rows: list[list[int]] = [[]]
    for document in documents:
        if len(rows[-1]) + len(document) > LONGEST:
            rows.append([])
        rows[-1] = rows[-1] + document
    return rows
