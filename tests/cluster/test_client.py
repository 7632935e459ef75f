"""Every way of not reaching a cluster, as one line; and what a submission is made of."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import ray

from dgr2.cluster.client import connect, dashboard_url
from dgr2.cluster.follow import exit_code
from dgr2.cluster.submit import Submission, submission
from dgr2.errors import ConfigError, UserError

COMMANDS = ("demo", "run", "prepare", "cft", "tune")
Answers = dict[str, tuple[int, str]]


@pytest.fixture
def serve() -> Iterator[Callable[[Answers], str]]:
    """Starts a server with fixed answers; gives its URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: Answers) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, "not found"))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def dashboard(version: str, mode: str = "disabled") -> Answers:
    return {
        "/api/authentication_mode": (200, json.dumps({"authentication_mode": mode})),
        "/api/version": (200, json.dumps({"version": "4", "ray_version": version})),
    }


def test_the_address_given_is_the_one_used(
    serve: Callable[[Answers], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(dashboard(ray.__version__))
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    client = connect(url.removeprefix("http://"), 5)
    assert client.address == client._address == url
    assert os.environ["RAY_ADDRESS"] == "http://127.0.0.1:9"


def test_another_version_is_refused(serve: Callable[[Answers], str]) -> None:
    with pytest.raises(UserError, match=rf"runs Ray 2\.48\.0, this is Ray {ray.__version__}"):
        connect(serve(dashboard("2.48.0")), 5)


def test_no_cluster_and_no_dashboard(serve: Callable[[Answers], str]) -> None:
    with pytest.raises(UserError, match="cannot reach a cluster at http://127.0.0.1:9: check --address"):
        connect("http://127.0.0.1:9", 5)
    with pytest.raises(UserError, match=r"answers \(HTTP 404\), but is no dashboard"):
        connect(serve({}), 5)


def test_a_token_is_asked_for(serve: Callable[[Answers], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UserError, match="asks for a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"):
        connect(serve(dashboard(ray.__version__, mode="token")), 5)


@pytest.mark.parametrize("address", ["ray://head:10001", "http://", "http://me:secret@head:8265"])
def test_an_address_that_is_no_dashboard(address: str) -> None:
    with pytest.raises(UserError, match="URL of the cluster's dashboard") as caught:
        dashboard_url(address)
    assert "secret" not in str(caught.value)


def test_a_submission_is_a_quoted_command_that_joins_its_cluster(tmp_path: Path) -> None:
    made = submission("cft", ["cft.alpha=2"], COMMANDS, run=tmp_path / "my run", preset="demo")
    assert made.command == (f"python -m dgr2.jobs cft cft.alpha=2 --preset demo --run '{tmp_path}/my run'")
    again = submission("cft", ["cft.alpha=2"], COMMANDS, run=tmp_path / "my run", preset="demo")
    other = submission("cft", ["cft.alpha=3"], COMMANDS, run=tmp_path / "my run", preset="demo")
    assert made.name == again.name != other.name and made.name.startswith("dgr2-cft-")


def test_paths_are_absolute_and_whole_runs_have_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = submission("run", ["beauty-small", "seed=3", "data.path=here"], COMMANDS)
    assert made.run == tmp_path / "runs" / "beauty-small-seed3"
    assert f"data.path={tmp_path}/here" in made.words
    assert submission("demo", [], COMMANDS).run == tmp_path / "runs" / "demo-seed0"
    assert submission("prepare", [], COMMANDS, run=Path("x")).run == tmp_path / "x"
    assert submission("tune", ["cft", "demo"], COMMANDS).run is None


@pytest.mark.parametrize(
    ("stage", "words", "message"),
    [
        ("cfr", [], "'cfr' is no stage to submit; .* did you mean 'cft'"),
        ("cft", ["cft.alfa=2"], "unknown key 'cft.alfa'"),
        ("demo", ["seed=x"], "seed"),
        ("run", [], "takes one preset"),
        ("run", ["nothing"], "unknown preset 'nothing'"),
    ],
)
def test_what_is_wrong_here_is_refused_here(stage: str, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        submission(stage, words, COMMANDS)


def test_exit_codes() -> None:
    from ray.dashboard.modules.job.pydantic_models import JobDetails

    def code(status: str, driver: int | None) -> int:
        return exit_code(
            JobDetails(type="SUBMISSION", status=status, entrypoint="x", driver_exit_code=driver)
        )

    assert [code("SUCCEEDED", 0), code("FAILED", 2), code("FAILED", None), code("STOPPED", None)] == [
        0,
        2,
        1,
        1,
    ]
    assert code("FAILED", -9) == 1


def test_a_submission_without_run_has_no_run_option() -> None:
    assert "--run" not in Submission("tune", ("cft", "demo"), None).command
