"""Benchmarks: speed as ratios of one process, accuracy beside it."""

from dgr2.benchmarks.figures import Figures, Summary

__all__ = ["Figures", "Summary"]
