from __future__ import annotations

from types import SimpleNamespace

import pytest

from dgr2.decoding.policy import ar_policy
from dgr2.evaluation.position import position_check, relabelled, shuffled


class Builder:
    """Renders a request as its items in shown order: item ``n`` is token ``20 + n``."""

    def build(self, histories, candidates, scores=None):
        assert all(sorted(row, reverse=True) == [4.0, 3.0, 2.0, 1.0] for row in scores)
        return [SimpleNamespace(prompt_ids=[25, 0, *(20 + item for item in row)]) for row in candidates]


@pytest.fixture
def follows_the_item(say):
    """Puts item 3 first, wherever it stands."""

    def script(prompt, policy):
        place = prompt[2:].index(23)
        return say.respond([say.labels[place], *(label for i, label in enumerate(say.labels) if i != place)])

    return script


def test_a_ranker_that_follows_items_is_unmoved_by_shuffling(
    make_engine, held_out, vocabulary, follows_the_item
):
    variant = shuffled(held_out, Builder(), seed=0)
    assert any(row != [1, 2, 3, 4] for row in variant.held_out.candidates)
    check = position_check(
        make_engine(follows_the_item), held_out, [2] * 12, {"shuffled": variant}, ar_policy()
    )["shuffled"]
    assert check["same_first"] == 1 and check["delta"]["value"] == 0 and check["validity"] == 1
    assert check["recall@1"]["value"] == pytest.approx(0.25)


def test_a_ranker_that_follows_places_is_found_out(make_engine, held_out, say):
    engine = make_engine(lambda prompt, policy: say.respond(list(say.labels)))
    variant = shuffled(held_out, Builder(), seed=0)
    check = position_check(engine, held_out, [0] * 12, {"shuffled": variant}, ar_policy())["shuffled"]
    assert check["same_first"] < 0.8


def test_relabelling_permutes_letters_and_reads_them_back(make_engine, held_out, vocabulary, say):
    variant = relabelled(held_out, vocabulary, seed=0)
    prompts = variant.held_out.prompts
    assert [p[:2] for p in prompts] == [p[:2] for p in held_out.prompts]
    assert all(sorted(p[2:]) == list(say.labels) for p in prompts) and prompts != held_out.prompts

    def second_place(prompt, policy):
        """Names the candidate shown second by the letter it bears there."""
        return say.respond([prompt[3], *(label for label in say.labels if label != prompt[3])])

    check = position_check(
        make_engine(second_place), held_out, [1] * 12, {"relabelled": variant}, ar_policy()
    )["relabelled"]
    assert check["same_first"] == 1
