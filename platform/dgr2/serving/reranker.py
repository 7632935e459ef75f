"""From a request to a permutation: prompt, decode by the shipped policy, repair, reasoning. Knows no Ray."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from dgr2.data.instances import InstanceBuilder
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.load import LoadTable, narrower, powers
from dgr2.decoding.policy import DecodePolicy, shipped_policy
from dgr2.decoding.shipped import Shipped
from dgr2.decoding.trajectory import Trajectory
from dgr2.errors import DataError, StorageError
from dgr2.evaluation.answer import FLAWS, parse_answer
from dgr2.evaluation.engine import Engines
from dgr2.evaluation.readable import Reader
from dgr2.models.backbone import load_model
from dgr2.models.grid import BlockGrid
from dgr2.serving.location import students
from dgr2.storage import RunFolder

log = logging.getLogger(__name__)

LOAD_EXAMPLES = 8
"""Requests that the decodes of a replica are timed on."""


@dataclass(frozen=True)
class Query:
    """A list to rank: item ids of the history, oldest first, and of the candidates in first-stage order."""

    history: list[int]
    candidates: list[int]
    reasoning: bool = True


@dataclass(frozen=True)
class Ranked:
    """An answer: ``ranking`` is a permutation of the candidates; ``flaws`` are those of the raw decode."""

    ranking: list[int]
    reasoning: str | None
    flaws: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """Whether the raw decode was a permutation."""
        return not self.flaws


class InvalidQuery(DataError):
    """A request that cannot be ranked.

    Attributes:
        location: field, and the place in it where one is at fault.
    """

    def __init__(self, location: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.location = location


class Reranker:
    """A student with all it needs to answer. One thread at a time: the decoder's cache is shared."""

    def __init__(
        self,
        name: str,
        version: str,
        builder: InstanceBuilder,
        decoder: Decoder,
        policy: DecodePolicy,
        reader: Reader,
        candidates: int,
        max_history: int,
    ) -> None:
        self.name, self.version = name, version
        self.builder, self.decoder, self.policy, self.reader = builder, decoder, policy, reader
        self.candidates, self.max_history = candidates, max_history
        self.load = LoadTable((policy,), {})
        self.items = len(builder.items.leaf) - 1
        popularity = builder.statistics.popularity[1:]
        self.popular: list[int] = (1 + np.argsort(-popularity, kind="stable")).tolist()

    @classmethod
    def load(cls, run: RunFolder, stage: str, max_history: int) -> Reranker:
        """Load the student of a stage.

        Raises:
            DGR2Error: a file is missing, damaged, or does not fit the others.
        """
        disable_progress_bar()
        folder = run.checkpoint(stage)
        shipped = Shipped.load(folder)
        _require_same_tokenizer(folder, run.tokenizer)
        tokenizer = AutoTokenizer.from_pretrained(run.tokenizer, local_files_only=True)
        vocabulary = Vocabulary.from_tokenizer(tokenizer, shipped.candidates)
        model = load_model(folder)
        if not all(bool(torch.isfinite(weights).all()) for weights in model.parameters()):
            raise StorageError(f"{folder} holds weights that are not finite")
        reranker = cls(
            name=stage,
            version=Engines(run, vocabulary, run.config()).digest(stage),
            builder=InstanceBuilder.load(run.data),
            decoder=Decoder(model, vocabulary, shipped.grid, shipped.alignment),
            policy=shipped_policy(shipped.decode, shipped.grid),
            reader=Reader(tokenizer, vocabulary, run.data),
            candidates=shipped.candidates,
            max_history=max_history,
        )
        reranker.require_room()
        return reranker

    @property
    def longest_prompt(self) -> int:
        """Bound on the tokens of a prompt: all candidates, no field left short, nothing cited."""
        table = self.builder.tokens
        line = 1 + table.codes.shape[1] + table.category.shape[1] + table.brand.shape[1] + len(table.evidence)
        shown = self.builder.reader.shown * table.codes.shape[1] + self.builder.reader.room
        return len(table.head) + shown + self.candidates * line + len(table.tail)

    def require_room(self) -> None:
        """Refuse a model whose longest prompt leaves no room for the response.

        Raises:
            StorageError: with the numbers.
        """
        grid, prompt = self.decoder.grid, self.longest_prompt
        response = grid.trace_blocks * grid.block_size + BlockGrid(grid.block_size).padded(
            self.candidates + 1
        )
        if prompt + response > self.decoder.context:
            raise StorageError(
                f"prompts of '{self.name}' take up to {prompt} tokens and responses {response}, more than "
                f"the context of {self.decoder.context}"
            )

    def check(self, query: Query) -> None:
        """Refuse what ``rerank`` could not answer, before it gets into a batch with others.

        Raises:
            InvalidQuery: naming the field.
        """
        if not query.history:
            raise InvalidQuery(("history",), "names no item; at least one is needed")
        if len(query.history) > self.max_history:
            raise InvalidQuery(
                ("history",),
                f"has {len(query.history)} items, at most {self.max_history} are taken: send the latest",
            )
        if not query.candidates:
            raise InvalidQuery(("candidates",), "is empty")
        if len(query.candidates) > self.candidates:
            raise InvalidQuery(
                ("candidates",),
                f"has {len(query.candidates)} items; this model ranks at most {self.candidates}",
            )
        for field, items in (("history", query.history), ("candidates", query.candidates)):
            for place, item in enumerate(items):
                if not 1 <= item <= self.items:
                    raise InvalidQuery(
                        (field, place), f"no such item: the catalogue has items 1 to {self.items}"
                    )
        item, times = Counter(query.candidates).most_common(1)[0]
        if times > 1:
            raise InvalidQuery(("candidates",), f"names item {item} {times} times")

    def rerank(self, queries: Sequence[Query]) -> list[Ranked]:
        """Rank lists that passed ``check``; answers in the order of the queries."""
        answers = {
            i: Ranked(list(q.candidates), "" if q.reasoning else None, ()) for i, q in enumerate(queries)
        }
        several = [i for i, query in enumerate(queries) if len(query.candidates) > 1]
        if several:
            lists = [queries[i].candidates for i in several]
            instances = self.builder.build([queries[i].history for i in several], lists)
            trajectories = self.decoder.decode(
                [instance.prompt_ids for instance in instances],
                list(map(len, lists)),
                self.load.choose(len(several)),
                len(several),
            )
            for i, trajectory in zip(several, trajectories, strict=True):
                answers[i] = self._answer(queries[i], trajectory)
        return [answers[i] for i in range(len(queries))]

    def _answer(self, query: Query, trajectory: Trajectory) -> Ranked:
        """Parse a decode; an invalid one is repaired as evaluation scores it."""
        answer = parse_answer(
            trajectory.tokens, self.decoder.vocabulary, len(query.candidates), trajectory.answer_start
        )
        reasoning = None
        if query.reasoning:
            reasoning = self.reader.reasoning(trajectory.tokens[: answer.start], query.candidates)
        return Ranked(
            ranking=[query.candidates[place] for place in answer.ranking],
            reasoning=reasoning,
            flaws=tuple(flaw for flaw in FLAWS if getattr(answer, flaw)),
        )

    def example(self, rank: int = 0) -> Query:
        """A request to start from: a popular item and what others had with it, and the first stage's list.

        Args:
            rank: Items more popular than that one.
        """
        last = self.popular[rank]
        near = self.builder.retriever.retrieve([[last]], 1).items[0]
        before = int(near[0]) or (last % self.items) + 1
        history = [before, last]
        found = self.builder.retriever.retrieve([history], min(self.candidates, self.items - 2)).items[0]
        listed = [int(item) for item in found if item]
        rest = [item for item in self.popular if item not in (*history, *listed)]
        return Query(history, (listed + rest)[: len(found)])

    def follow_load(self, largest_batch: int) -> None:
        """Measure which decode is fastest at which batch size; from now on each batch takes that one."""
        queries = [self.example(rank) for rank in range(min(LOAD_EXAMPLES, self.items))]
        lists = [query.candidates for query in queries]
        instances = self.builder.build([query.history for query in queries], lists)
        self.load = LoadTable.measure(
            self.decoder,
            narrower(self.policy),
            [instance.prompt_ids for instance in instances],
            list(map(len, lists)),
            powers(largest_batch),
            rounds=2,
        )

    def smoke_test(self) -> None:
        """Answer the example.

        Raises:
            StorageError: the answer is no permutation.
        """
        query = self.example()
        self.check(query)
        (answer,) = self.rerank([query])
        if sorted(answer.ranking) != sorted(query.candidates):
            raise StorageError(f"'{self.name}' does not answer a simple request")


def load_newest(run: RunFolder, max_history: int, stages: Sequence[str] | None = None) -> Reranker:
    """The newest good student of a run: one that loads and answers a request.

    Args:
        stages: those to choose from, the best first; all finished ones by default.

    Raises:
        StorageError: there is none; the message says what is wrong with each.
    """
    found, reasons = students(run), []
    for name in found if stages is None else stages:
        try:
            if name not in found:
                raise StorageError(f"'{name}' has not finished")
            reranker = Reranker.load(run, name, max_history)
            reranker.smoke_test()
        except Exception as error:  # whatever keeps it from answering now would keep it from serving
            reasons.append(f"{name}: {(str(error) or type(error).__name__).splitlines()[0]}")
            continue
        for reason in reasons:
            log.warning("passed over %s", reason)
        return reranker
    raise StorageError(f"{run.path} has no student to serve: {'; '.join(reasons) or 'none has finished'}")


def _require_same_tokenizer(checkpoint: Path, tokenizer: Path) -> None:
    """A checkpoint of an earlier ``prepare`` would read other tokens than the prompts are made of."""
    own, prepared = checkpoint / "tokenizer.json", tokenizer / "tokenizer.json"
    if own.is_file() and own.read_bytes() != prepared.read_bytes():
        raise StorageError(
            f"{checkpoint} was trained with another tokenizer than {tokenizer}: train the stage anew"
        )
