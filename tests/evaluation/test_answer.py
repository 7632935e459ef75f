from __future__ import annotations

import pytest

from dgr2.evaluation.answer import parse_answer


def flaws(answer):
    return {f for f in ("duplicate", "dropped", "out_of_set", "unparsable") if getattr(answer, f)}


def test_permutation_is_valid_and_scored_as_given(vocabulary, say):
    a, b, c, d = say.labels
    answer = parse_answer(say.respond([c, a, d, b]), vocabulary, 4)
    assert answer.valid and answer.ranking == (2, 0, 3, 1) and answer.start == 8


def test_fill_after_the_trace_is_skipped_and_fill_inside_the_answer_is_not(vocabulary, say):
    a, b, c, d = say.labels
    closing = [say.think_end, say.fill, say.fill]
    assert parse_answer([*closing, a, b, c, d, say.eos], vocabulary, 4).valid
    assert flaws(parse_answer([*closing, a, b, say.fill, c, d, say.eos], vocabulary, 4)) == {"out_of_set"}


@pytest.mark.parametrize(
    ("places", "expected", "ranking"),
    [
        ("aabc", {"duplicate", "dropped"}, (0, 1, 2, 3)),
        ("bad", {"dropped"}, (1, 0, 3, 2)),
        ("dcbax", {"out_of_set"}, (3, 2, 1, 0)),
        ("dxab", {"out_of_set", "dropped"}, (3, 0, 1, 2)),
        ("dcbad", {"duplicate"}, (3, 2, 1, 0)),
        ("dcwba", {"out_of_set"}, (3, 2, 1, 0)),
        ("www", {"unparsable"}, (0, 1, 2, 3)),
        ("", {"unparsable"}, (0, 1, 2, 3)),
        ("x", {"out_of_set", "dropped"}, (0, 1, 2, 3)),
    ],
)
def test_flaws_and_first_appearance_then_pre_rank_order(vocabulary, say, places, expected, ranking):
    token = dict(zip("abcd", say.labels, strict=True)) | {"x": say.outside, "w": say.word}
    answer = parse_answer(say.respond([token[p] for p in places]), vocabulary, 4)
    assert flaws(answer) == expected and not answer.valid
    assert answer.ranking == ranking


def test_label_beyond_a_short_list_is_out_of_set(vocabulary, say):
    a, b, c, _ = say.labels
    answer = parse_answer(say.respond([b, c, a]), vocabulary, 2)
    assert flaws(answer) == {"out_of_set"} and answer.ranking == (1, 0)


def test_answer_without_closed_trace_counts_only_where_a_policy_opened_it(vocabulary, say):
    tokens = say.respond(list(say.labels), closed=False)
    assert parse_answer(tokens, vocabulary, 4).unparsable
    assert parse_answer(tokens, vocabulary, 4, opened=8).valid


def test_what_follows_the_end_token_is_not_read(vocabulary, say):
    assert parse_answer([*say.respond(list(say.labels)), say.labels[0]], vocabulary, 4).valid
