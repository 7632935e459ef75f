"""What goes over HTTP. Unknown fields are refused, and nothing is converted: an id is a whole number."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from dgr2.serving.reranker import Query

Location = list[str | int]


class Strict(BaseModel):
    """A body without surprises."""

    model_config = ConfigDict(extra="forbid")


class RerankRequest(Strict):
    """A user's history and the candidates of a first stage."""

    history: Annotated[list[StrictInt], Field(description="Item ids, oldest first.")]
    candidates: Annotated[list[StrictInt], Field(description="Item ids, best of the first stage first.")]
    top_k: Annotated[StrictInt, Field(ge=1)] | None = Field(
        None, description="Length of the ranking; all by default."
    )
    reasoning: StrictBool = Field(True, description="Whether the answer tells the model's reasoning.")

    def query(self) -> Query:
        """The request as the re-ranker takes it."""
        return Query(self.history, self.candidates, self.reasoning)


class Validity(Strict):
    """How the model's raw answer was."""

    valid: bool = Field(description="It was a permutation of the candidates.")
    repaired: bool = Field(description="It was not, and the ranking is made from it: identifiers in their "
                           "first order, the rest in first-stage order.")  # fmt: skip
    flaws: list[str] = Field(description="duplicate, dropped, out_of_set or unparsable.")


class ModelInfo(Strict):
    """Which model answered."""

    name: str = Field(description="Stage that trained it.")
    version: str = Field(description="Digest of its weights.")


class Timings(Strict):
    """Milliseconds."""

    queue_ms: float = Field(description="Waiting for the batch.")
    decode_ms: float = Field(description="Decoding the batch.")
    total_ms: float = Field(description="From the body's arrival to the answer.")


class RerankResponse(Strict):
    """A ranking: always a permutation of the candidates, or its first ``top_k``."""

    ranking: list[int] = Field(description="Item ids, best first.")
    reasoning: str | None = Field(description="The model's reasoning; null when not asked for.")
    validity: Validity
    model: ModelInfo
    timings: Timings


class Problem(Strict):
    """What is wrong with a request, and where."""

    loc: Location = Field(description="body, then the field and the place in it.")
    msg: str
    type: str


class Refusal(Strict):
    """Answer to a bad request."""

    detail: list[Problem]


class Health(Strict):
    """A replica that answers."""

    status: str
    model: ModelInfo


def problems(error: ValidationError) -> list[Problem]:
    """What a body failed at, without repeating its content."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [Problem(loc=["body", *e["loc"]], msg=e["msg"], type=e["type"]) for e in found]
