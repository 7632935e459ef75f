"""What a sweep searches: the space is read strictly, and values that cannot be are refused up front."""

from __future__ import annotations

import pytest

from dgr2.config import from_yaml, load_config
from dgr2.errors import ConfigError
from dgr2.tuning.outcome import Outcome, best_outcome
from dgr2.tuning.plan import SPACES, at_point, make_plan, preset_text, start_point
from dgr2.tuning.space import Domain, parse_space


def test_a_space_is_read() -> None:
    space = parse_space(
        [
            "cft.optim.learning_rate=loguniform(5e-4,5e-3)",
            " cft.alpha = uniform( 0, 2 ) ",
            "cft.optim.batch_size=choice(16, 32)",
            "cft.optim.checkpoint_every=randint(2,5)",
            "cft.block_curriculum=choice([4,16],[16])",
            "cft.alignment=choice(in_place,shift)",
        ],
        "cft",
    )
    assert space == [
        Domain("cft.optim.learning_rate", "loguniform", (5e-4, 5e-3)),
        Domain("cft.alpha", "uniform", (0.0, 2.0)),
        Domain("cft.optim.batch_size", "choice", (16, 32)),
        Domain("cft.optim.checkpoint_every", "randint", (2, 5)),
        Domain("cft.block_curriculum", "choice", ([4, 16], [16])),
        Domain("cft.alignment", "choice", ("in_place", "shift")),
    ]
    assert space[3].edges == (2, 4) and space[1].edges == (0.0, 2.0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cft.alpha", "not of the form"),
        ("cft.alpha=2", "not of the form"),
        ("cft.alfa=uniform(0,1)", "unknown key 'cft.alfa'; did you mean 'cft.alpha'"),
        ("cft.optim=choice(1)", "is a section"),
        ("cft.alpha=uniformly(0,1)", "did you mean 'uniform'"),
        ("cft.alpha=normal(0,1)", "unknown domain 'normal'"),
        ("cft.alpha=uniform(1,0)", "lower one first"),
        ("cft.alpha=uniform(1)", "two bounds"),
        ("cft.alpha=loguniform(0,1)", "above 0"),
        ("cft.alpha=randint(1,3)", "use uniform, loguniform or choice"),
        ("cft.alpha=choice()", "empty"),
        ("cft.alpha=choice(a)", "must be a number"),
        ("cft.optim.batch_size=uniform(1,3)", "is a whole number, and uniform does not draw that"),
        ("cft.optim.steps=randint(10,20)", "cannot be searched"),
        ("teacher.sft.learning_rate=uniform(0,1)", "no key of 'cft'"),
        ("rl.optim.learning_rate=uniform(0,1)", "no key of 'cft'"),
    ],
)
def test_a_bad_line_is_refused(line: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_space([line], "cft")
    assert words in str(refused.value)


def test_a_key_stands_once() -> None:
    with pytest.raises(ConfigError, match="'cft.alpha' twice"):
        parse_space(["cft.alpha=uniform(0,1)", "cft.alpha=uniform(0,2)"], "cft")


@pytest.mark.parametrize("stage", list(SPACES))
def test_every_stage_has_a_space_around_its_settings(stage: str) -> None:
    config = load_config("demo")
    plan = make_plan(stage, config)
    for domain in plan.space:
        low, high = domain.edges
        assert low <= start_point(config, plan.space)[domain.key] <= high
    assert 1 <= plan.grace <= plan.steps and plan.report_every >= 1


@pytest.mark.parametrize(
    ("stage", "overrides", "words"),
    [
        ("teacher", [], "there are cft, opd, rl"),
        ("ctf", [], "did you mean 'cft'"),
        ("cft", ["tune.metric=valid_los"], "did you mean 'valid_loss'"),
        ("cft", ["tune.grace=5", "cft.optim.steps=4"], "tune.grace"),
        ("cft", ['tune.space=["cft.full_mask_share=uniform(0.5,1.5)"]'], "cft.full_mask_share"),
        ("cft", ['tune.space=["cft.optim.batch_size=choice(32,1)"]'], "cft.optim.batch_size"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(stage: str, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_plan(stage, load_config("demo", overrides))
    assert words in str(refused.value)


def test_the_best_point_reads_back_as_a_preset(tmp_path) -> None:
    config = load_config("demo", ["seed=4"])
    found = at_point(config, {"cft.optim.learning_rate": 0.00123456, "cft.block_curriculum": [4, 16]})
    assert found.cft.optim.learning_rate == 0.001235 and found.cft.block_curriculum == [4, 16]
    file = tmp_path / "best.yaml"
    file.write_text(preset_text(found, "best of 3"))
    assert load_config(str(file)) == load_config("demo", file=file) == from_yaml(file) == found
    assert config.cft.optim.learning_rate == load_config("demo").cft.optim.learning_rate


def test_the_best_trial_ran_to_the_end() -> None:
    plan = make_plan("cft", load_config("demo"))
    trials = [
        Outcome("trial-1", {}, "finished", 400, 2.0),
        Outcome("trial-2", {}, "stopped", 100, 1.0),
        Outcome("trial-3", {}, "finished", 400, 1.5),
        Outcome("trial-4", {}, "failed", 40, 0.5),
        Outcome("trial-5", {}, "finished", 400, float("inf")),
    ]
    best = best_outcome(trials, plan)
    assert best is not None and best.name == "trial-3"
    assert best_outcome(trials[1:2], plan) is trials[1]
    assert best_outcome(trials[3:], plan) is None
    rl = make_plan("rl", load_config("demo"))
    best = best_outcome(trials[:3], rl)
    assert best is not None and best.name == "trial-1"
