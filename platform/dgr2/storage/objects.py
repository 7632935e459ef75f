"""Folders in S3: the files first, the manifest last, and nothing is read that no manifest vouches for.

A published folder is complete once its ``manifest.json`` stands. Throttling and cut connections are tried
again by boto3 with growing pauses: whole requests by its standard retry mode, bodies by its transfers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config as ClientConfig
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from dgr2.errors import ConfigError, StorageError, UserError
from dgr2.storage.files import atomic_dir, jsonable, write_text

MANIFEST = "manifest.json"
FORMAT = 1
SCHEME = "s3://"
CHUNK = 1 << 20
NO_KEY = ("NoSuchKey", "404")
NO_BUCKET = ("NoSuchBucket", "404")
REFUSED = ("AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")


@dataclass(frozen=True)
class StorageUri:
    """``s3://bucket/prefix``, never a path: the slashes of a URI are not a file system's.

    ``prefix`` has no slash at its ends and may be empty.
    """

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> StorageUri:
        """Read a URI; spaces and other characters of the prefix are taken as they stand.

        Raises:
            ConfigError: another scheme, no bucket, or a prefix with empty, ``.`` or ``..`` parts.
        """
        if not text.startswith(SCHEME):
            raise ConfigError(f"'{text}' is no S3 address: write s3://bucket/prefix")
        bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
        prefix = prefix.removesuffix("/")
        if not bucket:
            raise ConfigError(f"'{text}' names no bucket: write s3://bucket/prefix")
        if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
            raise ConfigError(f"'{text}' has an empty, '.' or '..' part")
        return cls(bucket, prefix)

    def key(self, name: str) -> str:
        """Key of a file under this address."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}" if self.prefix else f"{SCHEME}{self.bucket}"


@dataclass(frozen=True)
class Entry:
    """A published file: its size in bytes and the SHA-256 of its content."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Entry:
        """The entry of a local file."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        return cls(path.stat().st_size, digest.hexdigest())


@dataclass(frozen=True)
class Manifest:
    """What a published folder holds.

    Attributes:
        about: what was published, in JSON's types.
        files: entry of every file by its path, ``/`` between the parts.
    """

    about: dict[str, Any]
    files: dict[str, Entry]

    def to_json(self) -> str:
        """Text of ``manifest.json``."""
        files = {name: asdict(entry) for name, entry in sorted(self.files.items())}
        return json.dumps(jsonable({"format": FORMAT, "about": self.about, "files": files}), indent=2) + "\n"

    @classmethod
    def parse(cls, text: str | bytes, origin: str) -> Manifest:
        """Read ``manifest.json``.

        Raises:
            StorageError: it is damaged, of another release, or names files outside the folder.
        """
        try:
            raw = json.loads(text)
            if raw["format"] != FORMAT:
                raise StorageError(
                    f"the manifest of {origin} has format {raw['format']}, this release reads {FORMAT}"
                )
            files = {str(name): Entry(int(e["size"]), str(e["sha256"])) for name, e in raw["files"].items()}
            about = dict(raw["about"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"the manifest of {origin} is damaged: publish again") from error
        for name in files:
            if (
                "\\" in name
                or name.startswith("/")
                or any(part in ("", ".", "..") for part in name.split("/"))
            ):
                raise StorageError(f"the manifest of {origin} names a file outside the folder: {name!r}")
        return cls(about, files)

    def damage(self, folder: Path, name: str) -> str | None:
        """What is wrong with a local copy of a file; None when it is what was published."""
        path, entry = folder / PurePosixPath(name), self.files[name]
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry.size:
            return f"{name} has {path.stat().st_size} bytes, {entry.size} were published"
        if Entry.of(path) != entry:
            return f"{name} has another SHA-256 than was published"
        return None


class ObjectStore:
    """Uploads and downloads folders; credentials and region come from boto3's usual places."""

    def __init__(self, endpoint_url: str | None = None, attempts: int = 6, timeout_s: float = 30.0) -> None:
        """Make a client.

        Args:
            endpoint_url: another S3 service than Amazon's.
            attempts: tries of a request in all.
            timeout_s: longest wait for a connection and between two pieces of an answer.

        Raises:
            ConfigError: the address of the service is none.
        """
        self._attempts, self._endpoint = attempts, endpoint_url
        config = ClientConfig(
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            s3={"addressing_style": "path" if endpoint_url else "auto"},
            # Every file is checked by its SHA-256; services other than Amazon's refuse trailing checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            self.client = boto3.session.Session().client("s3", endpoint_url=endpoint_url, config=config)
        except (ValueError, BotoCoreError) as error:
            raise ConfigError(f"no S3 client for endpoint {endpoint_url or 'of Amazon'}: {error}") from error
        self._transfer = TransferConfig(max_concurrency=4, num_download_attempts=attempts)

    def upload(
        self,
        files: Mapping[str, Path],
        uri: StorageUri,
        about: dict[str, Any],
        on_done: Callable[[int], None] = lambda _: None,
    ) -> Manifest:
        """Publish files under an address; what a manifest listed there before is replaced.

        While files are on their way no manifest stands, so that no reader mixes old and new.

        Args:
            files: local file by its name under the address.
            on_done: called with the number of files that were just finished.

        Raises:
            UserError: missing bucket or credentials, no access.
            StorageError: the service cannot be reached or fails for good.
        """
        manifest = Manifest(about, {name: Entry.of(path) for name, path in files.items()})
        with self._errors(uri):
            self.client.head_bucket(Bucket=uri.bucket)
            old = self._published(uri)
            self.client.delete_object(Bucket=uri.bucket, Key=uri.key(MANIFEST))
            for name, path in files.items():
                self.client.upload_file(str(path), uri.bucket, uri.key(name), Config=self._transfer)
                on_done(1)
            self.client.put_object(
                Bucket=uri.bucket,
                Key=uri.key(MANIFEST),
                Body=manifest.to_json().encode(),
                ContentType="application/json",
            )
            for name in old - set(manifest.files):
                self.client.delete_object(Bucket=uri.bucket, Key=uri.key(name))
        return manifest

    def download(self, uri: StorageUri, cache: Path, on_done: Callable[[int], None] = lambda _: None) -> Path:
        """A verified local copy of a published folder, in a folder of its own under ``cache``.

        A copy that is there already and whole is used as it is.

        Raises:
            UserError: missing bucket or credentials, no access.
            StorageError: nothing was published there, a file is damaged, or the service fails for good.
        """
        with self._errors(uri):
            text = self._manifest(uri)
            if text is None:
                raise StorageError(
                    f"{uri} has no {MANIFEST}: nothing was published there, or publishing did not finish"
                )
            manifest = Manifest.parse(text, str(uri))
            folder = cache / hashlib.sha256(text).hexdigest()[:16]
            with _locked(cache / f"{folder.name}.lock"):
                if folder.is_dir() and not any(manifest.damage(folder, name) for name in manifest.files):
                    return folder
                with atomic_dir(folder) as temporary:
                    self._fetch(uri, manifest, temporary, on_done)
                    write_text(temporary / MANIFEST, text.decode())
            return folder

    def _fetch(
        self, uri: StorageUri, manifest: Manifest, folder: Path, on_done: Callable[[int], None]
    ) -> None:
        for name in manifest.files:
            path = folder / PurePosixPath(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.client.download_file(uri.bucket, uri.key(name), str(path), Config=self._transfer)
            except ClientError as error:
                if _code(error) in NO_KEY:
                    raise StorageError(f"{uri} is damaged: {name} is missing; publish again") from error
                raise
            if damage := manifest.damage(folder, name):
                raise StorageError(f"{uri} is damaged: {damage}; publish again")
            on_done(1)

    def _manifest(self, uri: StorageUri) -> bytes | None:
        """Content of the manifest, None when there is none."""
        content = io.BytesIO()
        try:
            self.client.download_fileobj(uri.bucket, uri.key(MANIFEST), content, Config=self._transfer)
        except ClientError as error:
            if _code(error) not in NO_KEY:
                raise
            self.client.head_bucket(Bucket=uri.bucket)  # the answer is the same for a missing bucket
            return None
        return content.getvalue()

    def _published(self, uri: StorageUri) -> set[str]:
        """Files that the manifest under an address lists; none when it is missing or damaged."""
        text = self._manifest(uri)
        if text is None:
            return set()
        with contextlib.suppress(StorageError):
            return set(Manifest.parse(text, str(uri)).files)
        return set()

    @contextlib.contextmanager
    def _errors(self, uri: StorageUri) -> Iterator[None]:
        """Errors of the service in this project's words."""
        try:
            yield
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
            raise UserError(
                f"no credentials for {uri}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            ) from error
        except (ClientError, Boto3Error) as error:
            raise _named(error, uri) from error
        except (HTTPClientError, EndpointConnectionError) as error:
            where = self._endpoint or "Amazon S3"
            raise StorageError(
                f"{where} cannot be reached for {uri}, after {self._attempts} attempts: {error}"
            ) from error
        except BotoCoreError as error:
            raise UserError(f"{uri}: {error}") from error
        except OSError as error:
            raise StorageError(f"{uri}: {error}") from error


def _named(error: Exception, uri: StorageUri) -> Exception:
    """The error of a request, or of a transfer that wraps one."""
    cause = error if isinstance(error, ClientError) else error.__context__
    code = _code(cause) if isinstance(cause, ClientError) else ""
    if code in NO_BUCKET:
        return UserError(f"bucket '{uri.bucket}' does not exist: create it, or correct the address {uri}")
    if code in REFUSED:
        return UserError(f"access to {uri} was refused ({code}): check the credentials and their rights")
    return StorageError(f"{uri}: {error}")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time: replicas of one machine share a cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
