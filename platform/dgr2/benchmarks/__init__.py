"""Benchmarks: what is compared alternates in one process, so that a slow moment slows every side."""

from dgr2.benchmarks.turns import Figures, figure, time_turns

__all__ = ["Figures", "figure", "time_turns"]
