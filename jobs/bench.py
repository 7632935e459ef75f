"""Benchmarks: ``dgr2 bench decode --run DIR``, and ``train`` and ``replay`` on synthetic shapes."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from dgr2.benchmarks import Figures, Summary
from dgr2.benchmarks.decode import bench_decode
from dgr2.benchmarks.replay import bench_replay
from dgr2.benchmarks.train import bench_train
from dgr2.config.schema import Config
from dgr2.data.vocabulary import Vocabulary
from dgr2.errors import ConfigError
from dgr2.evaluation.engine import Engine, Engines
from dgr2.evaluation.instances import HeldOut
from dgr2.evaluation.rows import ROWS
from dgr2.storage import RunFolder

SYNTHETIC = {"train": bench_train, "replay": bench_replay}
BENCHES = ("decode", *SYNTHETIC)


def bench(
    what: str, run: RunFolder | None, config: Config, shape: str, repeats: int, console: Console
) -> Figures:
    """Measure ``what`` and print it.

    Args:
        run: Run folder whose latest student is measured (``decode``).
        shape: Model shape of ``train`` and ``replay``.
        repeats: Rounds of ``train`` and ``replay``.

    Raises:
        ConfigError: nothing is called so, or the run lacks what it measures.
    """
    if what in SYNTHETIC:
        if run is not None:
            raise ConfigError(f"'{what}' measures a model of --shape, not a run: leave --run out")
        figures = SYNTHETIC[what](shape, repeats, Summary.of(config))
    elif what == "decode":
        if run is None:
            raise ConfigError("'decode' measures the student of a run: give --run DIR")
        figures = bench_decode(latest_student(run, config), HeldOut.load(run.data))
    else:
        raise ConfigError(f"there is no benchmark '{what}'; choose one of {', '.join(BENCHES)}")
    table = Table("figure", "value", "95 %", "unit", title=f"bench {what}")
    for name, found in figures.items():
        table.add_row(
            name, f"{found['value']:.3f}", f"{found['low']:.3f} – {found['high']:.3f}", str(found["unit"])
        )
    console.print(table)
    return figures


def latest_student(run: RunFolder, config: Config) -> Engine:
    """The engine of the run's latest student.

    Raises:
        ConfigError: it has none.
    """
    trained = [row for row in ROWS if row.mode == "block" and not row.untrained]
    finished = [row.stage for row in trained if run.stage_state(row.stage) is not None]
    if not finished:
        raise ConfigError("this run has no student yet: run the cft stage first")
    tokenizer = AutoTokenizer.from_pretrained(run.tokenizer)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, config.data.candidates)
    return Engines(run, vocabulary, config).get(finished[-1])
