"""Benchmarks of a finished run: ``dgr2 bench WHAT --run DIR --json FILE``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from dgr2.config.schema import Config
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.policy import ar_policy, native_policy, shipped_policy
from dgr2.errors import ConfigError
from dgr2.evaluation.bootstrap import Interval, mean_intervals
from dgr2.evaluation.engine import Engine, Engines
from dgr2.evaluation.instances import HeldOut, evenly
from dgr2.evaluation.rows import ROWS
from dgr2.evaluation.speed import time_in_turns
from dgr2.storage import RunFolder

Figures = dict[str, dict[str, float | str]]
BATCHES = {1: 1, 16: 4}
"""Batch sizes of the decode benchmark and how many times ``evaluation.speed_instances`` each decodes."""


def bench(what: str, run: RunFolder, config: Config, console: Console) -> Figures:
    """Measure ``what`` on a run and print it.

    Returns:
        ``{name: {value, low, high, unit}}`` with 95 % intervals.

    Raises:
        ConfigError: nothing is called so, or the run lacks the stage that it measures.
    """
    if what not in BENCHES:
        raise ConfigError(f"there is no benchmark '{what}'; choose one of {', '.join(BENCHES)}")
    figures = BENCHES[what](run, config)
    table = Table("figure", "value", "95 %", "unit", title=f"bench {what}")
    for name, figure in figures.items():
        table.add_row(
            name,
            f"{figure['value']:.2f}",
            f"{figure['low']:.2f} – {figure['high']:.2f}",
            str(figure["unit"]),
        )
    console.print(table)
    return figures


def bench_decode(run: RunFolder, config: Config) -> Figures:
    """Block decoding of the latest student against its own AR mode, both as shipped, timed in turns."""
    trained = [row for row in ROWS if row.mode == "block" and not row.untrained]
    finished = [row.stage for row in trained if run.stage_state(row.stage) is not None]
    if not finished:
        raise ConfigError("this run has no student yet: run the cft stage first")
    tokenizer = AutoTokenizer.from_pretrained(run.tokenizer)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, config.data.candidates)
    engine = Engines(run, vocabulary, config).get(finished[-1])
    held_out = HeldOut.load(run.data)
    figures: Figures = {}
    for batch_size, share in BATCHES.items():
        wanted = max(batch_size, config.evaluation.speed_instances * share)
        figures |= _speed(engine, held_out.take(evenly(len(held_out), wanted)), batch_size)
    return figures | _tokens(engine, held_out.take(evenly(len(held_out), config.evaluation.sweep_instances)))


def _speed(engine: Engine, subset: HeldOut, batch_size: int) -> Figures:
    config = engine.config
    policies = {
        "ar": ar_policy(permutation=True),
        "block": shipped_policy(config.decode, config.grid),
        "block_native": native_policy(config.decode, config.grid),
    }
    timings = time_in_turns(engine, subset.prompts, subset.counts, policies, min(batch_size, len(subset)))
    resamples, seed = config.evaluation.bootstrap, config.seed
    figures = {
        f"{name}_tokens_per_second_b{batch_size}": _figure(
            timing.tokens_per_second(resamples, seed), "tokens/s"
        )
        for name, timing in timings.items()
    }
    for name, label in (("block", "decode_speedup"), ("block_native", "decode_speedup_native")):
        gain = timings[name].speedup(timings["ar"], resamples, seed)
        figures[f"{label}_b{batch_size}"] = _figure(gain, "x")
    return figures


def _tokens(engine: Engine, subset: HeldOut) -> Figures:
    """Tokens a forward of every response, averaged over responses; commit forwards counted."""
    config, vocabulary = engine.config, engine.vocabulary
    policy = shipped_policy(config.decode, config.grid)
    decoded = engine.decode(subset.prompts, subset.counts, policy)
    answer = [max(1, t.forwards_answer) for t in decoded]
    values = np.array(
        [
            [t.emitted(vocabulary) / t.forwards, t.emitted_answer(vocabulary) / forwards]
            for t, forwards in zip(decoded, answer, strict=True)
        ]
    )
    overall, in_answer = mean_intervals(values, config.evaluation.bootstrap, config.seed)
    return {
        "tokens_per_forward": _figure(overall, "tokens"),
        "tokens_per_forward_answer": _figure(in_answer, "tokens"),
    }


def _figure(interval: Interval, unit: str) -> dict[str, float | str]:
    return {"value": interval.value, "low": interval.low, "high": interval.high, "unit": unit}


BENCHES: dict[str, Callable[[RunFolder, Config], Figures]] = {"decode": bench_decode}
