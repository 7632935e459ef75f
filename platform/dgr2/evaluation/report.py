"""The report as people read it: a table and examples for the console, ``report.md`` for the folder."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dgr2.storage import RunFolder, read_json

SHOWN = (("recall@1", "R@1"), ("recall@3", "R@3"), ("ndcg@3", "N@3"))
"""Metrics with a column of their own, and its title."""
_FOLLOWING = 4


def number(value: float) -> str:
    """Three decimals without the leading zero."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def interval(metric: Mapping) -> str:
    """The 95 % interval of a ``{value, ci95}``."""
    low, high = metric["ci95"]
    return f"{number(low)}–{number(high)}"


def print_report(run: RunFolder, console: Console) -> None:
    """Table, examples and paths of an evaluated run."""
    report = read_json(run.path / "report.json")
    console.print(console_table(report))
    console.print(Text(_footnotes(report)), soft_wrap=False)
    for count, example in enumerate(report["examples"], start=1):
        console.print(Text(f"\nExample {count}\n{example_text(example)}"))
    console.print()
    for name, path in (
        ("report", run.path / "report.md"),
        ("figures", run.path / "report.json"),
        ("plots", run.plots),
        ("samples", run.samples),
        ("checkpoints", run.path / "checkpoints"),
        ("metrics", run.metrics_file),
        ("TensorBoard", run.tensorboard),
    ):
        console.print(Text(f"{name:12}{path}"), soft_wrap=True)


def console_table(report: Mapping) -> Table:
    """A row a stage; cells of two lines keep it within 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("row", no_wrap=True)
    for _, title in SHOWN:
        table.add_column(f"{title}\n95 %", justify="right", no_wrap=True)
    for title in (
        "valid\nnative\npolicy",
        "tokens/\nforward\ntrace\nanswer",
        "tokens\na sec.",
        "times\nAR",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for stage in report["stages"]:
        metrics, validity, decode = stage["metrics"], stage["validity"], stage["decode"]
        cells = [f"{number(metrics[m]['value'])}\n{interval(metrics[m])}" for m, _ in SHOWN]
        if decode:
            cells += [
                f"{number(validity['native'])}\n{number(validity['policy'])}",
                f"{decode['tokens_per_forward_trace']:.2f}\n{decode['tokens_per_forward_answer']:.2f}",
                f"{decode['tokens_per_second']:.0f}",
                f"{decode['speedup_vs_ar']:.2f}×",
            ]
        table.add_row(stage["name"], *cells)
    if report["oracle"]:
        table.add_row("oracle", *(number(report["oracle"][m]) for m, _ in SHOWN))
    return table


def example_text(example: Mapping) -> str:
    """A re-ranked request with its reasoning."""
    titles, target = example["candidates"], example["target"]
    lines = ["History: … " + " → ".join(example["history"][-_FOLLOWING:]), "Reasoning:"]
    lines += ["  " + line.strip() for line in example["reasoning"].splitlines() if line.strip()]
    lines.append("Re-ranked (first-stage place in brackets, * what the user took next):")
    for place, candidate in enumerate(example["ranking"], start=1):
        mark = " *" if candidate == target else ""
        lines.append(f"  {place:2}. {titles[candidate]} [{candidate + 1}]{mark}")
    if not example["valid"]:
        lines.append("  (the decoded answer was no permutation; scored as given)")
    return "\n".join(lines)


def _footnotes(report: Mapping) -> str:
    counts = {stage["name"]: stage["instances"] for stage in report["stages"]}
    fewer = ", ".join(f"{name} {n}" for name, n in counts.items() if n < report["instances"])
    lines = [
        f"{report['instances']} test instances" + (f" ({fewer})" if fewer else "") + "; accuracy by policy,"
        " validity of the raw decode; tokens a second and times AR at batch 1, commit forwards counted."
    ]
    for pair in report["paired"]:
        if pair["metric"] == "recall@1" and pair["a"] in ("cft", "ar_teacher"):
            low, high = pair["ci95"]
            lines.append(
                f"R@1 {pair['a']} − {pair['b']}: {pair['delta']:+.3f} [{low:+.3f}, {high:+.3f}] paired"
            )
    for name, check in report["position_bias"].items():
        low, high = check["delta"]["ci95"]
        lines.append(
            f"R@1 with candidates {name}: {check['delta']['value']:+.3f} [{low:+.3f}, {high:+.3f}],"
            f" same item first in {check['same_first']:.0%}"
        )
    return "\n".join(lines)


def markdown(report: Mapping) -> str:
    """``report.md``."""
    lines = [
        f"# Run of preset {report['preset']}, seed {report['seed']}",
        "",
        f"Configuration {report['fingerprint']}, {report['instances']} test instances whose target is among"
        f" the {report['candidates']} candidates, 95 % bootstrap intervals.",
        "",
        *markdown_table(report),
        "",
        "Metrics by policy (as shipped); tokens a forward count prefill and commit forwards; tokens/s and the"
        " speed-up over the AR mode of the same checkpoint are medians at batch 1, prefill included.",
        "",
        "## Validity of the native decode",
        "",
        "| row | valid | duplicate | dropped | out of set | unparsable | R@1 native |",
        "|---|---|---|---|---|---|---|",
    ]
    for stage in report["stages"]:
        if stage["decode"]:
            v = stage["validity"]
            shares = (v["native"], v["duplicate"], v["dropped"], v["out_of_set"], v["unparsable"])
            native = number(stage["metrics_native"]["recall@1"]["value"])
            lines.append(f"| {stage['name']} | {' | '.join(map(number, shares))} | {native} |")
    lines += ["", "## Compared on the same instances", "", "| a − b | metric | difference | 95 % | n |"]
    lines.append("|---|---|---|---|---|")
    for pair in report["paired"]:
        low, high = pair["ci95"]
        lines.append(
            f"| {pair['a']} − {pair['b']} | {pair['metric']} | {pair['delta']:+.3f} |"
            f" {low:+.3f} to {high:+.3f} | {pair['n']} |"
        )
    if report["position_bias"]:
        lines += ["", "## Position bias", ""]
        lines.append("| candidates | R@1 | as given | difference | same first | valid |")
        lines.append("|---|---|---|---|---|---|")
    for name, check in report["position_bias"].items():
        low, high = check["delta"]["ci95"]
        lines.append(
            f"| {name} | {number(check['recall@1']['value'])} | {number(check['recall@1_as_given'])} |"
            f" {check['delta']['value']:+.3f} ({low:+.3f} to {high:+.3f}) | {number(check['same_first'])} |"
            f" {number(check['validity'])} |"
        )
    lines += ["", "## Plots", ""]
    lines += [f"![{name}](plots/{name}.png)" for name in ("metrics", "validity", "sweep")]
    for count, example in enumerate(report["examples"], start=1):
        lines += ["", f"## Example {count}", "", "```", example_text(example), "```"]
    return "\n".join(lines) + "\n"


def markdown_table(report: Mapping) -> list[str]:
    """The table of rows in Markdown."""
    titles = [title for _, title in SHOWN]
    speeds = ["tokens/forward trace / answer", "tokens/s", "speed-up over AR"]
    columns = ["row", *titles, "valid native / policy", *speeds]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for stage in report["stages"]:
        metrics, validity, decode = stage["metrics"], stage["validity"], stage["decode"]
        cells = [f"{number(metrics[m]['value'])} ({interval(metrics[m])})" for m, _ in SHOWN]
        if decode:
            cells += [
                f"{number(validity['native'])} / {number(validity['policy'])}",
                f"{decode['tokens_per_forward_trace']:.2f} / {decode['tokens_per_forward_answer']:.2f}",
                f"{decode['tokens_per_second']:.0f}",
                f"{decode['speedup_vs_ar']:.2f}×",
            ]
        else:
            cells += ["–"] * 4
        lines.append(f"| {stage['name']} | {' | '.join(cells)} |")
    if report["oracle"]:
        best = " | ".join(number(report["oracle"][m]) for m, _ in SHOWN)
        lines.append(f"| oracle | {best} | – | – | – | – |")
    return lines
