"""What a sweep over a stage does, settled before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from dgr2.config import Config, load_config, to_yaml, walk
from dgr2.errors import ConfigError
from dgr2.tuning.space import Domain, parse_space

SPACES = {
    "cft": (
        "cft.optim.learning_rate=loguniform(5e-4,5e-3)",
        "cft.alpha=uniform(0.5,2.0)",
        "cft.full_mask_share_answer=uniform(0.2,0.6)",
    ),
    "opd": ("opd.optim.learning_rate=loguniform(1e-4,1e-3)", "opd.confidence_weight=uniform(0.0,2.0)"),
    "rl": ("rl.optim.learning_rate=loguniform(5e-6,1e-4)", "rl.clip_high=uniform(0.2,0.4)"),
}
"""Stages that can be searched, and the space of each where the configuration names none."""
ONLINE = {"valid_tokens_per_forward": "max", "valid": "max", "tokens_per_forward": "max"}
METRICS = {
    "cft": {"valid_loss": "min", "valid_ar": "min", "valid_diffusion": "min", "valid_sets": "min"},
    "opd": {**ONLINE, "loss": "min"},
    "rl": {"reward": "max", **ONLINE},
}
"""Figures that trials of a stage report, and which way is better; the first one is the default.

Of ``cft`` they are measured on validation lists. Of the loops they are those of the rollouts, averaged over
the steps since the last report; ``valid_tokens_per_forward`` is the share of valid answers times the tokens a
forward emits.
"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sweep.

    Attributes:
        metric, mode: Figure to search by, and ``min`` or ``max``.
        steps: Of every trial.
        report_every: Steps between reports.
        grace, reduction: ASHA's first rung and the factor between rungs.
        seed: Of the draws.
    """

    stage: str
    metric: str
    mode: str
    space: tuple[Domain, ...]
    samples: int
    steps: int
    report_every: int
    grace: int
    reduction: int
    budget_s: float
    seed: int


def make_plan(stage: str, config: Config) -> Plan:
    """The sweep that a configuration asks for.

    Raises:
        ConfigError: unknown stage or metric, a bad space, or a value in it that the configuration refuses.
    """
    if stage not in SPACES:
        close = difflib.get_close_matches(stage, SPACES, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ConfigError(f"'{stage}' cannot be tuned; there are {', '.join(SPACES)}{hint}")
    settings, known = config.tune, METRICS[stage]
    metric = settings.metric or next(iter(known))
    if metric not in known:
        nearest = difflib.get_close_matches(metric, known, n=1, cutoff=0.0)[0]
        raise ConfigError(f"'tune.metric' of {stage} cannot be '{metric}'; did you mean '{nearest}'?")
    steps: int = getattr(config, stage).optim.steps
    grace = settings.grace or max(1, steps // 4)
    if grace > steps:
        raise ConfigError(f"'tune.grace' must not exceed '{stage}.optim.steps' ({steps}), and is {grace}")
    space = tuple(parse_space(settings.space or SPACES[stage], stage))
    for domain in space:
        for value in domain.edges:
            at_point(config, {domain.key: value})
    return Plan(
        stage=stage,
        metric=metric,
        mode=known[metric],
        space=space,
        samples=settings.samples,
        steps=steps,
        report_every=max(1, steps // settings.reports),
        grace=grace,
        reduction=settings.reduction,
        budget_s=settings.budget_s,
        seed=config.seed,
    )


def at_point(config: Config, point: Mapping[str, Any]) -> Config:
    """The configuration with the values of a point in it; floats that were drawn keep four digits.

    Raises:
        ConfigError: the values contradict others.
    """
    tree = dataclasses.asdict(config)
    for key, value in point.items():
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place[section]
        place[name] = plain(value)
    return load_config(None, base=tree, inputs=False)


def plain(value: Any) -> Any:
    """A drawn value as the configuration has it."""
    value = value.item() if hasattr(value, "item") else value
    return float(f"{value:.4g}") if type(value) is float else value


def start_point(config: Config, space: tuple[Domain, ...]) -> dict[str, Any]:
    """Where the configuration itself lies in the space."""
    values = dict(walk(config))
    return {domain.key: values[domain.key] for domain in space}


def preset_text(config: Config, comment: str) -> str:
    """A configuration as the text of a preset."""
    return f"# {comment}\n{to_yaml(config)}"
