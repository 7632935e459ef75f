"""A published model served by ``dgr2 serve``: good, bad, concurrent and cut-off requests, and Ctrl-C."""

from __future__ import annotations

import concurrent.futures as futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from dgr2.jobs.cli import app
from dgr2.storage import RunFolder

pytestmark = [pytest.mark.serve, pytest.mark.ray, pytest.mark.s3]
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
COMMAND = [sys.executable, "-c", "from dgr2.jobs.cli import app; app()"]
MAX_HISTORY = 50


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Server:
    """``dgr2 serve`` as a process of its own."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.port, self.log = free_port(), log
        self.base = f"http://127.0.0.1:{self.port}"
        command = [*COMMAND, "serve", *arguments, "--port", str(self.port)]
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | KEYS
            )

    def wait(self, seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while "curl" not in self.text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.text()
            time.sleep(0.2)

    def text(self) -> str:
        return self.log.read_text()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()

    def call(self, path: str, body: Any = None, raw: bytes | None = None) -> tuple[int, Any]:
        """Status and JSON of an answer; ``raw`` instead of a JSON body."""
        data = json.dumps(body).encode() if body is not None else raw
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def storage(monkeypatch_module: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of an S3 server with a bucket."""
    for name, value in KEYS.items():
        monkeypatch_module.setenv(name, value)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="models")
    yield endpoint
    server.stop()


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def server(
    prepared_run: RunFolder,
    add_student: Callable[..., Path],
    storage: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """Serves a published student without rules, so that hardly an answer needs no repair."""
    add_student(prepared_run, "cft", policy="threshold")
    address = "s3://models/a shop/newest"
    result = CliRunner().invoke(
        app, ["publish", "--run", str(prepared_run.path), address, "--endpoint-url", storage]
    )
    assert result.exit_code == 0, result.output
    folder = tmp_path_factory.mktemp("server")
    started = Server(
        folder / "log", "--model", address, "--endpoint-url", storage, "--cache", str(folder / "cache")
    )
    try:
        started.wait()
        yield started
        # the last words of every test of this file: Ctrl-C ends the server, and frees the port
        assert started.stop() == 0, started.text()
        assert started.text().endswith("stopped\n") and "Traceback" not in started.text()
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", started.port))
    finally:
        started.process.kill()


@pytest.fixture(scope="module")
def example(server: Server) -> dict[str, Any]:
    status, body = server.call("/v1/example")
    assert status == 200 and len(body["history"]) >= 2 and len(body["candidates"]) == 6
    return body


def is_permutation(ranking: list[int], body: dict[str, Any]) -> bool:
    return sorted(ranking) == sorted(body["candidates"])


def test_health_documentation_and_the_printed_example(server: Server) -> None:
    status, health = server.call("/healthz")
    assert status == 200 and health["status"] == "ok" and health["model"]["name"] == "cft"
    paths = server.call("/openapi.json")[1]["paths"]
    assert {"/v1/rerank", "/v1/example", "/healthz"} <= set(paths)
    body = paths["/v1/rerank"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"history", "candidates", "top_k", "reasoning"}
    curl = re.search(r"curl http://\S+/v1/rerank -d '(.*)'", server.text())
    assert curl is not None
    assert server.call("/v1/rerank", json.loads(curl[1]))[0] == 200


def test_an_answer_says_what_it_is(server: Server, example: dict[str, Any]) -> None:
    status, answer = server.call("/v1/rerank", example)
    assert status == 200 and is_permutation(answer["ranking"], example)
    validity, timings = answer["validity"], answer["timings"]
    assert validity["repaired"] == (not validity["valid"]) == bool(validity["flaws"])
    assert re.fullmatch(r"[0-9a-f]{16}", answer["model"]["version"]) and answer["reasoning"]
    assert 0 < timings["decode_ms"] <= timings["total_ms"] and 0 <= timings["queue_ms"] <= timings["total_ms"]
    best = server.call("/v1/rerank", example | {"top_k": 2, "reasoning": False})[1]
    assert best["ranking"] == answer["ranking"][:2] and best["reasoning"] is None
    assert server.call("/v1/rerank", example | {"candidates": [7]})[1]["ranking"] == [7]


def test_concurrent_requests_share_batches_and_keep_apart(server: Server, example: dict[str, Any]) -> None:
    items = example["candidates"]
    bodies = [example | {"candidates": items[i % 6 :] + items[: i % 6]} for i in range(48)]
    alone = [server.call("/v1/rerank", body)[1]["ranking"] for body in bodies[:6]]
    with futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda body: server.call("/v1/rerank", body), bodies))
    assert {status for status, _ in answers} == {200}
    for i, (body, (_, answer)) in enumerate(zip(bodies, answers, strict=True)):
        assert is_permutation(answer["ranking"], body) and answer["ranking"] == alone[i % 6]
    # requests of one batch report the same decode
    assert len({answer["timings"]["decode_ms"] for _, answer in answers}) <= len(answers) // 2
    assert any(answer["validity"]["repaired"] for _, answer in answers)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"candidates": []}, "candidates"),
    ({"candidates": [1, 2, 1]}, "candidates"),
    ({"candidates": [1] * 200}, "candidates"),
    ({"candidates": list(range(1, 8))}, "candidates"),
    ({"candidates": "x"}, "candidates"),
    ({"candidates": [1, 61]}, "candidates"),
    ({"candidates": [1, 10**400]}, "candidates"),
    ({"candidates": [1, -2]}, "candidates"),
    ({"candidates": [1, "2"]}, "candidates"),
    ({"candidates": [1, 2.5]}, "candidates"),
    ({"candidates": [1, True]}, "candidates"),
    ({"candidates": [1, None]}, "candidates"),
    ({"history": None}, "history"),
    ({"history": {"1": 2}}, "history"),
    ({"history": []}, "history"),
    ({"history": [float("nan")]}, "history"),
    ({"history": [1] * (MAX_HISTORY + 1)}, "history"),
    ({"history": [1, 2] * 5000}, "history"),
    ({"surprise": 1}, "surprise"),
    ({"top_k": 0}, "top_k"),
    ({"top_k": "3"}, "top_k"),
    ({"reasoning": "yes"}, "reasoning"),
]


@pytest.mark.parametrize(("change", "field"), BAD)
def test_a_bad_body_is_refused_by_its_field(
    server: Server, example: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    status, answer = server.call("/v1/rerank", example | change)
    assert status == 422 and answer["detail"][0]["loc"][:2] == ["body", field], answer
    assert len(json.dumps(answer)) < 1000 * len(answer["detail"]), "the body is not sent back"


@pytest.mark.parametrize("missing", ["history", "candidates"])
def test_a_missing_field_is_named(server: Server, example: dict[str, Any], missing: str) -> None:
    status, answer = server.call("/v1/rerank", {k: v for k, v in example.items() if k != missing})
    assert status == 422 and answer["detail"][0]["loc"] == ["body", missing]


RAW = [
    b"",
    b"{",
    b"null",
    b"[1]",
    b'"x"',
    b"\xff\xfe",
    b"\x00",
    b"[" * 5000,
    b'{"\\ud800": 1}',
    b'{"\xc3": 1}',
]


@pytest.mark.parametrize("raw", RAW)
def test_what_is_no_json_object_is_refused(server: Server, raw: bytes) -> None:
    status, answer = server.call("/v1/rerank", raw=raw)
    assert status == 422 and answer["detail"][0]["loc"][0] == "body"


def test_a_body_past_the_limit_is_not_read(server: Server) -> None:
    assert server.call("/v1/rerank", raw=b" " * (300 * 1024))[0] == 413


def test_other_addresses_and_methods(server: Server) -> None:
    assert server.call("/v1/rerank")[0] == 405
    assert server.call("/v2/rerank", {})[0] == 404


def test_clients_that_hang_up_leave_the_server_well(server: Server, example: dict[str, Any]) -> None:
    body = json.dumps(example).encode()
    head = f"POST /v1/rerank HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for sent in [head + body, head + body[:10], head[:20]] * 8:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
            client.sendall(sent)
    for _ in range(3):
        status, answer = server.call("/v1/rerank", example)
        assert status == 200 and is_permutation(answer["ranking"], example)


def test_a_taken_port_is_one_line(server: Server, prepared_run: RunFolder) -> None:
    result = CliRunner().invoke(app, ["serve", "--run", str(prepared_run.path), "--port", str(server.port)])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and "--port" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "--run DIR or --model"),
        (["--run", "nowhere"], 2, "no run folder"),
        (["--run", "RUN", "--model", "s3://b/p"], 2, "either"),
        (["--run", "RUN", "cft.alpha=3"], 2, "part of the trained model"),
        (["--run", "RUN", "serve.max_batch=3"], 2, "serve.max_batch_size"),
        (["--model", "gs://b/p"], 2, "s3://bucket/prefix"),
        (["--model", "s3://models/none"], 1, "no manifest.json"),
        (["--model", "s3://absent/x"], 2, "bucket 'absent' does not exist"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    prepared_run: RunFolder, storage: str, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    filled = [str(prepared_run.path) if a == "RUN" else a for a in arguments]
    more = ["--endpoint-url", storage, "--cache", str(tmp_path), "--port", str(free_port())]
    result = CliRunner().invoke(app, ["serve", *filled, *more])
    assert result.exit_code == code and words in result.stderr, result.output
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.output
