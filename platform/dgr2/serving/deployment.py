"""The Ray Serve application: requests are checked one by one and decoded in batches.

``build`` makes it from typed arguments, so that ``dgr2 serve``, a Serve configuration file and a RayService
deploy the same thing (``import_path: dgr2.serving.deployment:build``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application

from dgr2.config import load_config
from dgr2.config.schema import ServeConfig
from dgr2.serving.batcher import Batched, Batcher
from dgr2.serving.http import build_app
from dgr2.serving.location import locate
from dgr2.serving.reranker import Query, Ranked, load_newest
from dgr2.telemetry.emitter import Emitter

APPLICATION = "dgr2"


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


@serve.deployment
@serve.ingress()
class RerankService:
    """A replica: one student, one decoding thread."""

    def __init__(self, args: dict[str, Any], settings: dict[str, Any]) -> None:
        wanted, self.settings = ServeArgs(**args), ServeConfig(**settings)
        torch.set_num_threads(self.settings.threads)
        cache = Path(wanted.cache) if wanted.cache else None
        run = locate(wanted.model, cache, wanted.endpoint_url)
        self.reranker = load_newest(run, self.settings.max_history, wanted.stage and [wanted.stage])
        if self.settings.compile:
            self.reranker.decoder.compile()
            self.reranker.rerank([self.reranker.example()] * self.settings.max_batch_size)
        if self.settings.follow_load:
            self.reranker.follow_load(self.settings.max_batch_size)
        self.reranker.decoder.remember(self.settings.remember_prompts)
        threads = self.settings.threads
        self.batcher = Batcher[Query, Ranked](
            self._decode,
            ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,)),
            self.settings.max_batch_size,
            self.settings.batch_wait_ms / 1e3,
        )
        self.metrics = Emitter()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve's hook for the HTTP application of a replica that has been built."""
        return build_app(self, self.settings.max_body_kb * 1024)

    def check_health(self) -> None:
        """Asked by Serve, which replaces a replica whose decode is stuck."""
        if self.batcher.busy_s() > self.settings.timeout_s:
            raise RuntimeError(f"a batch has been decoding for more than {self.settings.timeout_s:g} s")

    def count(self, outcome: str) -> None:
        """Count a request by its outcome."""
        self.metrics.add("dgr2_serve_requests", outcome=outcome)

    async def rank(self, query: Query) -> Batched[Ranked]:
        """Rank a list in a batch with others; see ``Service``."""
        answered = await self.batcher.submit(query)
        self.metrics.add("dgr2_serve_repairs", float(not answered.answer.valid))
        return answered

    def _decode(self, queries: Sequence[Query]) -> list[Ranked]:
        """A batch, in the decoding thread: meanwhile others are read and checked."""
        start = time.perf_counter()
        answers = self.reranker.rerank(queries)
        self.metrics.observe("dgr2_serve_decode_seconds", time.perf_counter() - start)
        self.metrics.observe("dgr2_serve_batch_size", len(queries))
        return answers
