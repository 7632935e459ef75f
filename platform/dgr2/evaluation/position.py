"""Position bias: does the ranking follow the items or where and under which letter they stand?

Two controlled changes to the same requests. *Shuffled*: candidates stand in random order, so place and
label of every item change. *Relabelled*: places stay, the letters are permuted among them. A ranker free of
position bias would put the same item first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dgr2.data.instances import InstanceBuilder
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.policy import DecodePolicy
from dgr2.evaluation.bootstrap import generator, mean_intervals
from dgr2.evaluation.engine import Engine, OnDone
from dgr2.evaluation.instances import HeldOut


@dataclass(frozen=True)
class Variant:
    """Changed requests, and how to read their answers."""

    held_out: HeldOut
    places: list[list[int]]
    """For every instance and label position of the changed request, the candidate's original position."""


def shuffled(held_out: HeldOut, builder: InstanceBuilder, seed: int) -> Variant:
    """Candidates in random order, prompts rendered anew; first-stage scores stay with their items."""
    places = _permutations(held_out, seed, "shuffled")
    candidates = [[row[i] for i in p] for row, p in zip(held_out.candidates, places, strict=True)]
    scores = [[row[i] for i in p] for row, p in zip(held_out.scores, places, strict=True)]
    prompts = [i.prompt_ids for i in builder.build(held_out.histories, candidates, scores)]
    return Variant(replace(held_out, candidates=candidates, scores=scores, prompts=prompts), places)


def relabelled(held_out: HeldOut, vocabulary: Vocabulary, seed: int) -> Variant:
    """Labels permuted among the candidates of the rendered prompt, places kept."""
    places = _permutations(held_out, seed, "relabelled")
    prompts = []
    for prompt, place in zip(held_out.prompts, places, strict=True):
        new_label = {vocabulary.labels[old]: vocabulary.labels[new] for new, old in enumerate(place)}
        prompts.append([new_label.get(token, token) for token in prompt])
    return Variant(replace(held_out, prompts=prompts), places)


def position_check(
    engine: Engine,
    held_out: HeldOut,
    first: Sequence[int],
    variants: Mapping[str, Variant],
    policy: DecodePolicy,
    on_done: OnDone | None = None,
) -> dict[str, dict]:
    """Decode every variant of ``held_out`` and compare recall@1, paired, with the requests as given.

    ``first`` is the position of the candidate that the same policy put first as given.
    """
    targets, given = np.array(held_out.targets), np.array(first)
    report = {}
    for name, variant in variants.items():
        changed = variant.held_out
        decoded = engine.decode(changed.prompts, changed.counts, policy, on_done)
        answers = [engine.parse(t, n, native=False) for t, n in zip(decoded, changed.counts, strict=True)]
        picked = np.array([p[a.ranking[0]] for p, a in zip(variant.places, answers, strict=True)])
        hits, base = (picked == targets).astype(float), (given == targets).astype(float)
        recall, delta = mean_intervals(
            np.stack([hits, hits - base], axis=1), engine.config.evaluation.bootstrap, engine.config.seed
        )
        report[name] = {
            "recall@1": recall.as_json(),
            "recall@1_as_given": float(base.mean()),
            "delta": delta.as_json(),
            "same_first": float((picked == given).mean()),
            "validity": float(np.mean([answer.valid for answer in answers])),
            "n": len(changed),
        }
    return report


def _permutations(held_out: HeldOut, seed: int, stream: str) -> list[list[int]]:
    rng = generator(seed, stream)
    return [rng.permutation(n).tolist() for n in held_out.counts]
