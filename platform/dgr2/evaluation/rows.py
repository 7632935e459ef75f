"""The rows of the table and the pairs that are compared: the one place to add a stage.

A row is an ordering that data holds (``order``), or a stage's checkpoint decoded one token at a time
(``ar``) or in blocks (``block``). Every decoded row is decoded twice: *native*, by the plain rule, and
*policy*, as shipped.
"""

from __future__ import annotations

from dataclasses import dataclass

from dgr2.config.schema import Config
from dgr2.decoding.policy import DecodePolicy, ar_policy, native_policy, shipped_policy


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    name: str
    mode: str
    """``order``, ``ar`` or ``block``."""
    stage: str
    """The stage that made what the row shows: its checkpoint is decoded, its seconds are quoted."""
    untrained: bool = False
    """The row shows a stage's checkpoint in a mode that took no training of its own."""
    broken: bool = False
    """Known to emit no rankings: decoded on ``evaluation.naive_instances`` instances only."""


ROWS = (
    Row("pre_rank", "order", "prepare"),
    Row("lambdamart", "order", "prepare"),
    Row("ar_teacher", "ar", "teacher"),
    Row("naive_conversion", "block", "teacher", untrained=True, broken=True),
    Row("cft", "block", "cft"),
    Row("cft_ar", "ar", "cft", untrained=True),
    Row("opd_off_policy", "block", "opd_off_policy"),
    Row("opd", "block", "opd"),
    Row("rl", "block", "rl"),
    Row("rl_ar", "ar", "rl", untrained=True),
)
"""Every row in the order of the table; a row whose checkpoint does not exist is left out."""

PAIRS = (
    ("lambdamart", "pre_rank"),
    ("ar_teacher", "pre_rank"),
    ("ar_teacher", "lambdamart"),
    ("cft", "pre_rank"),
    ("cft", "lambdamart"),
    ("cft", "ar_teacher"),
    ("cft", "cft_ar"),
    ("cft_ar", "ar_teacher"),
    ("opd_off_policy", "cft"),
    ("opd", "cft"),
    ("opd", "opd_off_policy"),
    ("opd", "ar_teacher"),
    ("rl", "pre_rank"),
    ("rl", "lambdamart"),
    ("rl", "ar_teacher"),
    ("rl", "opd"),
    ("rl", "rl_ar"),
)
"""Rows compared on the same instances: the difference is the first minus the second."""

PAIR_METRICS = ("recall@1", "ndcg@3")
"""Metrics of a paired comparison."""


def row_policies(row: Row, config: Config) -> tuple[DecodePolicy, DecodePolicy]:
    """The policy and the native decode of a decoded row."""
    if row.mode == "ar":
        return ar_policy(permutation=True, readout=config.decode.readout), ar_policy(permutation=False)
    return shipped_policy(config.decode, config.grid), native_policy(config.decode, config.grid)


def describe(policy: DecodePolicy) -> dict[str, object]:
    """A policy as the report and the cache hold it: its record, and a label by its rules."""
    rule = policy.answer
    if policy.name == "ar":
        rule = "ar+permutation" if policy.permutation else "ar"
    more = [name for name in ("readout", "verify") if getattr(policy, name)]
    return policy.record() | {"label": "+".join([rule, *more])}
