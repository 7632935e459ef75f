"""Progress of a stage: a bar with the time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

LINE_EVERY_S = 10.0


class Task:
    """One piece of work under way."""

    def __init__(self, progress: Progress, label: str, total: int | None, done: int) -> None:
        self._progress = progress
        self._label, self._total, self._done, self._first = label, total, done, done
        self._figures: dict[str, float] = {}
        self._start = self._said = time.monotonic()
        self._bar = progress.bars.add_task(label, total=total, completed=done, figures="")

    def advance(self, steps: int = 1, **figures: float) -> None:
        """Count steps done and show the latest figures, such as a loss."""
        self._done += steps
        self._figures.update(figures)
        self._progress.bars.update(self._bar, completed=self._done, figures=self._text())
        now = time.monotonic()
        if not self._progress.live and now - self._said >= LINE_EVERY_S:
            self._said = now
            self._progress.console.print(self._line(now), markup=False, highlight=False)

    def close(self) -> None:
        """Stop the clock; without a terminal the last line is said."""
        self._progress.bars.stop_task(self._bar)
        if not self._progress.live:
            self._progress.console.print(self._line(time.monotonic()), markup=False, highlight=False)

    def _text(self) -> str:
        return "  ".join(f"{name} {value:.4g}" for name, value in self._figures.items())

    def _line(self, now: float) -> str:
        spent, fresh = now - self._start, self._done - self._first
        parts = [f"{self._label} {self._done}"]
        if self._total is not None:
            parts[0] += f"/{self._total}"
        parts.append(f"elapsed {_clock(spent)}")
        if self._total is not None and fresh > 0 and self._done < self._total:
            parts.append(f"left {_clock(spent / fresh * (self._total - self._done))}")
        return "  ".join([*parts, self._text()]).rstrip()


class Progress:
    """Shows tasks on a console; use as a context manager around the work."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            speed_estimate_period=60.0,
            disable=not self.live,
        )

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    @contextmanager
    def task(self, label: str, total: int | None = None, done: int = 0) -> Iterator[Task]:
        """A task of ``total`` steps (None: unknown), ``done`` of which were done before."""
        task = Task(self, label, total, done)
        try:
            yield task
        finally:
            task.close()


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
