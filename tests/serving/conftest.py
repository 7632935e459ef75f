"""A prepared shop with students of random weights: fast to make, and wrong in every answer they give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from dgr2.config import Config, load_config
from dgr2.data.source import load_source
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.shipped import Shipped
from dgr2.jobs.prepare import build
from dgr2.jobs.run import current_fingerprint
from dgr2.models.backbone import build_model, save_model
from dgr2.storage import RunFolder

SETTINGS = [
    "data.users=300", "data.items=60", "data.candidates=6", "data.folds=3", "expert.trees=8",
    "semantic_ids.codes=8", "semantic_ids.dimensions=12", "tokenizer.vocabulary=700", "grid.block_size=12",
    "cft.block_curriculum=[4,12]", "model.hidden=32", "model.layers=2", "model.mlp=48", "model.context=256",
    "serve.max_history=50", "serve.max_batch_size=8", "serve.batch_wait_ms=20",
    "model.heads=4", "model.kv_heads=2", "ray.num_workers=1", "ray.timeout_s=250",
]  # fmt: skip


@pytest.fixture(scope="session")
def config() -> Config:
    return load_config("demo", SETTINGS)


@pytest.fixture(scope="module")
def prepared_run(tmp_path_factory: pytest.TempPathFactory, config: Config) -> RunFolder:
    """A run after ``prepare``."""
    run = RunFolder.create_or_open(tmp_path_factory.mktemp("serving") / "a run", config)
    summary = build(load_source(config), config, run.data, run.tokenizer, lambda: None)
    run.finish_stage("prepare", "prepared", 1.0, summary)
    return run


@pytest.fixture(scope="session")
def add_student(config: Config) -> Callable[..., Path]:
    """Writes a student of random weights into a run."""

    def add(run: RunFolder, stage: str, policy: str = "prefix", seed: int = 0) -> Path:
        tokenizer = AutoTokenizer.from_pretrained(run.tokenizer, local_files_only=True)
        vocabulary = Vocabulary.from_tokenizer(tokenizer, config.data.candidates)
        folder = run.checkpoint(stage)
        save_model(build_model(config.model, vocabulary, seed), folder, tokenizer)
        shipped = Shipped.of(config)
        Shipped(
            shipped.grid, replace(shipped.decode, answer_policy=policy), shipped.alignment, shipped.candidates
        ).save(folder)
        made_from = current_fingerprint(run, config, stage) if stage == "cft" else stage
        run.finish_stage(stage, made_from, 1.0, {"loss": 1.0})
        return folder

    return add


@pytest.fixture(scope="module")
def served_run(prepared_run: RunFolder, add_student: Callable[..., Path]) -> RunFolder:
    """A run with a student whose rules keep every answer a permutation."""
    add_student(prepared_run, "cft")
    return prepared_run
