"""What compiling the forwards is worth: a compiled decoder against the same one without, timed in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from dgr2.benchmarks.figures import Figures, Summary
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy
from dgr2.errors import ConfigError
from dgr2.evaluation.speed import full_batches
from dgr2.telemetry import time_turns


def compiled_figures(
    decoder: Decoder,
    prompts: Sequence[list[int]],
    counts: Sequence[int],
    policies: Mapping[str, tuple[DecodePolicy, str]],
    batch_size: int,
    summary: Summary,
) -> Figures:
    """Seconds as they are over seconds compiled, and speed-ups with both sides compiled.

    Nothing where nothing could compile.

    Args:
        policies: By name, with the name of the one that the speed-up is over.
    """
    compiled = Decoder.of(decoder)
    try:
        compiled.compile()
    except ConfigError:
        return {}
    batches = full_batches(len(prompts), batch_size)

    def decode(by: Decoder, policy: DecodePolicy, turn: int) -> object:
        return by.decode(prompts[batches[turn]], counts[batches[turn]], policy, batch_size)

    calls = {
        (by, name): partial(decode, by, policy)
        for name, (policy, _) in policies.items()
        for by in (decoder, compiled)
    }
    seconds = {call: turns.seconds for call, turns in time_turns(calls, len(batches)).items()}
    figures: Figures = {}
    for name, (_, baseline) in policies.items():
        spent = seconds[compiled, name]
        figures[f"{name}_compiled_b{batch_size}"] = summary.ratio(seconds[decoder, name], spent)
        if name != baseline:
            ratio = summary.ratio(seconds[compiled, baseline], spent)
            figures[f"{name}_compiled_speedup_b{batch_size}"] = ratio
    return figures
