"""Diffusion-GR2: a reasoning re-ranker that thinks and answers in blocks."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dgr2")
except PackageNotFoundError:  # the merged tree as a cluster's working_dir, not installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
