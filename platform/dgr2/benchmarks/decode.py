"""Decoding of a student against its own AR mode and against Hugging Face's ``generate``, timed in turns.

A speed-up is a ratio of median seconds on the same prompts, prefill included. What a decode answers is quoted
beside how fast it is, on ``evaluation.sweep_instances`` instances.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from dgr2.benchmarks.turns import Figures, figure, time_turns
from dgr2.decoding.load import LoadTable, narrower
from dgr2.decoding.policy import DecodePolicy, ar_policy, native_policy, rollout_policy, shipped_policy
from dgr2.decoding.trajectory import Trajectory
from dgr2.evaluation.bootstrap import Interval, mean_intervals, median_interval, median_ratio_interval
from dgr2.evaluation.engine import Engine
from dgr2.evaluation.instances import HeldOut, evenly
from dgr2.evaluation.measure import judge
from dgr2.evaluation.metrics import METRICS, metric_values
from dgr2.evaluation.speed import time_in_turns
from dgr2.models.grid import BlockGrid

BATCHES = {1: 1, 16: 4}
"""Batch sizes and how many times ``evaluation.speed_instances`` each decodes."""
BLOCKS = (4, 8)
"""Block sizes tried beside the trained one."""


def bench_decode(engine: Engine, held_out: HeldOut) -> Figures:
    """All figures of decoding."""
    config = engine.config
    policies = compared(engine)
    figures: Figures = {}
    for batch_size, share in BATCHES.items():
        wanted = min(max(batch_size, config.evaluation.speed_instances * share), len(held_out))
        subset = held_out.take(evenly(len(held_out), wanted))
        figures |= _speed(engine, subset, policies, min(batch_size, wanted))
        figures |= _hugging_face(engine, subset, min(batch_size, wanted))
        figures |= _following_load(engine, held_out, subset, min(batch_size, wanted))
    few = held_out.take(evenly(len(held_out), config.evaluation.speed_instances))
    figures |= _overhead(engine, few)
    return figures | _answers(
        engine, held_out.take(evenly(len(held_out), config.evaluation.sweep_instances)), policies
    )


def compared(engine: Engine) -> dict[str, tuple[DecodePolicy, str]]:
    """Policies by the name of their speed-up, and the AR decode that each is compared with."""
    decode, grid = engine.config.decode, engine.config.grid
    slots = rollout_policy(decode, grid, 0.0)
    shipped = shipped_policy(decode, grid)
    smaller = [size for size in BLOCKS if size < grid.block_size and grid.block_size % size == 0]
    return {
        "ar": (ar_policy(permutation=True), "ar"),
        "ar_readout": (ar_policy(permutation=True, readout=True), "ar"),
        "decode": (shipped, "ar_readout" if shipped.readout else "ar"),
        "native": (native_policy(decode, grid), "ar"),
        "readout": (replace(slots, readout=True), "ar_readout"),
        "lossless": (shipped_policy(replace(decode, readout=False, verify=True), grid), "ar"),
        **{f"decode_block{size}": (replace(slots, block_size=size), "ar") for size in smaller},
    }


def _speed(
    engine: Engine, subset: HeldOut, policies: dict[str, tuple[DecodePolicy, str]], batch_size: int
) -> Figures:
    timings = time_in_turns(
        engine,
        subset.prompts,
        subset.counts,
        {name: policy for name, (policy, _) in policies.items()},
        batch_size,
    )
    resamples, seed = engine.config.evaluation.bootstrap, engine.config.seed
    figures: Figures = {}
    for name, (_, baseline) in policies.items():
        rate = timings[name].tokens_per_second(resamples, seed)
        figures[f"{name}_tokens_per_second_b{batch_size}"] = figure(rate, "tokens/s")
        if name != baseline:
            # seconds, not tokens: a decode that writes other tokens is not faster for writing more of them
            gain = median_ratio_interval(
                np.array(timings[baseline].seconds), np.array(timings[name].seconds), resamples, seed
            )
            figures[f"{name}_speedup_b{batch_size}"] = figure(gain, "x")
    return figures


def _following_load(engine: Engine, held_out: HeldOut, subset: HeldOut, batch_size: int) -> Figures:
    """The decode that a table, measured on other instances, chooses for the batch size, against AR."""
    shipped = shipped_policy(engine.config.decode, engine.config.grid)
    others = held_out.take(evenly(len(held_out), 48)[1::2])
    table = LoadTable.measure(engine.decoder, narrower(shipped), others.prompts, others.counts, [batch_size])
    chosen = table.choose(batch_size)
    policies = {"ar": ar_policy(permutation=True, readout=shipped.readout), "chosen": chosen}
    timings = time_in_turns(engine, subset.prompts, subset.counts, policies, batch_size)
    ratio = median_ratio_interval(
        np.array(timings["ar"].seconds),
        np.array(timings["chosen"].seconds),
        engine.config.evaluation.bootstrap,
        engine.config.seed,
    )
    width = float(chosen.block_size)
    return {
        f"follow_load_speedup_b{batch_size}": figure(ratio, "x"),
        f"follow_load_block_b{batch_size}": figure(Interval(width, width, width), "tokens"),
    }


def _hugging_face(engine: Engine, subset: HeldOut, batch_size: int) -> Figures:
    """Our AR decoding against ``generate`` of transformers, both greedy and without rules."""
    batches = [
        slice(i, i + batch_size) for i in range(0, len(subset) - batch_size + 1, batch_size)
    ]  # whole batches
    policy, turn = ar_policy(permutation=False), {"at": 0}

    def ours() -> list[Trajectory]:
        batch = batches[turn["at"] % len(batches)]
        return engine.decoder.decode(subset.prompts[batch], subset.counts[batch], policy, batch_size)

    def theirs() -> list[list[int]]:
        return generate(engine, subset.prompts[batches[turn["at"] % len(batches)]])

    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn["at"] in range(min(len(batches), 12)):
        for name, spent in time_turns({"ours": ours, "theirs": theirs}, 1).items():
            seconds[name] += spent.tolist()
    ratio = median_ratio_interval(
        np.array(seconds["theirs"]),
        np.array(seconds["ours"]),
        engine.config.evaluation.bootstrap,
        engine.config.seed,
    )
    return {f"ar_vs_hf_b{batch_size}": figure(ratio, "x")}


@torch.inference_mode()
def generate(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy responses of Hugging Face's ``generate``, up to and including EOS."""
    vocabulary, grid = engine.vocabulary, engine.config.grid
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), vocabulary.pad)
    attention = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        attention[row, width - len(prompt) :] = 1
    answer = BlockGrid(grid.block_size).padded(engine.config.data.candidates + 1)
    written = engine.decoder.model.generate(
        ids,
        attention_mask=attention,
        max_new_tokens=grid.trace_blocks * grid.block_size + answer,
        do_sample=False,
        eos_token_id=vocabulary.eos,
        pad_token_id=vocabulary.pad,
        suppress_tokens=[vocabulary.mask, vocabulary.pad],
    )[:, width:].tolist()
    return [row[: row.index(vocabulary.eos) + 1] if vocabulary.eos in row else row for row in written]


def _overhead(engine: Engine, subset: HeldOut) -> Figures:
    """Milliseconds that a forward of batch 1 spends outside the model, and their share of the whole."""
    policy = shipped_policy(engine.config.decode, engine.config.grid)
    decoder = engine.decoder
    decoder.decode(subset.prompts[:1], subset.counts[:1], policy)
    inference = decoder._inference
    assert inference is not None
    inside = [0.0]

    def timed(function: Callable) -> Callable:
        def call(*arguments: object) -> object:
            start = time.perf_counter()
            result = function(*arguments)
            inside[0] += time.perf_counter() - start
            return result

        return call

    inference.forward = timed(inference.forward)  # type: ignore[method-assign]
    inference.log_probabilities = timed(inference.log_probabilities)  # type: ignore[method-assign]
    milliseconds, shares = [], []
    for prompt, count in zip(subset.prompts, subset.counts, strict=True):
        inside[0], start = 0.0, time.perf_counter()
        (trajectory,) = decoder.decode([prompt], [count], policy)
        whole = time.perf_counter() - start
        milliseconds.append(1e3 * (whole - inside[0]) / trajectory.forwards)
        shares.append((whole - inside[0]) / whole)
    decoder.refresh()
    resamples, seed = engine.config.evaluation.bootstrap, engine.config.seed
    return {
        "decode_overhead_ms": figure(median_interval(np.array(milliseconds), resamples, seed), "ms"),
        "decode_overhead_share": figure(median_interval(np.array(shares), resamples, seed), "share"),
    }


def _answers(engine: Engine, subset: HeldOut, policies: dict[str, tuple[DecodePolicy, str]]) -> Figures:
    """What each policy answers: accuracy, validity, tokens a forward; and the paired comparisons."""
    config = engine.config
    resamples, seed = config.evaluation.bootstrap, config.seed
    figures: Figures = {}
    decoded: dict[str, list[Trajectory]] = {}
    values: dict[str, np.ndarray] = {}
    for name, (policy, _) in policies.items():
        decoded[name] = engine.decode(subset.prompts, subset.counts, policy)
        outcome = judge(engine, decoded[name], subset, policy, native=name == "native")
        values[name] = metric_values(np.array(outcome.ranks), subset.width)
        for metric, interval in zip(METRICS, mean_intervals(values[name], resamples, seed), strict=True):
            if metric in ("recall@1", "ndcg@3"):
                figures[f"{name}_{metric}"] = figure(interval, "share")
        columns = np.array(
            [
                [
                    valid,
                    emitted / forwards,
                    (emitted - answer) / max(1, forwards - of_answer),
                    answer / max(1, of_answer),
                ]
                for valid, emitted, forwards, answer, of_answer in zip(
                    outcome.valid,
                    outcome.emitted,
                    outcome.forwards,
                    outcome.emitted_answer,
                    outcome.forwards_answer,
                    strict=True,
                )
            ]
        )
        valid, *rates = mean_intervals(columns, resamples, seed)
        figures[f"{name}_valid"] = figure(valid, "share")
        for part, rate in zip(("", "_trace", "_answer"), rates, strict=True):
            figures[f"{name}_tokens_per_forward{part}"] = figure(rate, "tokens")
    ndcg = METRICS.index("ndcg@3")
    slots, readout = values["decode"][:, ndcg], values["readout"][:, ndcg]
    (difference,) = mean_intervals((readout - slots)[:, None], resamples, seed)
    figures["readout_minus_slots_ndcg@3"] = figure(difference, "share")
    same = [a.tokens == b.tokens for a, b in zip(decoded["ar"], decoded["lossless"], strict=True)]
    equal = float(np.mean(same))
    figures["lossless_equal"] = figure(Interval(equal, equal, equal), "share")
    return figures
