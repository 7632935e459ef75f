"""What compiling the forwards is worth: a compiled decoder against the same one without, timed in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from dgr2.benchmarks.figures import Figures, Summary
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy
from dgr2.errors import ConfigError
from dgr2.telemetry import time_turns


def compiled_figures(
    decoder: Decoder,
    prompts: Sequence[list[int]],
    counts: Sequence[int],
    policies: Mapping[str, DecodePolicy],
    batch_size: int,
    summary: Summary,
) -> Figures:
    """By policy, seconds as they are over seconds compiled; and the last policy over the first, compiled.

    Nothing where nothing could compile.
    """
    alignment = "shift" if decoder.shift else "in_place"
    compiled = Decoder(decoder.model, decoder.vocabulary, decoder.grid, alignment)
    try:
        compiled.compile()
    except ConfigError:
        return {}
    batches = [slice(i, i + batch_size) for i in range(0, len(prompts) - batch_size + 1, batch_size)]

    def decode(by: Decoder, policy: DecodePolicy, turn: int) -> object:
        return by.decode(prompts[batches[turn]], counts[batches[turn]], policy, batch_size)

    ways = {"eager": decoder, "compiled": compiled}
    timed = time_turns(
        {f"{way}_{name}": partial(decode, by, p) for name, p in policies.items() for way, by in ways.items()},
        len(batches),
    )
    figures: Figures = {
        f"{name}_compiled_b{batch_size}": summary.ratio(
            timed[f"eager_{name}"].seconds, timed[f"compiled_{name}"].seconds
        )
        for name in policies
    }
    first, *_, last = (timed[f"compiled_{name}"].seconds for name in policies)
    return figures | {f"compiled_speedup_b{batch_size}": summary.ratio(first, last)}
