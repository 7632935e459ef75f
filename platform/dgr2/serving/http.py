"""The HTTP side: reads and checks bodies, and words answers. Knows a service that ranks, and no Ray.

Bodies are read by pydantic itself, so that whatever is sent, bytes and broken JSON included, is refused in
one way: 422 with the field at fault, never with the body.
"""

from __future__ import annotations

import time
from typing import Protocol

from fastapi import FastAPI, HTTPException, Request
from pydantic import ValidationError

from dgr2 import __version__
from dgr2.serving.batcher import Batched
from dgr2.serving.reranker import InvalidQuery, Query, Ranked, Reranker
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

BODY = {"required": True, "content": {"application/json": {"schema": RerankRequest.model_json_schema()}}}
TOO_LARGE, UNPROCESSABLE = 413, 422


class Service(Protocol):
    """What stands behind the routes."""

    reranker: Reranker

    async def rank(self, query: Query) -> Batched[Ranked]:
        """Answer to a query that passed the check."""

    def count(self, outcome: str) -> None:
        """Count a request: ``ok``, ``invalid`` or ``error``."""


def build_app(service: Service, body_limit: int) -> FastAPI:
    """The application.

    Args:
        body_limit: bytes of a body at most.
    """
    app = FastAPI(title="Diffusion-GR2 re-ranker", version=__version__)
    reranker = service.reranker
    model = ModelInfo(name=reranker.name, version=reranker.version)
    refusals = {status: {"model": Refusal} for status in (UNPROCESSABLE, TOO_LARGE)}

    @app.post("/v1/rerank", openapi_extra={"requestBody": BODY}, responses=refusals)  # type: ignore[arg-type]
    async def rerank(request: Request) -> RerankResponse:
        """Rank the candidates for a user with this history."""
        start, outcome = time.perf_counter(), "error"
        try:
            body = await read(request, reranker, body_limit)
            answered = await service.rank(body.query())
            outcome = "ok"
        except HTTPException:
            outcome = "invalid"
            raise
        finally:
            service.count(outcome)
        ranked = answered.answer
        return RerankResponse(
            ranking=ranked.ranking[: body.top_k],
            reasoning=ranked.reasoning,
            validity=Validity(valid=ranked.valid, repaired=not ranked.valid, flaws=list(ranked.flaws)),
            model=model,
            timings=Timings(
                queue_ms=round(answered.queue_ms, 3),
                decode_ms=round(answered.work_ms, 3),
                total_ms=round((time.perf_counter() - start) * 1e3, 3),
            ),
        )

    @app.get("/v1/example")
    async def example() -> RerankRequest:
        """A valid request to start from."""
        query = reranker.example()
        return RerankRequest(history=query.history, candidates=query.candidates, top_k=None, reasoning=True)

    @app.get("/healthz")
    async def healthz() -> Health:
        """Whether a replica answers, and with which model."""
        return Health(status="ok", model=model)

    return app


async def read(request: Request, reranker: Reranker, limit: int) -> RerankRequest:
    """Body of a request that can be ranked.

    Raises:
        HTTPException: every other one, with what is wrong and where.
    """
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > limit:
            raise _refusal([Problem(loc=["body"], msg=f"exceeds {limit} bytes", type="too_large")], TOO_LARGE)
    try:
        body = RerankRequest.model_validate_json(bytes(content))
        reranker.check(body.query())
    except ValidationError as error:
        raise _refusal(problems(error)) from error
    except InvalidQuery as error:
        loc = ["body", *error.location]
        raise _refusal([Problem(loc=loc, msg=str(error), type="invalid")]) from error
    return body


def _refusal(found: list[Problem], status: int = UNPROCESSABLE) -> HTTPException:
    return HTTPException(status, [problem.model_dump() for problem in found])
