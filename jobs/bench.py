"""Benchmarks: ``decode`` of a run's student, and ``decode``, ``train`` and ``replay`` of a random model."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from dgr2.benchmarks import Figures, Summary
from dgr2.benchmarks.decode import bench_decode
from dgr2.benchmarks.decode_shape import bench_decode_shape
from dgr2.benchmarks.replay import bench_replay
from dgr2.benchmarks.train import bench_train
from dgr2.config.schema import Config
from dgr2.data.vocabulary import Vocabulary
from dgr2.errors import ConfigError
from dgr2.evaluation.engine import Engine, Engines
from dgr2.evaluation.instances import HeldOut
from dgr2.evaluation.rows import ROWS
from dgr2.storage import RunFolder

BENCHES = ("decode", "train", "replay")


@dataclass(frozen=True)
class Synthetic:
    """What is measured without a run.

    Attributes:
        shape: Model shape.
        repeats: Rounds.
        device: ``cpu`` or ``cuda`` (``decode``).
        tokens: Tokens that a forward of ``decode`` commits beside the anchor.
    """

    shape: str
    repeats: int
    device: str
    tokens: int


def bench(
    what: str, run: RunFolder | None, config: Config, synthetic: Synthetic, console: Console
) -> Figures:
    """Measure ``what`` and print it.

    Args:
        run: Run folder whose latest student is measured (``decode``).

    Raises:
        ConfigError: nothing is called so, or the run lacks what it measures.
    """
    if what not in BENCHES:
        raise ConfigError(f"there is no benchmark '{what}'; choose one of {', '.join(BENCHES)}")
    if run is not None:
        if what != "decode":
            raise ConfigError(f"'{what}' measures a model of --shape, not a run: leave --run out")
        figures = bench_decode(latest_student(run, config), HeldOut.load(run.data))
    else:
        summary, shape, repeats = Summary.of(config), synthetic.shape, synthetic.repeats
        if what == "decode":
            figures = bench_decode_shape(shape, synthetic.device, synthetic.tokens, repeats, summary)
        else:
            figures = {"train": bench_train, "replay": bench_replay}[what](shape, repeats, summary)
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
