"""Decoding of a student against its own AR mode and against Hugging Face's ``generate``, timed in turns.

A speed-up is a ratio of median seconds on the same prompts, prefill included. What a decode answers is quoted
beside how fast it is, on ``evaluation.sweep_instances`` instances.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from dgr2.benchmarks.compiled import compiled_figures
from dgr2.benchmarks.figures import Figures, Summary, exact, figure
from dgr2.benchmarks.forwards import forward_figures
from dgr2.decoding.load import LoadTable, narrower
from dgr2.decoding.policy import DecodePolicy, ar_policy, native_policy, rollout_policy, shipped_policy
from dgr2.decoding.trajectory import Trajectory
from dgr2.evaluation.engine import Engine
from dgr2.evaluation.instances import HeldOut, evenly
from dgr2.evaluation.measure import Decoded, judge
from dgr2.evaluation.metrics import METRICS, metric_values
from dgr2.evaluation.speed import full_batches, time_in_turns
from dgr2.models.grid import BlockGrid
from dgr2.telemetry import time_turns

BATCHES = {1: 1, 4: 2, 16: 4}
"""Batch sizes and how many times ``evaluation.speed_instances`` each decodes."""
BLOCKS = (4, 8, 16, 32)
"""Block sizes that are compared where the trained one is a multiple of them."""
Policies = dict[str, tuple[DecodePolicy, str]]
"""By the name of their speed-up: a policy, and the name of the AR decode that it is compared with."""


def bench_decode(engine: Engine, held_out: HeldOut) -> Figures:
    """All figures of decoding."""
    evaluation, summary = engine.config.evaluation, Summary.of(engine.config)
    policies = compared(engine)
    compiled = {name: policies[name] for name in ("ar", "ar_readout", "decode", "native", "readout")}
    figures: Figures = {}
    for batch_size, share in BATCHES.items():
        wanted = max(batch_size, evaluation.speed_instances * share)
        subset = held_out.take(evenly(len(held_out), wanted))
        batch_size = min(batch_size, len(subset))
        figures |= _speed(engine, subset, policies, batch_size, summary)
        figures |= _hugging_face(engine, subset, batch_size, summary)
        figures |= _following_load(engine, held_out, subset, batch_size, summary)
        figures |= compiled_figures(
            engine.decoder, subset.prompts, subset.counts, compiled, batch_size, summary
        )
    few = held_out.take(evenly(len(held_out), evaluation.speed_instances))
    timed = {name: policies[name][0] for name in (policies["decode"][1], "decode")}
    figures |= forward_figures(engine.decoder, few.prompts, few.counts, timed, summary)
    many = held_out.take(evenly(len(held_out), evaluation.sweep_instances))
    return figures | _answers(engine, many, policies, summary)


def compared(engine: Engine) -> Policies:
    """Policies to time. Those that only differ in their name are timed once."""
    decode, grid = engine.config.decode, engine.config.grid
    shipped, native = shipped_policy(decode, grid), native_policy(decode, grid)
    baseline = "ar_readout" if shipped.readout else "ar"
    sizes = [size for size in BLOCKS if grid.block_size % size == 0]
    sweep = engine.config.evaluation.sweep
    return {
        "ar": (ar_policy(permutation=True), "ar"),
        "ar_readout": (ar_policy(permutation=True, readout=True), "ar"),
        "decode": (shipped, baseline),
        "native": (native, "ar"),
        "readout": (shipped_policy(replace(decode, readout=True), grid), "ar_readout"),
        "lossless": (shipped_policy(replace(decode, readout=False, verify=True), grid), "ar"),
        "unverified": (rollout_policy(decode, grid, 0.0), "ar"),
        **{f"decode_block{size}": (replace(shipped, block_size=size), baseline) for size in sizes},
        **{
            f"native_tau{tau:g}": (
                replace(native, commit="threshold", threshold=tau, answer_threshold=tau), "ar"
            )
            for tau in sweep
        },
    }  # fmt: skip


def _speed(engine: Engine, subset: HeldOut, policies: Policies, batch_size: int, summary: Summary) -> Figures:
    unique = {policy: policy for policy, _ in policies.values()}
    timed = time_in_turns(engine, subset.prompts, subset.counts, unique, batch_size)
    figures: Figures = {}
    for name, (policy, baseline) in policies.items():
        figures[f"{name}_tokens_per_second_b{batch_size}"] = summary.median(timed[policy].rates, "tokens/s")
        if name != baseline:
            # seconds, not tokens: a decode that writes other tokens is not faster for writing more of them
            figures[f"{name}_speedup_b{batch_size}"] = summary.ratio(
                timed[policies[baseline][0]].seconds, timed[policy].seconds
            )
    return figures


def _following_load(
    engine: Engine, held_out: HeldOut, subset: HeldOut, batch_size: int, summary: Summary
) -> Figures:
    """The decode that a table, measured on other instances, chooses for the batch size, against AR."""
    shipped = shipped_policy(engine.config.decode, engine.config.grid)
    others = held_out.take(evenly(len(held_out), 48)[1::2])
    table = LoadTable.measure(engine.decoder, narrower(shipped), others.prompts, others.counts, [batch_size])
    chosen = table.choose(batch_size)
    policies = {"ar": ar_policy(permutation=True, readout=shipped.readout), "chosen": chosen}
    timed = time_in_turns(engine, subset.prompts, subset.counts, policies, batch_size)
    return {
        f"follow_load_speedup_b{batch_size}": summary.ratio(timed["ar"].seconds, timed["chosen"].seconds),
        f"follow_load_block_b{batch_size}": exact(chosen.block_size, "tokens"),
    }


def _hugging_face(engine: Engine, subset: HeldOut, batch_size: int, summary: Summary) -> Figures:
    """AR decoding, without rules as theirs, and decoding as shipped against ``generate`` of transformers."""
    batches = full_batches(len(subset), batch_size)

    def ours(policy: DecodePolicy, turn: int) -> object:
        batch = batches[turn]
        return engine.decoder.decode(subset.prompts[batch], subset.counts[batch], policy, batch_size)

    def theirs(turn: int) -> object:
        return generate(engine, subset.prompts[batches[turn]])

    shipped = shipped_policy(engine.config.decode, engine.config.grid)
    plain = ar_policy(permutation=False)
    calls = {"ar": partial(ours, plain), "decode": partial(ours, shipped), "hf": theirs}
    timed = time_turns(calls, min(len(batches), 12))
    return {
        f"{name}_vs_hf_b{batch_size}": summary.ratio(timed["hf"].seconds, timed[name].seconds)
        for name in ("ar", "decode")
    }


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


def _answers(engine: Engine, subset: HeldOut, policies: Policies, summary: Summary) -> Figures:
    """What each policy answers: accuracy, validity, tokens a forward; and the paired comparisons."""
    figures: Figures = {}
    decoded: dict[DecodePolicy, list[Trajectory]] = {}
    judged: dict[DecodePolicy, Decoded] = {}
    values: dict[str, np.ndarray] = {}
    for name, (policy, _) in policies.items():
        if policy not in decoded:
            decoded[policy] = engine.decode(subset.prompts, subset.counts, policy)
            judged[policy] = judge(engine, decoded[policy], subset, policy, native=policy.name == "native")
        outcome = judged[policy]
        values[name] = metric_values(np.array(outcome.ranks), subset.width)
        for metric, interval in zip(METRICS, summary.means(values[name]), strict=True):
            if metric in ("recall@1", "ndcg@3"):
                figures[f"{name}_{metric}"] = figure(interval, "share")
        emitted, forwards = np.array(outcome.emitted), np.array(outcome.forwards)
        answer, of_answer = np.array(outcome.emitted_answer), np.array(outcome.forwards_answer)
        columns = {
            "valid": np.array(outcome.valid, dtype=float),
            "tokens_per_forward": emitted / forwards,
            "tokens_per_forward_trace": (emitted - answer) / np.maximum(1, forwards - of_answer),
            "tokens_per_forward_answer": answer / np.maximum(1, of_answer),
        }
        for what, interval in zip(columns, summary.means(np.stack([*columns.values()], 1)), strict=True):
            figures[f"{name}_{what}"] = figure(interval, "share" if what == "valid" else "tokens")
    for name, baseline, metric in (("readout", "ar", "ndcg@3"), ("decode", "ar", "recall@1")):
        column = METRICS.index(metric)
        (difference,) = summary.means((values[name] - values[baseline])[:, [column]])
        figures[f"{name}_minus_{baseline}_{metric}"] = figure(difference, "share")
    pairs = zip(decoded[policies["ar"][0]], decoded[policies["lossless"][0]], strict=True)
    figures["lossless_equal"] = exact(float(np.mean([a.tokens == b.tokens for a, b in pairs])), "share")
    return figures
