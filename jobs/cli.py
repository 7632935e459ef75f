"""The command line: ``dgr2``.

Exit codes: 0 done, 1 failed, 2 something to change in the command, its configuration or its data (one line
on standard error, nothing written), 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dgr2 import __version__
from dgr2.config import documented_yaml, load_config
from dgr2.errors import ConfigError, DGR2Error

app = typer.Typer(
    help="Diffusion-GR2: an autoregressive reasoning re-ranker, converted into a block-diffusion re-ranker.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, such as data.users=2000.")
]
PresetName = Annotated[str, typer.Argument(metavar="PRESET", help="demo, beauty-small or a YAML file.")]
NewRun = Annotated[Path | None, typer.Option("--run", help="Run folder [default: runs/PRESET-seedSEED].")]
Run = Annotated[Path, typer.Option("--run", help="Run folder.")]
File = Annotated[
    Path | None, typer.Option("--config", help="YAML file merged between preset (or run) and KEY=VALUE.")
]
Preset = Annotated[
    str | None, typer.Option("--preset", help="Preset of a run folder that is not there yet [default: demo].")
]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint-url", help="S3 service [default: Amazon's, or AWS_ENDPOINT_URL].")
]

ClusterTimeout = Annotated[float, typer.Option("--timeout", help="Longest wait for an answer, in seconds.")]
# Commands that are no stages; ``submit`` takes the others.
NOT_SUBMITTED = ("config", "submit", "doctor", "dashboards", "serve", "publish")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(overrides: Overrides = None, run: NewRun = None, config: File = None) -> None:
    """All stages on the embedded shop: no download, no data files, no GPU."""
    _whole_run("demo", overrides, run, config)


@app.command("run")
def run_preset(
    preset: PresetName, overrides: Overrides = None, run: NewRun = None, config: File = None
) -> None:
    """All stages of a preset; finished ones are skipped, an interrupted one continues."""
    _whole_run(preset, overrides, run, config)


@app.command()
def prepare(run: Run, overrides: Overrides = None, preset: Preset = None, config: File = None) -> None:
    """Interactions to candidate lists, semantic ids, tokenizer, prompts and traces."""
    _one_stage("prepare", run, overrides, preset, config)


@app.command()
def teacher(run: Run, overrides: Overrides = None, preset: Preset = None, config: File = None) -> None:
    """Mid-training and supervised fine-tuning of the autoregressive teacher."""
    _one_stage("teacher", run, overrides, preset, config)


@app.command()
def cft(run: Run, overrides: Overrides = None, preset: Preset = None, config: File = None) -> None:
    """Conversion fine-tuning of the teacher into a block-diffusion student."""
    _one_stage("cft", run, overrides, preset, config)


@app.command()
def opd(run: Run, overrides: Overrides = None, preset: Preset = None, config: File = None) -> None:
    """On-policy distillation of the student from the frozen teacher."""
    _one_stage("opd", run, overrides, preset, config)


@app.command("opd_off_policy")
def opd_off_policy(run: Run, overrides: Overrides = None, preset: Preset = None, config: File = None) -> None:
    """The comparison: as many distillation updates on trajectories that the teacher wrote."""
    _one_stage("opd_off_policy", run, overrides, preset, config)


@app.command()
def rl(run: Run, overrides: Overrides = None, preset: Preset = None, config: File = None) -> None:
    """Reinforcement learning of the student on the re-ranking reward."""
    _one_stage("rl", run, overrides, preset, config)


@app.command()
def tune(
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="cft, opd or rl.")],
    preset: PresetName,
    overrides: Overrides = None,
    run: NewRun = None,
    config: File = None,
) -> None:
    """Search the settings of a stage with Ray Tune; the best ones become a preset for dgr2 run."""
    with _errors():
        from dgr2.jobs.tune import tune as search

        search(stage, preset, overrides or (), run, config, _console())


@app.command()
def evaluate(run: Run, overrides: Overrides = None, preset: Preset = None, config: File = None) -> None:
    """Decode the test instances with every finished stage; report, plots, samples."""
    _one_stage("evaluate", run, overrides, preset, config)


@app.command()
def bench(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="decode, train or replay.")],
    overrides: Overrides = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Run folder whose student decodes; else a random model does.")
    ] = None,
    shape: Annotated[
        str, typer.Option("--shape", help="Random model: small, qwen3-0.6b or qwen3-8b.")
    ] = "small",
    device: Annotated[
        str, typer.Option("--device", help="Where a random model decodes: cpu, or cuda in bfloat16.")
    ] = "cpu",
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Tokens a forward of a random model commits.")
    ] = 6,
    repeats: Annotated[int, typer.Option("--repeats", min=2, help="Rounds of a random model.")] = 15,
    json: Annotated[
        Path | None,
        typer.Option("--json", help="Write the figures here; with --run, a picture beside them."),
    ] = None,
) -> None:
    """Measure speed as ratios of one process; a run's files stay as they are."""
    with _errors():
        from dgr2.jobs.bench import Synthetic
        from dgr2.jobs.bench import bench as measure
        from dgr2.jobs.run import refuse_upstream_changes
        from dgr2.storage import RunFolder, write_json

        folder = None if run is None else RunFolder.open(run)
        if folder is None:
            cfg = load_config("demo", overrides or (), inputs=False)
        else:
            cfg = load_config(None, overrides or (), base=folder.config(), inputs=False)
            refuse_upstream_changes(folder, cfg, "evaluate", free=("decode",))
        synthetic = Synthetic(shape, repeats, device, tokens)
        figures = measure(what, folder, cfg, synthetic, Console())
        if json is not None:
            write_json(json, {"figures": figures})
            if what == "decode" and run is not None:
                from dgr2.benchmarks.plots import write_decode_plot

                write_decode_plot(figures, json.with_suffix(".png"))


@app.command()
def serve(
    overrides: Overrides = None,
    run: Annotated[Path | None, typer.Option("--run", help="Run folder.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Published model, s3://bucket/prefix.")] = None,
    port: Annotated[int, typer.Option("--port", help="Port to listen on.")] = 8000,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    endpoint_url: Endpoint = None,
    cache: Annotated[Path | None, typer.Option("--cache", help="Folder for downloaded models.")] = None,
) -> None:
    """Serve the newest good student of a run, or a published one, over HTTP."""
    with _errors():
        if (run is None) == (model is None):
            raise ConfigError("give either --run DIR or --model s3://bucket/prefix")
        from dgr2.jobs.serve import serve as stay

        stay(model or str(run), overrides or (), host, port, endpoint_url, cache, _console())


@app.command()
def publish(
    run: Run,
    address: Annotated[str, typer.Argument(metavar="S3_ADDRESS", help="s3://bucket/prefix.")],
    endpoint_url: Endpoint = None,
) -> None:
    """Upload the newest good student of a run; dgr2 serve --model takes it from there."""
    with _errors():
        from dgr2.jobs.publish import publish as upload
        from dgr2.storage import RunFolder

        upload(RunFolder.open(run), address, endpoint_url, _console())


@app.command()
def config(preset: PresetName, overrides: Overrides = None, config: File = None) -> None:
    """Print the resolved configuration with the docstring of every key; ``--config`` reads it back."""
    with _errors():
        cfg = load_config(preset, overrides or (), file=config, inputs=False)
        typer.echo(documented_yaml(cfg), nl=False)


@app.command()
def submit(
    stage: Annotated[
        str, typer.Argument(metavar="STAGE", help="A command that runs stages, such as demo or cft.")
    ],
    address: Annotated[str, typer.Option("--address", metavar="URL", help="The cluster's dashboard.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[PRESET] KEY=VALUE", help="As for the stage itself.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Run folder, on storage that all nodes see under this path.")
    ] = None,
    preset: Preset = None,
    cpus: Annotated[
        float, typer.Option("--cpus", help="Logical CPUs held for the driver; 0 puts it on the head node.")
    ] = 0.0,
    wait: Annotated[bool, typer.Option(help="Follow the log and exit as the job does.")] = True,
    stop_on_interrupt: Annotated[
        bool, typer.Option("--stop-on-interrupt", help="Ctrl-C stops the job too.")
    ] = False,
    timeout: ClusterTimeout = 30.0,
) -> None:
    """Run a stage as a job on another Ray cluster, from this package's code."""
    with _errors():
        from dgr2.cluster.submit import submission
        from dgr2.cluster.submit import submit as start

        names = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback is not None]
        wanted = submission(
            stage, words or (), [n for n in names if n not in NOT_SUBMITTED], run, preset, cpus
        )

        def write(text: str) -> None:
            typer.echo(text, nl=False)

        def say(line: str) -> None:
            typer.echo(line, err=True)

        code = start(wanted, address, write, say, wait, stop_on_interrupt, timeout)
    raise typer.Exit(code)


@app.command()
def doctor(
    overrides: Overrides = None,
    address: Annotated[
        str, typer.Option("--address", metavar="URL", help="A cluster's dashboard [default: this machine].")
    ] = "",
    run: Annotated[
        Path | None, typer.Option("--run", help="Folder of runs, which all nodes must write.")
    ] = None,
    preset: Preset = None,
    timeout: ClusterTimeout = 30.0,
) -> None:
    """Look for what would keep a run from working, here or on another cluster."""
    with _errors():
        from dgr2.cluster.doctor import examine, print_checks

        cfg = load_config(preset or "demo", overrides or (), inputs=False)
        healthy = print_checks(examine(cfg, address, run, timeout), _console())
    raise typer.Exit(0 if healthy else 1)


@app.command()
def dashboards(out: Annotated[Path, typer.Option("--out", help="Folder to write to.")]) -> None:
    """Write the Grafana dashboard, the Prometheus configuration and the alert rules."""
    with _errors():
        from dgr2.dashboards.generate import write

        for file in write(out):
            typer.echo(str(file))


def _whole_run(preset: str, overrides: list[str] | None, run: Path | None, file: Path | None) -> None:
    with _errors(resumable=True):
        cfg = load_config(preset, overrides or (), file=file)
        from dgr2.evaluation.report import print_report
        from dgr2.jobs.run import nothing_written, run_pipeline
        from dgr2.storage import RunFolder

        path, console = run or Path("runs") / f"{Path(preset).stem}-seed{cfg.seed}", _console()
        with nothing_written(path):
            folder = RunFolder.create_or_open(path, cfg)
            run_pipeline(folder, cfg, console)
        print_report(folder, console)


def _one_stage(
    name: str, path: Path, overrides: list[str] | None, preset: str | None, file: Path | None
) -> None:
    with _errors(resumable=True):
        from dgr2.jobs.run import nothing_written, refuse_upstream_changes, run_stage
        from dgr2.storage import RunFolder

        exists = RunFolder.is_run(path)
        if not exists and name != "prepare":
            raise ConfigError(f"{path} is no run folder: start with dgr2 prepare --run {path}")
        stored = RunFolder.open(path).config() if exists else None
        if stored is not None and preset not in (None, stored.preset):
            raise ConfigError(f"{path} was made by preset '{stored.preset}', not '{preset}'")
        cfg = load_config(None if exists else preset or "demo", overrides or (), base=stored, file=file)
        console = _console()
        with nothing_written(path):
            if exists:
                folder = RunFolder.open(path)
                refuse_upstream_changes(folder, cfg, name)
                if cfg != stored:
                    folder.write_config(cfg)
            else:
                folder = RunFolder.create_or_open(path, cfg)
            run_stage(folder, cfg, name, console)
        if name == "evaluate":
            from dgr2.evaluation.report import print_report

            print_report(folder, console)


def _console() -> Console:
    """The console of a command; the log goes there too, so that a message does not break a progress bar."""
    from dgr2.telemetry import setup_logging

    console = Console()
    setup_logging(console)
    return console


@contextmanager
def _errors(resumable: bool = False) -> Iterator[None]:
    """Errors that have a name become one line and an exit code."""
    try:
        yield
    except DGR2Error as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        again = ": the same command continues from the last checkpoint" if resumable else ""
        typer.echo(f"interrupted{again}", err=True)
        raise typer.Exit(130) from error
