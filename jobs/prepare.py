"""Stage ``prepare``: interactions in; tokenizer, training lists with traces and held-out lists out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from dgr2.config.schema import Config
from dgr2.data.crossfit import Fold, cross_fit, cross_fitted_experts, fit_expert, raw_features
from dgr2.data.evidence import Buckets, shown_features
from dgr2.data.instances import InstanceBuilder
from dgr2.data.lists import Part, held_out_columns, training_columns
from dgr2.data.midtrain import midtrain_rows
from dgr2.data.output import write_catalogue, write_dataset, write_instances
from dgr2.data.prompt import TokenTable
from dgr2.data.reading import HistoryReader
from dgr2.data.retrieval import Retriever
from dgr2.data.semantic_ids import SemanticIds, build_semantic_ids
from dgr2.data.source import Source, load_source
from dgr2.data.splits import interaction_matrix, training_part
from dgr2.data.statistics import ItemTable, Statistics
from dgr2.data.summary import summarise
from dgr2.data.tokenizer import build_tokenizer
from dgr2.data.traces import Grades, TraceWriter
from dgr2.storage import atomic_dir, write_json

if TYPE_CHECKING:
    from dgr2.jobs.run import StageContext

logger = logging.getLogger(__name__)


def prepare(ctx: StageContext) -> dict[str, Any]:
    """Write ``data/`` and ``tokenizer/`` of the run; returns the figures of ``data/summary.json``."""
    source = load_source(ctx.config)
    steps = ctx.config.data.folds + 5
    with ctx.progress.task("prepare", total=steps) as task, atomic_dir(ctx.run.data) as folder:
        return build(source, ctx.config, folder, ctx.run.tokenizer, lambda: task.advance(1))


def build(
    source: Source, config: Config, folder: Path, tokenizer_folder: Path, advance: Callable[[], None]
) -> dict[str, Any]:
    """All of the stage, for a given source."""
    training = training_part(source.sequences)
    items = ItemTable.build(source.items)

    interactions = interaction_matrix(training, len(source.items))
    ids = build_semantic_ids(source.items, interactions, config.semantic_ids, config.seed)
    tokenizer = build_tokenizer(source.items, config)
    tokens = TokenTable.build(source.items, ids.codes, tokenizer, config)
    advance()

    folds = cross_fit(training, items, config, advance)
    builder, fold_builders = fit_builders(training, items, folds, tokens, config)
    advance()

    writer = TraceWriter(tokens, config.grid, config.traces.evidence)
    parts = training_columns(folds, fold_builders, writer, config)
    advance()
    for part in ("valid", "test"):
        parts[part] = held_out_columns(source, part, builder, writer, config)
    advance()

    rng = np.random.default_rng([config.seed, 15])
    midtrain = midtrain_rows(source.items, training, tokens, tokenizer, rng)
    summary = summarise(source, ids, parts)
    write_all(source, ids, parts, midtrain, builder, tokenizer, config, folder, tokenizer_folder)
    write_json(folder / "summary.json", summary)
    advance()
    return summary


def fit_builders(
    training: list[list[int]], items: ItemTable, folds: list[Fold], tokens: TokenTable, config: Config
) -> tuple[InstanceBuilder, list[InstanceBuilder]]:
    """The builder of the held-out lists and of serving, and one a fold for its training lists."""
    expert, seed = config.expert, config.seed
    present = [fold.candidates.items > 0 for fold in folds]
    values = np.concatenate([fold.features[there] for fold, there in zip(folds, present, strict=True)])
    buckets = Buckets.fit(values, config.prompt.buckets)

    def shown(fold: Fold) -> np.ndarray:
        return shown_features(buckets.apply(fold.features))

    grading = replace(expert, depth=config.traces.grader_depth)
    graders = cross_fitted_experts(folds, shown, grading, seed)
    scores = [
        np.where(there, grader.score(shown(fold)), -np.inf)
        for fold, there, grader in zip(folds, present, graders, strict=True)
    ]
    grades = Grades.fit(np.concatenate(scores), config.traces.grades)
    room = HistoryReader.room_on(config.grid, config.data.candidates, config.traces.evidence)
    reader = HistoryReader.build(tokens, items, config.prompt.history, room)
    final = InstanceBuilder(
        Retriever.fit(training, len(items.leaf) - 1, config.retrieval),
        Statistics.fit(training, items),
        items,
        fit_expert(folds, raw_features, expert, seed),
        buckets,
        fit_expert(folds, shown, grading, seed),
        grades,
        tokens,
        reader,
    )
    # a fold's lists only need its grader: the expert's order is a row of the report, not a target
    of_folds = [
        InstanceBuilder(
            fold.retriever, fold.statistics, items, final.expert, buckets, grader, grades, tokens, reader
        )
        for fold, grader in zip(folds, graders, strict=True)
    ]
    return final, of_folds


def write_all(
    source: Source,
    ids: SemanticIds,
    parts: dict[str, Part],
    midtrain: list[list[int]],
    builder: InstanceBuilder,
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    folder: Path,
    tokenizer_folder: Path,
) -> None:
    """Everything that later stages read."""
    write_catalogue(source, ids, folder)
    for name, part in parts.items():
        write_instances(part.columns, folder / "instances" / name)
    write_dataset({"input_ids": midtrain}, folder / "midtrain")
    builder.save(folder, config.retrieval)
    with atomic_dir(tokenizer_folder) as temporary:
        tokenizer.save_pretrained(temporary)
