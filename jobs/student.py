"""Which student of a run goes out: the newest good one, those that fit the run's configuration first."""

from __future__ import annotations

import logging

from dgr2.jobs.run import current_fingerprint
from dgr2.serving.location import students
from dgr2.serving.reranker import Reranker, load_newest
from dgr2.storage import RunFolder

log = logging.getLogger(__name__)


def best_student(run: RunFolder, max_history: int) -> Reranker:
    """The newest student that loads and answers; one that is out of date only when there is no other.

    Raises:
        StorageError: there is none.
    """
    finished = students(run)
    current = [stage for stage in finished if is_current(run, stage)]
    student = load_newest(run, max_history, current + [stage for stage in finished if stage not in current])
    if student.name not in current:
        log.warning("'%s' is out of date: dgr2 %s --run %s", student.name, student.name, run.path)
    return student


def is_current(run: RunFolder, stage: str) -> bool:
    """Whether a stage was made from what the run's configuration says now."""
    state = run.stage_state(stage)
    try:
        return state is not None and state.fingerprint == current_fingerprint(run, run.config(), stage)
    except FileNotFoundError:  # the input data is elsewhere by now, and cannot be compared
        return True
