"""``python -m dgr2.jobs``: the command line where no script is installed, as in a job's working directory."""

from __future__ import annotations

from dgr2.jobs.cli import app

app(prog_name="dgr2")
