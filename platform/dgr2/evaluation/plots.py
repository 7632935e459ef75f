"""The three pictures of a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_PANELS = (("recall@1", "Recall@1"), ("recall@3", "Recall@3"), ("ndcg@3", "NDCG@3"))
_BLUE, _ORANGE, _GREY = "#2f6db3", "#d9792b", "#8a8f98"


def write_plots(report: Mapping, folder: Path, swept: str) -> list[Path]:
    """Write ``metrics``, ``validity`` and, where a sweep was made, ``sweep`` of the row ``swept``."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"metrics": _metrics(report), "validity": _validity(report)}
    if report["sweep"]:
        figures["sweep"] = _sweep(report, swept)
    paths = []
    for name, figure in figures.items():
        FigureCanvasAgg(figure)
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=130)
    return paths


def _metrics(report: Mapping) -> Figure:
    """A panel a metric, a bar a row, with its interval; the oracle as a line."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels = figure.subplots(1, len(_PANELS))
    names = [stage["name"] for stage in report["stages"]]
    for axes, (metric, title) in zip(panels, _PANELS, strict=True):
        measured = [stage["metrics"][metric] for stage in report["stages"]]
        values = [m["value"] for m in measured]
        below = [m["value"] - m["ci95"][0] for m in measured]
        above = [m["ci95"][1] - m["value"] for m in measured]
        colours = [_BLUE if stage["decode"] else _GREY for stage in report["stages"]]
        axes.bar(range(len(names)), values, yerr=[below, above], color=colours, capsize=3, width=0.7)
        if report["oracle"]:
            best = report["oracle"][metric]
            axes.axhline(best, color=_ORANGE, linestyle="--", linewidth=1.2)
            axes.set_ylim(0, max(best, *values) * 1.15)
            axes.annotate(
                "oracle", (1, best), xycoords=("axes fraction", "data"), xytext=(-3, 3),
                textcoords="offset points", color=_ORANGE, fontsize=8, ha="right",
            )  # fmt: skip
        _finish(axes, title, names)
    figure.suptitle(f"Ranking by row, {report['instances']} test instances, 95 % intervals", fontsize=11)
    return figure


def _validity(report: Mapping) -> Figure:
    """Native and policy validity of every decoded row."""
    stages = [stage for stage in report["stages"] if stage["decode"]]
    figure = Figure(figsize=(1.6 * len(stages) + 2.5, 4), layout="constrained")
    axes = figure.subplots()
    for shift, how, colour in ((-0.2, "native", _BLUE), (0.2, "policy", _ORANGE)):
        values = [stage["validity"][how] for stage in stages]
        places = [i + shift for i in range(len(stages))]
        axes.bar(places, values, width=0.38, color=colour, label=how)
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                f"{value:.3f}", (place, value), xytext=(0, 2),
                textcoords="offset points", ha="center", fontsize=8,
            )  # fmt: skip
    axes.set_ylim(0, 1.18)
    axes.legend(loc="upper center", ncols=2, frameon=False)
    _finish(axes, "Share of answers that are permutations of the candidates", [s["name"] for s in stages])
    return figure


def _sweep(report: Mapping, swept: str) -> Figure:
    """Recall@1 and validity against tokens a second; a point a threshold."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    accuracy, validity = figure.subplots(1, 2)
    points = sorted(report["sweep"], key=lambda point: point["threshold"])
    speed = [point["tokens_per_second"] for point in points]
    recall = [point["metrics"]["recall@1"] for point in points]
    values = [r["value"] for r in recall]
    errors = [
        [r["value"] - r["ci95"][0] for r in recall],
        [r["ci95"][1] - r["value"] for r in recall],
    ]
    label = "native, one τ (its label) for trace and answer"
    line = {"fmt": "o-", "color": _BLUE, "capsize": 3, "label": label}
    accuracy.errorbar(speed, values, yerr=errors, **line)
    validity.errorbar(speed, [point["validity"] for point in points], **line)
    for place, i in enumerate(np.argsort(speed)):
        low, high = recall[i]["ci95"]
        above = place % 2 == 0  # neighbours apart
        side = 1 if above else -1
        text = {"text": f"{points[i]['threshold']:g}", "textcoords": "offset points", "fontsize": 8}
        text["va"] = "bottom" if above else "top"
        accuracy.annotate(
            xy=(speed[i], high if above else low), xytext=(0, 6 * side), ha="center", rotation=90, **text
        )
        # the curve falls: free of it to the upper right and to the lower left
        validity.annotate(
            xy=(speed[i], points[i]["validity"]), xytext=(3 * side, 3 * side),
            ha="left" if above else "right", **text,
        )  # fmt: skip
    for name, marker, colour, label in (
        (swept, "*", _ORANGE, "as shipped, all instances"),
        (f"{swept}_ar", "s", _GREY, "its AR mode, all instances"),
    ):
        stage = next((s for s in report["stages"] if s["name"] == name), None)
        if stage:
            at = stage["decode"]["tokens_per_second"]
            style = {"marker": marker, "color": colour, "linestyle": "none", "markersize": 11, "label": label}
            accuracy.plot([at], [stage["metrics"]["recall@1"]["value"]], **style)
            validity.plot([at], [stage["validity"]["policy"]], **style)
    validity.set_ylim(0, 1.2)
    for axes, title in ((accuracy, "Recall@1"), (validity, "Validity")):
        axes.margins(x=0.12, y=0.15)
        axes.set_xlim(left=0)
        axes.set_xlabel("tokens/s at batch 1")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    validity.legend(frameon=False, fontsize=8, loc="lower left")
    figure.suptitle(
        f"{swept}: accuracy against speed over the threshold τ, {points[0]['n']} instances", fontsize=11
    )
    return figure


def _finish(axes: Axes, title: str, names: list[str]) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=8)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
