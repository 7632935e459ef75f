"""The picture of ``dgr2 bench decode``: speed-up by batch and block size, accuracy against speed-up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dgr2.benchmarks.figures import Figures

_LINES = {
    "decode": ("as shipped", "#2f6db3", "o"),
    "native": ("native", "#7a5ea8", "^"),
    "follow_load": ("as served, by load", "#3a9a6a", "s"),
    "readout": ("readout, over AR with readout", "#d9792b", "D"),
}


def write_decode_plot(figures: Figures, path: Path) -> None:
    """Write the picture as PNG."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    by_batch, by_block, by_accuracy = figure.subplots(1, 3)
    for name, (label, colour, marker) in _LINES.items():
        _line(by_batch, figures, rf"{name}_speedup_b(\d+)", label, colour, marker)
    _line(by_batch, figures, r"decode_vs_hf_b(\d+)", "as shipped, over Hugging Face", "#8a8f98", "v")
    _finish(by_batch, "Speed-up over AR decoding by batch size", "rows decoded together", logarithmic=True)
    by_batch.legend(frameon=False, fontsize=8)
    for batch, colour in ((1, "#2f6db3"), (16, "#d9792b")):
        _line(by_block, figures, rf"decode_block(\d+)_speedup_b{batch}", f"batch {batch}", colour, "o")
    _finish(by_block, "As shipped, by block size", "tokens a block", logarithmic=True)
    by_block.legend(frameon=False, fontsize=8)
    _accuracy(by_accuracy, figures)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=130)


def _line(axes: Axes, figures: Figures, pattern: str, label: str, colour: str, marker: str) -> None:
    found = sorted(
        (int(match[1]), figure) for name, figure in figures.items() if (match := re.fullmatch(pattern, name))
    )
    values, errors = _bars([f for _, f in found])
    places = [x for x, _ in found]
    axes.errorbar(places, values, yerr=errors, color=colour, marker=marker, capsize=3, label=label)
    axes.set_xticks(places)


def _bars(found: Sequence[Mapping[str, float | str]]) -> tuple[list[float], list[list[float]]]:
    """Values, and how far their intervals reach below and above."""
    values, low, high = ([float(f[key]) for f in found] for key in ("value", "low", "high"))
    below, above = (np.subtract(a, b).tolist() for a, b in ((values, low), (high, values)))
    return values, [below, above]


def _accuracy(axes: Axes, figures: Figures) -> None:
    """Recall@1 against the speed-up at batch 1: native by tau, as shipped, and AR decoding."""
    end = "_speedup_b1"
    taus = sorted(n.removesuffix(end) for n in figures if n.startswith("native_tau") and n.endswith(end))
    for names, colour, label in (
        (taus, "#7a5ea8", "native, one τ (its label) for trace and answer"),
        (["decode"], "#2f6db3", "as shipped"),
        (["ar"], "#8a8f98", "AR decoding"),
    ):
        speed = [float(figures[f"{n}_speedup_b1"]["value"]) if n != "ar" else 1.0 for n in names]
        recall = [figures[f"{n}_recall@1"] for n in names]
        values, errors = _bars(recall)
        axes.errorbar(speed, values, yerr=errors, fmt="o", color=colour, capsize=3, label=label)
        points = sorted(zip(names, speed, recall, strict=True), key=lambda point: point[1])
        for place, (name, x, r) in enumerate(points):
            if name in taus:
                side = 1 if place % 2 == 0 else -1  # neighbours apart
                axes.annotate(
                    name.removeprefix("native_tau"), (x, float(r["high" if side > 0 else "low"])),
                    xytext=(0, 3 * side), textcoords="offset points", fontsize=8, rotation=90, ha="center",
                    va="bottom" if side > 0 else "top",
                )  # fmt: skip
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    axes.margins(x=0.12, y=0.25)
    _finish(axes, "Recall@1 against speed-up, batch 1", "speed-up over AR decoding")


def _finish(axes: Axes, title: str, below: str, logarithmic: bool = False) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(below)
    if logarithmic:
        ticks = axes.get_xticks()
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.axhline(1, color="#8a8f98", linewidth=1, linestyle="--")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
