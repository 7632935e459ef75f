"""The Ray Serve application: FastAPI in front, requests checked one by one and decoded in batches.

``build`` makes it from typed arguments, so that ``dgr2 serve``, a Serve configuration file and a RayService
deploy the same thing (``import_path: dgr2.serving.deployment:build``).
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, ValidationError
from ray import serve
from ray.serve import Application

from dgr2 import __version__
from dgr2.config import load_config
from dgr2.config.schema import ServeConfig
from dgr2.serving.location import locate
from dgr2.serving.reranker import InvalidQuery, Query, Ranked, load_newest
from dgr2.serving.schemas import (
    Health,
    ModelInfo,
    Problem,
    Refusal,
    RerankRequest,
    RerankResponse,
    Timings,
    Validity,
    problems,
)
from dgr2.telemetry.emitter import Emitter

APPLICATION = "dgr2"
BODY = {"required": True, "content": {"application/json": {"schema": RerankRequest.model_json_schema()}}}
TOO_LARGE, UNPROCESSABLE = 413, 422

api = FastAPI(title="Diffusion-GR2 re-ranker", version=__version__)


class ServeArgs(BaseModel):
    """Arguments of the application."""

    model_config = ConfigDict(extra="forbid")

    model: str
    """Run folder that every replica can read, or s3://bucket/prefix."""
    stage: str | None = None
    """Student to serve; the newest good one by default."""
    endpoint_url: str | None = None
    """Another S3 service than Amazon's."""
    cache: str | None = None
    """Folder for downloads on the replica's machine."""
    serve: dict[str, Any] = {}
    """Keys of the configuration's ``serve`` section that differ from its defaults."""


def build(args: ServeArgs) -> Application:
    """The application; an unknown key of ``args.serve`` is refused here, since Serve would ignore it."""
    settings = load_config(None, base={"serve": args.serve}, inputs=False).serve
    in_flight = 2 * settings.max_batch_size  # one batch decodes, the next one fills
    return RerankService.options(  # type: ignore[attr-defined]
        num_replicas=settings.replicas,
        max_ongoing_requests=in_flight,
        max_queued_requests=settings.max_queued,
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        ray_actor_options={"num_cpus": settings.threads},
        max_constructor_retry_count=1,
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    ).bind(args.model_dump(), asdict(settings))


@dataclass(frozen=True)
class Timed:
    """An answer and how long it took, in milliseconds."""

    ranked: Ranked
    queue_ms: float
    decode_ms: float


@serve.deployment
@serve.ingress(api)
class RerankService:
    """A replica: one student, one decoding thread."""

    def __init__(self, args: dict[str, Any], settings: dict[str, Any]) -> None:
        wanted, self.settings = ServeArgs(**args), ServeConfig(**settings)
        torch.set_num_threads(self.settings.threads)
        cache = Path(wanted.cache) if wanted.cache else None
        run = locate(wanted.model, cache, wanted.endpoint_url)
        self.reranker = load_newest(run, self.settings.max_history, wanted.stage)
        self.model = ModelInfo(name=self.reranker.name, version=self.reranker.version)
        self.thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(self.settings.threads,))
        self.decoding_since: float | None = None
        self.metrics = Emitter()
        self._decode.set_max_batch_size(self.settings.max_batch_size)  # type: ignore[attr-defined]
        self._decode.set_batch_wait_timeout_s(self.settings.batch_wait_ms / 1e3)  # type: ignore[attr-defined]

    @api.post(
        "/v1/rerank",
        openapi_extra={"requestBody": BODY},
        responses={UNPROCESSABLE: {"model": Refusal}, TOO_LARGE: {"model": Refusal}},
    )
    async def rerank(self, request: Request) -> RerankResponse:
        """Rank the candidates for a user with this history."""
        start = time.perf_counter()
        body = await self._read(request)
        try:
            timed = await self._decode((body.query(), start))
        except Exception:
            self.metrics.add("dgr2_serve_requests", outcome="error")
            raise
        ranked = timed.ranked
        self.metrics.add("dgr2_serve_requests", outcome="ok")
        self.metrics.add("dgr2_serve_repairs", float(not ranked.valid))
        return RerankResponse(
            ranking=ranked.ranking[: body.top_k],
            reasoning=ranked.reasoning,
            validity=Validity(valid=ranked.valid, repaired=not ranked.valid, flaws=list(ranked.flaws)),
            model=self.model,
            timings=Timings(
                queue_ms=timed.queue_ms, decode_ms=timed.decode_ms, total_ms=_milliseconds(start)
            ),
        )

    @api.get("/v1/example")
    async def example(self) -> RerankRequest:
        """A valid request to start from."""
        query = self.reranker.example()
        return RerankRequest(history=query.history, candidates=query.candidates, top_k=None, reasoning=True)

    @api.get("/healthz")
    async def healthz(self) -> Health:
        """Whether a replica answers, and with which model."""
        return Health(status="ok", model=self.model)

    def check_health(self) -> None:
        """Asked by Serve, which replaces a replica whose decode is stuck."""
        since = self.decoding_since
        if since is not None and time.perf_counter() - since > self.settings.timeout_s:
            raise RuntimeError(f"a batch has been decoding for more than {self.settings.timeout_s:g} s")

    async def _read(self, request: Request) -> RerankRequest:
        """Body of a request that can be ranked; nothing else enters a batch."""
        limit, content = self.settings.max_body_kb * 1024, bytearray()
        try:
            async for chunk in request.stream():
                content += chunk
                if len(content) > limit:
                    problem = Problem(loc=["body"], msg=f"exceeds {limit} bytes", type="too_large")
                    raise _refusal([problem], TOO_LARGE)
            body = RerankRequest.model_validate_json(bytes(content))
            self.reranker.check(body.query())
            return body
        except ValidationError as error:
            raise self._invalid(_refusal(problems(error))) from error
        except InvalidQuery as error:
            problem = Problem(loc=["body", *error.location], msg=str(error), type="invalid")
            raise self._invalid(_refusal([problem])) from error
        except HTTPException as error:
            raise self._invalid(error) from error

    def _invalid(self, refusal: HTTPException) -> HTTPException:
        self.metrics.add("dgr2_serve_requests", outcome="invalid")
        return refusal

    @serve.batch
    async def _decode(self, waiting: list[tuple[Query, float]]) -> list[Timed]:
        """Decode the requests that wait, in a thread, so that others are read and checked meanwhile."""
        queue_ms = [_milliseconds(start) for _, start in waiting]
        self.decoding_since = start = time.perf_counter()
        try:
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(self.thread, self.reranker.rerank, [q for q, _ in waiting])
        finally:
            self.decoding_since = None
        decode_ms = _milliseconds(start)
        self.metrics.observe("dgr2_serve_decode_seconds", decode_ms / 1e3)
        self.metrics.observe("dgr2_serve_batch_size", len(waiting))
        return [Timed(answer, queued, decode_ms) for answer, queued in zip(answers, queue_ms, strict=True)]


def _milliseconds(start: float) -> float:
    return (time.perf_counter() - start) * 1e3


def _refusal(found: list[Problem], status: int = UNPROCESSABLE) -> HTTPException:
    return HTTPException(status, [problem.model_dump() for problem in found])
