from __future__ import annotations

import pytest

from dgr2.evaluation.readable import Reader
from dgr2.storage import RunFolder


@pytest.fixture
def reader(story_run: RunFolder, story_tokenizer, story_vocabulary) -> Reader:
    return Reader(story_tokenizer, story_vocabulary, story_run.data)


def test_items_evidence_and_labels_are_read_out(reader, story_tokenizer):
    written = "often <s0_0> <s1_2> <A> <follow_3> <grade_1> <B> <brand_share_0> <grade_0> </think> <|fill|>"
    tokens = story_tokenizer.convert_tokens_to_ids(written.split())
    assert reader.reasoning(tokens, [1, 2]).splitlines() == [
        "often “green tea 2”",
        "  A “green tea 1”: follow 3 grade 1",
        "  B “green tea 2”: brand share 0 grade 0",
    ]


def test_what_names_nothing_is_said_to(reader, story_tokenizer):
    tokens = story_tokenizer.convert_tokens_to_ids(["<s0_0>", "<s1_7>", "<D>", "<s0_0>", "often"])
    assert reader.reasoning(tokens, [1]) == "(no such item)\n  D “not a candidate”: often"


def test_blank_title_falls_back_to_the_number(reader):
    assert reader.title(6) == "item 6"
