"""The package tree that a cluster runs: the merged ``dgr2`` and nothing beside it.

From a checkout it is what pip would install (``pip install --no-deps --target``), built from a copy of the
source folders, so that neither a stale ``build/`` gets in nor a new one is left behind; from an installed
package it is a copy of that package. The tree of the same sources is the same byte for byte: Ray keeps an
upload by its content.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dgr2
from dgr2.errors import UserError

FILES = ("pyproject.toml", "README.md")
FOLDERS = ("platform", "jobs", "actors", "cluster", "dashboards")
LIMIT = 32 * 2**20  # bytes; Ray's dashboard takes 100 MiB, and the package is well under one
PIP_TIMEOUT_S = 300
NO_CACHES = shutil.ignore_patterns("__pycache__", "*.pyc")


@dataclass(frozen=True)
class StagedTree:
    """A tree ready to be a job's working directory.

    Attributes:
        path: folder that holds ``dgr2/``; gone after the block that made it.
        digest: of names and contents.
        size: bytes.
    """

    path: Path
    digest: str
    size: int


def checkout() -> Path | None:
    """Root of the source checkout that this process runs from, None for an installed package."""
    root = Path(dgr2.__file__).resolve().parents[2]
    is_source = (root / "pyproject.toml").is_file() and (root / "platform" / "dgr2").is_dir()
    return root if is_source else None


@contextmanager
def staged_tree(source: Path | None = None) -> Iterator[StagedTree]:
    """The package tree in a temporary folder.

    Args:
        source: root of a checkout; by default the code of this process.

    Raises:
        UserError: the tree could not be built, or is too large to be code alone.
    """
    with tempfile.TemporaryDirectory(prefix="dgr2-stage-") as temporary:
        tree = Path(temporary) / "tree"
        tree.mkdir()
        root = source or checkout()
        if root is None:
            _copy_installed(tree)
        else:
            _install(root, Path(temporary) / "source", tree)
        _strip(tree)
        yield StagedTree(tree, _digest(tree), require_size(tree))


def require_size(tree: Path, limit: int = LIMIT) -> int:
    """Bytes of a tree.

    Raises:
        UserError: more than ``limit``, with the largest files.
    """
    sizes = {file: file.stat().st_size for file in _files(tree)}
    total = sum(sizes.values())
    if total > limit:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
        named = ", ".join(f"{f.relative_to(tree)} ({sizes[f] / 2**20:.1f} MiB)" for f in largest)
        raise UserError(
            f"the package tree has {total / 2**20:.1f} MiB, more than the {limit / 2**20:.1f} MiB that are "
            f"sent to a cluster; largest: {named}: keep data out of the package"
        )
    return total


def _install(root: Path, copy: Path, tree: Path) -> None:
    copy.mkdir()
    for name in FILES:
        shutil.copy(root / name, copy / name)
    for name in FOLDERS:
        shutil.copytree(root / name, copy / name, ignore=NO_CACHES)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-compile",
        "--target",
        str(tree),
    ]
    if importlib.util.find_spec("setuptools"):  # no need to fetch it again
        command += ["--no-build-isolation", "--no-index"]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    done = subprocess.run(
        [*command, str(copy)], env=environment, capture_output=True, text=True, timeout=PIP_TIMEOUT_S
    )
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UserError(f"pip could not install {root} into a staging folder: {last}")


def _copy_installed(tree: Path) -> None:
    package = Path(dgr2.__file__).resolve().parent
    shutil.copytree(package, tree / "dgr2", ignore=NO_CACHES)
    for record in package.parent.glob("dgr2-*.dist-info"):
        shutil.copytree(record, tree / record.name)


def _strip(tree: Path) -> None:
    """Drop what belongs to this machine: scripts, and how pip came by the package."""
    shutil.rmtree(tree / "bin", ignore_errors=True)
    for record in tree.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"):
            (record / name).unlink(missing_ok=True)


def _files(tree: Path) -> list[Path]:
    return sorted(p for p in tree.rglob("*") if p.is_file())


def _digest(tree: Path) -> str:
    digest = hashlib.sha256()
    for file in _files(tree):
        digest.update(f"{file.relative_to(tree).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
