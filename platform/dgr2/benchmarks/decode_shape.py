"""Speed of decoding by a model's shape alone: random weights, a fixed number of tokens a forward.

How many tokens a forward commits is what training reaches (``dgr2 bench decode --run``); what that is worth
on a device and at a model's size is measured here.
"""

from __future__ import annotations

from dgr2.benchmarks.compiled import compiled_figures
from dgr2.benchmarks.figures import Figures, Summary, exact
from dgr2.benchmarks.forwards import forward_figures
from dgr2.benchmarks.shapes import LABELS, find_device, find_shape, words
from dgr2.config.schema import Config, GridConfig
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy, ar_policy
from dgr2.evaluation.engine import Engine
from dgr2.evaluation.speed import time_in_turns

PROMPT, GRID = 192, GridConfig()
"""Tokens of a prompt and the response's grid: the demo's."""
BATCHES = (1, 4, 16)


def bench_decode_shape(shape: str, device: str, tokens: int, repeats: int, summary: Summary) -> Figures:
    """AR decoding against blocks of 16 that commit ``tokens`` tokens beside the anchor in every forward."""
    model, vocabulary = find_shape(shape).build(summary.seed, find_device(device))
    decoder = Decoder(model, vocabulary, GRID)
    engine = Engine(decoder, vocabulary, Config(seed=summary.seed))
    prompts: list[list[int]] = words((max(BATCHES), PROMPT), vocabulary, summary.seed).tolist()
    counts = [LABELS] * len(prompts)
    policies = {
        "ar": ar_policy(permutation=False),
        "decode": DecodePolicy("native", GRID.block_size, tokens, "threshold", tokens, commit="static"),
    }
    figures: Figures = {}
    for batch in BATCHES:
        timed = time_in_turns(engine, prompts[:batch] * repeats, counts[:batch] * repeats, policies, batch)
        for name, timing in timed.items():
            figures[f"{name}_tokens_per_second_b{batch}"] = summary.median(timing.rates, "tokens/s")
        figures[f"decode_speedup_b{batch}"] = summary.ratio(timed["decode"].rates, timed["ar"].rates)
        figures |= compiled_figures(
            decoder,
            prompts[:batch] * repeats,
            counts[:batch] * repeats,
            {name: (policy, "ar") for name, policy in policies.items()},
            batch,
            summary,
        )
    (decoded,) = decoder.decode(prompts[:1], counts[:1], policies["decode"])
    figures["decode_tokens_per_forward"] = exact(len(decoded.tokens) / decoded.forwards, "tokens")
    few = min(repeats, len(prompts))
    return figures | forward_figures(decoder, prompts[:few], counts[:few], policies, summary)
