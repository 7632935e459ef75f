"""Markers that need more than Python, and the rule that CI skips nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BEAUTY = ROOT.parent / "shared" / "data" / "beauty"

# Ray's default depends on how it is started; with it, a local start writes a token into the home folder.
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def _missing(marker: str) -> str | None:
    """Why a test with this marker cannot run on this machine."""
    if marker == "beauty" and not (BEAUTY / "sequences.txt.gz").is_file():
        return f"no Amazon Beauty in {BEAUTY}"
    if marker == "browser" and not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        return "no Chromium on the path"
    if marker == "compiler" and shutil.which("g++") is None:
        return "no C++ compiler on the path"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in list(item.iter_markers()):
            reason = _missing(marker.name)
            if reason:
                item.add_marker(pytest.mark.skipif(True, reason=reason))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if skipped and os.environ.get("CI") == "true":
        reporter.write_line(f"\nCI skips nothing, and {len(skipped)} tests were skipped", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def beauty() -> Path:
    """Folder of Amazon Beauty, for tests marked ``beauty``."""
    return BEAUTY
