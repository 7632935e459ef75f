"""``dgr2 submit``: a stage as a Ray job on another cluster.

The package tree goes along, so that the cluster needs the dependencies but not this code. Data, checkpoints
and the run folder do not: ``--run``, ``data.path`` and ``model.init`` name storage that the nodes of the
cluster see under the same path. Nothing of this process's environment goes along but ``PASSED_ON``; secrets
belong to the cluster (a Kubernetes secret, an instance profile).
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dgr2 import __version__
from dgr2.cluster.client import JobsClient, cluster_errors, connect
from dgr2.cluster.follow import exit_code, follow, stop
from dgr2.cluster.staging import StagedTree, staged_tree
from dgr2.config import load_config
from dgr2.config.fields import lookup
from dgr2.errors import ConfigError, UserError

PASSED_ON = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "HF_HUB_OFFLINE")
WHOLE_RUNS = ("demo", "run")
PATHS = ("data.path", "model.init")
ATTEMPTS = 3

Say = Callable[[str], None]


@dataclass(frozen=True)
class Submission:
    """What to run.

    Attributes:
        stage: command of ``dgr2``.
        words: its other words: a preset, ``KEY=VALUE``, options.
        run: run folder, absolute, as the cluster sees it; None for a command without one.
        cpus: logical CPUs held for the driver; 0 puts it on the head node.
    """

    stage: str
    words: tuple[str, ...]
    run: Path | None
    cpus: float = 0.0

    @property
    def command(self) -> str:
        """Shell command of the job; its driver joins the cluster that it runs on."""
        place = ["--run", str(self.run)] if self.run is not None else []
        return shlex.join(["python", "-m", "dgr2.jobs", self.stage, *self.words, *place])

    @property
    def name(self) -> str:
        """The same for the same command: a second submission finds the first."""
        return f"dgr2-{self.stage}-{hashlib.sha256(self.command.encode()).hexdigest()[:12]}"


def submission(
    stage: str,
    words: Sequence[str],
    commands: Sequence[str],
    run: Path | None = None,
    preset: str | None = None,
    cpus: float = 0.0,
) -> Submission:
    """Check what can be checked here, and make paths absolute.

    Args:
        commands: commands that may be submitted.

    Raises:
        ConfigError: an unknown stage, key or value.
    """
    if stage not in commands:
        close = difflib.get_close_matches(stage, commands, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ConfigError(f"'{stage}' is no stage to submit; there are {', '.join(commands)}{hint}")
    words = [_absolute(word) for word in words]
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    if stage in WHOLE_RUNS:
        names = ["demo"] if stage == "demo" else [w for w in words if w not in overrides]
        if len(names) != 1:
            raise ConfigError(
                f"dgr2 submit {stage} takes one preset and KEY=VALUE, not {' '.join(names) or 'none'}"
            )
        cfg = load_config(names[0], overrides, inputs=False)
        run = run or Path("runs") / f"{names[0]}-seed{cfg.seed}"
    for override in overrides:  # values may depend on what is stored with the run: the job checks them
        lookup(override.partition("=")[0])
    if preset is not None:
        words += ["--preset", preset]
    return Submission(stage, tuple(words), None if run is None else Path(os.path.abspath(run)), cpus)


def submit(
    wanted: Submission,
    address: str,
    write: Say,
    say: Say,
    wait: bool = True,
    stop_on_interrupt: bool = False,
    timeout_s: float = 30.0,
) -> int:
    """Run a submission on the cluster at ``address``; follow its log to the end.

    A job of the same command that is under way is followed, not started again.

    Args:
        address: URL of the dashboard.
        write: takes pieces of the job's log.
        say: takes lines about the job.
        stop_on_interrupt: Ctrl-C stops the job too.
        timeout_s: longest wait for an answer of the cluster.

    Returns:
        Exit code of the job's command; 0 without ``wait``, 130 when interrupted, 1 for a job that never ran.

    Raises:
        UserError: the cluster cannot be used, or another job works in the run folder.
    """
    client = connect(address, timeout_s)
    with staged_tree() as tree, cluster_errors(client.address):
        job = _start(client, wanted, tree, say)
    if wanted.run is not None:
        say(f"run folder, as the cluster sees it: {wanted.run}")
    stopping = f"ray job stop {job} --address {client.address}"
    if not wait:
        say(f"follow it: the same command without --no-wait; stop it: {stopping}")
        return 0
    try:
        info = follow(client, job, write, timeout_s)
    except KeyboardInterrupt:
        if stop_on_interrupt:
            stop(client, job, timeout_s)
            say(f"interrupted: job {job} was stopped; the same command continues the run")
        else:
            say(f"interrupted: job {job} goes on; follow it again: the same command; stop it: {stopping}")
        return 130
    code = exit_code(info)
    say(f"job {job} {str(info.status.value).lower()}, exit code {code}")
    return code


def _absolute(word: str) -> str:
    """``data.path`` and ``model.init`` as absolute paths: the job starts in another folder."""
    key, equals, value = word.partition("=")
    if key in PATHS and equals and value:
        return f"{key}={os.path.abspath(os.path.expanduser(value))}"
    return word


def environment(client: JobsClient) -> dict[str, str]:
    """Variables of the job: the allow-list, and how its cluster authenticates (the mode, not the token)."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**kept, "RAY_AUTH_MODE": client.auth_mode}


def _start(client: JobsClient, wanted: Submission, tree: StagedTree, say: Say) -> str:
    for _ in range(ATTEMPTS):
        before = [j for j in client.list_jobs() if j.submission_id]
        live = [j for j in before if not j.status.is_terminal()]
        for job in live:
            meta, name = job.metadata or {}, str(job.submission_id)
            if meta.get("dgr2_command") == wanted.command:
                older = "" if meta.get("dgr2_tree") == tree.digest else ", with another version of the code"
                say(f"job {name} is under way{older}: following it")
                return name
            if wanted.run is not None and meta.get("dgr2_run") == str(wanted.run):
                raise UserError(
                    f"job {name} works in {wanted.run}: wait for it, or stop it with "
                    f"ray job stop {name} --address {client.address}"
                )
        ended = sum(str(j.submission_id).startswith(wanted.name) for j in before)
        name = wanted.name if not ended else f"{wanted.name}-{ended + 1}"
        try:
            client.submit_job(
                entrypoint=wanted.command,
                submission_id=name,
                runtime_env={"working_dir": str(tree.path), "env_vars": environment(client)},
                metadata={
                    "dgr2_command": wanted.command,
                    "dgr2_run": str(wanted.run or ""),
                    "dgr2_tree": tree.digest,
                    "dgr2_version": __version__,
                },
                entrypoint_num_cpus=wanted.cpus,
            )
        except RuntimeError as error:
            if "already" not in str(error):
                last = " ".join(str(error).split())[:400]
                raise UserError(f"the cluster at {client.address} did not take the job: {last}") from error
            continue  # someone was faster: look again
        say(f"job {name} submitted, {tree.size / 2**10:.0f} KiB of code")
        return name
    raise UserError(f"{wanted.name} is being submitted from elsewhere at the same time: try again")
