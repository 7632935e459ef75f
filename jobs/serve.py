"""Serve a student over HTTP: find it, try it, deploy it, stay until interrupted."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import ray
from ray import serve as ray_serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus
from rich.console import Console
from rich.text import Text

from dgr2.config import NOT_FINGERPRINTED, Config, load_config
from dgr2.config.schema import RayConfig
from dgr2.errors import CapacityError, ConfigError, DGR2Error
from dgr2.jobs.student import best_student
from dgr2.models.inference import require_compiler
from dgr2.serving.deployment import APPLICATION, ServeArgs, build
from dgr2.serving.location import locate
from dgr2.serving.reranker import load_newest
from dgr2.storage import RunFolder, changed_keys
from dgr2.storage.objects import SCHEME
from dgr2.training.session import ray_session

POLL_S = 0.2


def serve(
    model: str,
    overrides: Sequence[str],
    host: str,
    port: int,
    endpoint_url: str | None,
    cache: Path | None,
    console: Console,
) -> None:
    """Serve the newest good student of a run folder or of an ``s3://`` address until interrupted.

    Raises:
        DGR2Error: no good student, the port is taken, the cluster is too small, or Serve fails to deploy.
    """
    require_free_port(host, port)
    published = model.startswith(SCHEME)
    if published:
        console.print(Text(f"fetching {model}"), soft_wrap=True)
    run = locate(model, cache, endpoint_url)
    cfg = serving_config(run, overrides, published)
    if cfg.serve.compile:
        require_compiler()
    reranker = (load_newest if published else best_student)(run, cfg.serve.max_history)
    query = reranker.example()
    args = ServeArgs(
        model=model if published else str(run.path),
        stage=reranker.name,
        endpoint_url=endpoint_url,
        cache=str(cache.resolve()) if cache else None,
        serve=asdict(cfg.serve),
    )
    console.print(Text(f"'{reranker.name}' {reranker.version} answers: deploying"))
    with ray_session(cfg.ray), interruption() as stopped:
        require_cpus(cfg)
        try:
            deploy(args, cfg, host, port, stopped)
            if not stopped.is_set():
                announce(console, host, port, query.history, query.candidates)
            stopped.wait()
        finally:
            ray_serve.delete(APPLICATION)
    console.print("stopped")


def serving_config(run: RunFolder, overrides: Sequence[str], published: bool) -> Config:
    """The run's configuration with settings of this deployment; a published one brings no cluster along.

    Raises:
        ConfigError: a setting that the trained model depends on.
    """
    stored = run.config()
    base = replace(stored, ray=RayConfig()) if published else stored
    cfg = load_config(None, overrides, base=base, inputs=False)
    if changed := changed_keys(stored, cfg):
        sections = ", ".join(f"{section}.*" for section in NOT_FINGERPRINTED)
        raise ConfigError(f"'{changed[0]}' is part of the trained model: serve takes {sections} only")
    return cfg


def require_free_port(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, before anything is started.

    Raises:
        ConfigError: with the reason.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except (OSError, OverflowError) as error:
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        advice = "it is taken: choose another --port" if taken else str(error)
        raise ConfigError(f"cannot listen on {host} port {port}: {advice}") from error


def require_cpus(cfg: Config) -> None:
    """Refuse more replicas than the cluster could ever place.

    Raises:
        CapacityError: with what was asked for and what there is.
    """
    asked, there = cfg.serve.replicas * cfg.serve.threads, ray.cluster_resources().get("CPU", 0)
    if asked > there:
        raise CapacityError(
            f"serving asks for {asked} CPUs ({cfg.serve.replicas} replicas with {cfg.serve.threads}); the "
            f"cluster has {there:g}: lower serve.replicas or serve.threads, or join a larger cluster"
        )


def deploy(args: ServeArgs, cfg: Config, host: str, port: int, stopped: threading.Event) -> None:
    """Start Serve and the application; returns when it answers, or when it is no longer wanted.

    Raises:
        DGR2Error: Serve's reason, or that it takes longer than ``ray.timeout_s``.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    options = HTTPOptions(host=host, port=port, request_timeout_s=cfg.serve.timeout_s)
    ray_serve.start(proxy_location="HeadOnly", http_options=options)
    target = ray_serve.RunTarget(build(args), name=APPLICATION, route_prefix="/")
    ray_serve.run_many([target], wait_for_applications_running=False)
    deadline = time.monotonic() + cfg.ray.timeout_s
    while not stopped.is_set():
        application = ray_serve.status().applications[APPLICATION]
        if application.status == ApplicationStatus.DEPLOY_FAILED:
            raise DGR2Error(f"deployment failed: {application.message}")
        if application.status == ApplicationStatus.RUNNING and answers(host, port):
            return
        if time.monotonic() > deadline:
            raise CapacityError(
                f"after {cfg.ray.timeout_s:g} s the deployment of {cfg.serve.replicas} replicas with "
                f"{cfg.serve.threads} CPUs each is {application.status} and {url(host, port)}/healthz does "
                "not answer: raise ray.timeout_s, ask for less, or look whether the cluster serves elsewhere"
            )
        stopped.wait(POLL_S)


def answers(host: str, port: int) -> bool:
    """Whether the application answers over HTTP."""
    try:
        with urllib.request.urlopen(f"{url(host, port)}/healthz", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def url(host: str, port: int) -> str:
    """Address of the server as this machine reaches it."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def announce(console: Console, host: str, port: int, history: list[int], candidates: list[int]) -> None:
    """Tell where it listens, and how to ask."""
    address = url(host, port)
    lines = (
        f"serving on {address} (documentation at {address}/docs, Ctrl-C stops)",
        f'curl {address}/v1/rerank -d \'{{"history": {history}, "candidates": {candidates}}}\'',
    )
    for line in lines:
        console.print(Text(line), soft_wrap=True)


@contextmanager
def interruption() -> Iterator[threading.Event]:
    """An event that Ctrl-C and a termination signal set: stopping is how a server ends well.

    A second one has its usual effect. Ray puts a handler of its own when it starts, so this comes after.
    """
    stopped = threading.Event()
    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: object) -> None:
        stopped.set()
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
