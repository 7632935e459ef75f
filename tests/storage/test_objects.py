"""Publishing to S3 and back: a moto server, and a proxy before it that fails in the ways networks do."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from dgr2.errors import ConfigError, DGR2Error, StorageError, UserError
from dgr2.storage.objects import MANIFEST, Manifest, ObjectStore, StorageUri

pytestmark = pytest.mark.s3
ABOUT = {"name": "rl", "metrics": {"recall@1": 0.4}}
URI = StorageUri("models", "my shop/été")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


@pytest.fixture(scope="module")
def moto() -> Iterator[tuple[str, int]]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield server.get_host_and_port()
    server.stop()


@pytest.fixture
def bucket(moto: tuple[str, int]) -> Any:
    """An empty bucket ``models``."""
    made = boto3.resource("s3", endpoint_url=f"http://{moto[0]}:{moto[1]}").Bucket("models")
    made.create()
    made.objects.all().delete()
    return made


@pytest.fixture
def store(moto: tuple[str, int], bucket: Any) -> ObjectStore:
    return ObjectStore(f"http://{moto[0]}:{moto[1]}")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "source"
    contents = {"config.yaml": b"seed: 0\n", "data/items/a b.bin": bytes(range(256)) * 4000, "empty": b""}
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


def contents(folder: Path) -> dict[str, bytes]:
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found.pop(MANIFEST)
    return found


class Faults:
    """What the next request that begins so meets: ``503``, ``reset`` (no answer), ``cut`` (half of one)."""

    def __init__(self) -> None:
        self.planned: list[tuple[str, str]] = []
        self.requests: list[str] = []

    def next(self, line: str) -> str | None:
        self.requests.append(line)
        for i, (start, fault) in enumerate(self.planned):
            if line.startswith(start):
                del self.planned[i]
                return fault
        return None


@pytest.fixture
def flaky(moto: tuple[str, int], bucket: Any) -> Iterator[tuple[ObjectStore, Faults]]:
    """A store behind a proxy, and the faults to come."""
    faults = Faults()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = faults.next(f"{self.command} {self.path}")
            if fault == "reset":
                self.close_connection = True
                return
            if fault == "503":
                self.answer(503, [], b"<Error><Code>SlowDown</Code></Error>", 0)
                return
            upstream = http.client.HTTPConnection(*moto)
            upstream.request(self.command, self.path, body, dict(self.headers))
            answer = upstream.getresponse()
            content = answer.read()
            self.answer(
                answer.status, answer.getheaders(), content, len(content) // 2 if fault == "cut" else 0
            )
            upstream.close()

        def answer(self, status: int, headers: list[tuple[str, str]], content: bytes, missing: int) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in (
                    "content-length",
                    "connection",
                    "transfer-encoding",
                    "date",
                    "server",
                ):
                    self.send_header(name, value)
            length = dict((n.lower(), v) for n, v in headers).get("content-length", str(len(content)))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(content[: len(content) - missing])
            self.close_connection = bool(missing)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = forward

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield ObjectStore(f"http://127.0.0.1:{server.server_address[1]}", attempts=4, timeout_s=5), faults
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("text", "bucket_name", "prefix"),
    [
        ("s3://b", "b", ""),
        ("s3://b/", "b", ""),
        ("s3://b/x/y/", "b", "x/y"),
        ("s3://b/my shop/été?#%20", "b", "my shop/été?#%20"),
    ],
)
def test_an_address_is_taken_as_it_stands(text: str, bucket_name: str, prefix: str) -> None:
    uri = StorageUri.parse(text)
    assert uri == StorageUri(bucket_name, prefix) and StorageUri.parse(str(uri)) == uri
    assert uri.key("a/b") == (f"{prefix}/a/b" if prefix else "a/b")


@pytest.mark.parametrize(
    "text", ["", "b/x", "s3:/b/x", "gs://b", "s3://", "s3:///x", "s3://b//x", "s3://b/../x"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        StorageUri.parse(text)


def test_a_folder_comes_back_as_it_was(store: ObjectStore, files: dict[str, Path], tmp_path: Path) -> None:
    done: list[int] = []
    manifest = store.upload(files, URI, ABOUT, done.append)
    assert sum(done) == len(files) and manifest.about == ABOUT
    folder = store.download(URI, tmp_path / "cache")
    assert contents(folder) == {name: path.read_bytes() for name, path in files.items()}
    assert Manifest.parse((folder / MANIFEST).read_bytes(), "here") == manifest


def test_the_manifest_is_written_last(
    flaky: tuple[ObjectStore, Faults], files: dict[str, Path], tmp_path: Path
) -> None:
    store, faults = flaky
    store.upload(files, URI, ABOUT)
    puts = [line for line in faults.requests if line.startswith("PUT")]
    assert len(puts) == len(files) + 1 and puts[-1].endswith(MANIFEST)

    faults.planned = [("PUT", "503")] * 4
    with pytest.raises(StorageError, match="SlowDown"):
        store.upload(files, URI, ABOUT)
    with pytest.raises(StorageError, match="publishing did not finish"):
        store.download(URI, tmp_path / "cache")


def test_publishing_again_replaces_what_was_there(
    store: ObjectStore, bucket: Any, files: dict[str, Path], tmp_path: Path
) -> None:
    bucket.put_object(Key=URI.key("of another owner"), Body=b"1")
    store.upload(files, URI, ABOUT)
    first = store.download(URI, tmp_path / "cache")
    files["config.yaml"].write_bytes(b"seed: 1\n")
    del files["empty"]
    store.upload(files, URI, ABOUT)
    keys = {entry.key for entry in bucket.objects.all()}
    assert keys == {URI.key(name) for name in (*files, MANIFEST, "of another owner")}
    second = store.download(URI, tmp_path / "cache")
    assert second != first and contents(second)["config.yaml"] == b"seed: 1\n"
    assert contents(first)["config.yaml"] == b"seed: 0\n"


@pytest.mark.parametrize("fault", ["503", "reset"])
def test_throttling_and_cut_requests_are_tried_again(
    flaky: tuple[ObjectStore, Faults], files: dict[str, Path], tmp_path: Path, fault: str
) -> None:
    store, faults = flaky
    faults.planned = [("HEAD", fault), ("PUT", fault), ("PUT", fault)]
    store.upload(files, URI, ABOUT)
    faults.planned += [("GET", fault), ("GET", fault)]
    folder = store.download(URI, tmp_path / "cache")
    assert not faults.planned
    assert contents(folder) == {name: path.read_bytes() for name, path in files.items()}


def test_a_body_that_is_cut_is_read_again(
    flaky: tuple[ObjectStore, Faults], files: dict[str, Path], tmp_path: Path
) -> None:
    store, faults = flaky
    store.upload(files, URI, ABOUT)
    faults.planned = [("GET", "cut")] * 3
    folder = store.download(URI, tmp_path / "cache")
    assert not faults.planned
    assert contents(folder) == {name: path.read_bytes() for name, path in files.items()}


def test_a_copy_is_used_again_while_it_is_whole(
    flaky: tuple[ObjectStore, Faults], files: dict[str, Path], tmp_path: Path
) -> None:
    store, faults = flaky
    store.upload(files, URI, ABOUT)
    folder = store.download(URI, tmp_path / "cache")
    faults.requests.clear()
    assert store.download(URI, tmp_path / "cache") == folder
    assert all(line.split("?")[0].endswith(MANIFEST) for line in faults.requests)
    (folder / "config.yaml").write_bytes(b"seed: 9\n")
    assert store.download(URI, tmp_path / "cache") == folder
    assert contents(folder)["config.yaml"] == b"seed: 0\n"


def test_a_damaged_object_is_refused_by_its_name(
    store: ObjectStore, bucket: Any, files: dict[str, Path], tmp_path: Path
) -> None:
    for damage, words in (
        (b"seed: 9\n", "SHA-256"),
        (b"seed", "4 bytes, 8 were published"),
        (None, "is missing"),
    ):
        store.upload(files, URI, ABOUT)
        key = bucket.Object(URI.key("config.yaml"))
        key.delete() if damage is None else key.put(Body=damage)
        with pytest.raises(StorageError, match=f"damaged: config.yaml .*{words}"):
            store.download(URI, tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()], "nothing half-made is left"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"format": 2, "about": {}, "files": {}}',
        '{"format": 1, "about": {}, "files": {"a": 1}}',
        '{"format": 1, "about": {}, "files": {"../a": {"size": 1, "sha256": ""}}}',
        '{"format": 1, "about": {}, "files": {"/etc/a": {"size": 1, "sha256": ""}}}',
    ],
)
def test_a_damaged_manifest_is_refused(store: ObjectStore, bucket: Any, tmp_path: Path, text: str) -> None:
    bucket.put_object(Key=URI.key(MANIFEST), Body=text.encode())
    with pytest.raises(StorageError, match="manifest of s3://models/my shop"):
        store.download(URI, tmp_path / "cache")


def test_what_is_not_there_is_the_callers_to_mend(
    store: ObjectStore, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = StorageUri("absent", "x")
    with pytest.raises(UserError, match="bucket 'absent' does not exist"):
        store.upload(files, absent, ABOUT)
    with pytest.raises(UserError, match="bucket 'absent' does not exist"):
        store.download(absent, tmp_path / "cache")
    with pytest.raises(UserError, match="Invalid bucket name"):
        store.upload(files, StorageUri("not a bucket", ""), ABOUT)
    with pytest.raises(ConfigError, match="endpoint nonsense"):
        ObjectStore("nonsense")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="no credentials for s3://models"):
        ObjectStore(store._endpoint).upload(files, URI, ABOUT)


def test_a_service_out_of_reach_is_said_so(files: dict[str, Path]) -> None:
    with pytest.raises(DGR2Error, match="http://127.0.0.1:9 cannot be reached"):
        ObjectStore("http://127.0.0.1:9", attempts=2).upload(files, URI, ABOUT)
