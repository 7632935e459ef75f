"""A shop small enough to prepare in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dgr2.config.schema import Config
from dgr2.data.source import Source, load_source
from dgr2.jobs.prepare import build


@dataclass(frozen=True)
class Prepared:
    """A prepared shop: where its files are and what it was made from."""

    data: Path
    tokenizer: Path
    source: Source
    config: Config
    summary: dict


def tiny_config() -> Config:
    config = Config()
    config.data = replace(config.data, users=300, items=60, candidates=6, folds=3)
    config.expert = replace(config.expert, trees=8)
    config.semantic_ids = replace(config.semantic_ids, codes=8, dimensions=12)
    config.tokenizer.vocabulary = 700
    config.grid.block_size = 12
    config.cft.block_curriculum = [4, 12]
    return config


@pytest.fixture(scope="session")
def prepare_source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Source, Config], Prepared]:
    def run(source: Source, config: Config) -> Prepared:
        folder = tmp_path_factory.mktemp("run")
        data, tokenizer = folder / "data", folder / "tokenizer"
        data.mkdir()
        return Prepared(data, tokenizer, source, config, build(source, config, data, tokenizer, lambda: None))

    return run


@pytest.fixture(scope="session")
def prepared(prepare_source: Callable[[Source, Config], Prepared]) -> Prepared:
    config = tiny_config()
    return prepare_source(load_source(config), config)
