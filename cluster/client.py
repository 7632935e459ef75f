"""The Jobs API of a cluster, with every way of not reaching it said in one line."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from dgr2.errors import UserError

# Ray lets these decide where a job goes, whatever address its client is given.
OVERRIDES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
# Ray's client reports every upload and every closed connection.
CHATTY = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")
SET_TOKEN = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH, the file that holds it)"


class JobsClient(JobSubmissionClient):
    """Ray's client, with a time-out on every request.

    Attributes:
        address: URL of the dashboard.
        auth_mode: ``token`` or ``disabled``, as the cluster says.
    """

    def __init__(self, address: str, auth_mode: str, timeout_s: float) -> None:
        self.address, self.auth_mode, self._timeout_s = address, auth_mode, timeout_s
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
        with _without_overrides():
            super().__init__(address)

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", self._timeout_s)
        return super()._do_request(method, endpoint, **options)


def connect(address: str, timeout_s: float) -> JobsClient:
    """A client of the cluster at ``address``, which runs the same Ray and accepts our token.

    Args:
        address: URL of the dashboard, such as ``http://head:8265``.
        timeout_s: longest wait for an answer.

    Raises:
        UserError: not reachable, no Ray, a token missing or refused, another version.
    """
    url = dashboard_url(address)
    mode = authentication_mode(url, timeout_s)
    require_token(url, mode)
    with cluster_errors(url):
        client = JobsClient(url, mode, timeout_s)
    require_version(url, client._server_ray_version or "unknown")
    return client


def dashboard_url(address: str) -> str:
    """The address as a URL of the dashboard; ``host:port`` is taken for http.

    Raises:
        UserError: it is none.
    """
    url = (address if "://" in address else f"http://{address}").rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        shown = address.rpartition("@")[2]  # not a password
        raise UserError(
            f"--address is the URL of the cluster's dashboard, such as http://head:8265, not '{shown}'"
        )
    return url


def authentication_mode(url: str, timeout_s: float) -> str:
    """What the cluster asks of its callers: ``token`` or ``disabled``.

    Raises:
        UserError: nobody answers there, or not a Ray dashboard.
    """
    with cluster_errors(url):
        answer = requests.get(f"{url}/api/authentication_mode", timeout=timeout_s)
    try:
        return str(answer.json()["authentication_mode"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{url} answers (HTTP {answer.status_code}), but is no dashboard of Ray {ray.__version__}: "
            "check --address"
        ) from error


def require_token(url: str, mode: str) -> None:
    """Refuse to call a cluster that asks for a token without one; the token itself is never read here.

    Raises:
        UserError: naming the variable to set.
    """
    if mode != "token":
        return
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        raise UserError(f"the cluster at {url} asks for a token: {SET_TOKEN}")
    file = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if file and not os.environ.get("RAY_AUTH_TOKEN") and not Path(file).is_file():
        raise UserError(f"RAY_AUTH_TOKEN_PATH names {file}, which is no file: {SET_TOKEN}")


def require_version(url: str, version: str) -> None:
    """Refuse a cluster of another Ray: jobs, states and pickles are not made to cross versions.

    Raises:
        UserError: naming both.
    """
    if version != ray.__version__:
        raise UserError(
            f"the cluster at {url} runs Ray {version}, this is Ray {ray.__version__}: use an image or an "
            "environment with the same version"
        )


@contextmanager
def cluster_errors(url: str) -> Iterator[None]:
    """Failures of a request as one line that says what to change.

    Raises:
        UserError: see ``connect``.
    """
    try:
        yield
    except AuthenticationError as error:
        if "invalid" in str(error).lower():
            raise UserError(f"the cluster at {url} refuses the token (403): check RAY_AUTH_TOKEN") from error
        raise UserError(f"the cluster at {url} asks for a token (401): {SET_TOKEN}") from error
    except requests.exceptions.Timeout as error:
        raise UserError(
            f"the cluster at {url} does not answer in time: check --address, or raise --timeout"
        ) from error
    except (ConnectionError, requests.exceptions.RequestException) as error:
        raise UserError(
            f"cannot reach a cluster at {url}: check --address, and that its dashboard listens there"
        ) from error


@contextmanager
def _without_overrides() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in OVERRIDES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
