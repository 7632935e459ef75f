"""Python's logging on the console that shows the progress, so that a message does not break a bar."""

from __future__ import annotations

import logging
import os

from rich.console import Console
from rich.logging import RichHandler


def setup_logging(console: Console | None = None, level: int = logging.WARNING) -> None:
    """Send the log of ``dgr2`` to the console; calling it again replaces the earlier destination.

    Bars of Hugging Face libraries that are not imported yet stay away: a command has its own.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    handler = RichHandler(console=console or Console(stderr=True), show_path=False, markup=False)
    logger = logging.getLogger("dgr2")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
