"""A tiny vocabulary, held-out lists and a decoder that says what a test tells it to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from dgr2.config import Config, load_config
from dgr2.data.instances import InstanceBuilder
from dgr2.data.vocabulary import CONTROL, END, Vocabulary, grade_tokens, label_tokens
from dgr2.data.vocabulary import PAD as PAD_TOKEN
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.trajectory import Trajectory
from dgr2.evaluation.engine import Engine, Engines
from dgr2.evaluation.instances import HeldOut
from dgr2.storage import RunFolder, write_json

PAD, EOS, MASK, THINK_END, FILL, WORD = range(6)
LABELS = (10, 11, 12, 13)
OUTSIDE = 14
"""A fifth label: part of the vocabulary, never among the four candidates of these tests."""


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(30, PAD, EOS, MASK, THINK_END, FILL, (*LABELS, OUTSIDE), (20, 21))


@pytest.fixture
def config() -> Config:
    overrides = ["grid.block_size=8", "grid.trace_blocks=2", "data.candidates=5", "evaluation.bootstrap=200"]
    return load_config("demo", [*overrides, "cft.block_curriculum=[4,8]"])


@pytest.fixture
def held_out() -> HeldOut:
    """Twelve lists; the target stands at every place in turn, and the expert always puts it first."""
    size = 12
    targets = [i % 4 for i in range(size)]
    return HeldOut(
        users=list(range(1, size + 1)),
        histories=[[5, 6] for _ in range(size)],
        candidates=[[1, 2, 3, 4] for _ in range(size)],
        targets=targets,
        scores=[[4.0, 3.0, 2.0, 1.0] for _ in range(size)],
        orders=[[t, *(c for c in range(4) if c != t)] for t in targets],
        prompts=[[25, 90 + i, *LABELS] for i in range(size)],
        oracle=[[float(c == t) for c in range(4)] for t in targets],
    )


def respond(answer: list[int], closed: bool = True) -> list[int]:
    """Eight tokens of trace, then the answer and the end token."""
    trace = [WORD] * 6 + [THINK_END, FILL] if closed else [WORD] * 8
    return [*trace, *answer, EOS]


class FakeDecoder:
    """Answers every prompt with ``script(prompt, policy)``; blocks take a quarter of the forwards."""

    def __init__(self, script: Callable[[list[int], DecodePolicy], list[int]]) -> None:
        self.script = script
        self.calls: list[tuple[str, int]] = []

    def decode(self, prompts, candidates, policy, batch_size=1, on_done=None, seed=0):  # noqa: ANN001, ANN201
        self.calls.append((policy.name, len(prompts)))
        decoded = []
        for prompt, count in zip(prompts, candidates, strict=True):
            tokens = self.script(prompt, policy)
            forwards = len(tokens) if policy.name == "ar" else -(-len(tokens) // 4)
            decoded.append(
                Trajectory(
                    tokens=tokens, steps=[0] * len(tokens), logprobs=[0.0] * len(tokens), forwards=forwards,
                    forwards_answer=max(1, forwards // 3), answer_start=8, candidates=count,
                    policy=policy.record(),
                )
            )  # fmt: skip
        if on_done:
            on_done(len(decoded))
        return decoded


@pytest.fixture
def make_engine(vocabulary: Vocabulary, config: Config) -> Callable[..., Engine]:
    """An engine around a script."""

    def make(script: Callable[[list[int], DecodePolicy], list[int]]) -> Engine:
        return Engine(FakeDecoder(script), vocabulary, config)  # type: ignore[arg-type]

    return make


@pytest.fixture
def say() -> SimpleNamespace:
    """The token ids of these tests by name, and ``respond``."""
    return SimpleNamespace(
        respond=respond, labels=LABELS, outside=OUTSIDE, word=WORD, fill=FILL, eos=EOS, think_end=THINK_END
    )


@pytest.fixture
def story_config(config: Config) -> Config:
    """Small numbers for an evaluation of twelve lists."""
    evaluation = config.evaluation
    evaluation.speed_instances, evaluation.sweep_instances, evaluation.sweep = 12, 6, [0.5, 0.9]
    return config


@pytest.fixture
def story_tokenizer() -> PreTrainedTokenizerFast:
    """Every token that a response of these tests can hold, a word each."""
    levels = [f"<s{level}_{code}>" for level in (0, 1) for code in range(8)]
    evidence = [f"<{name}_{level}>" for name in ("follow", "brand_share") for level in range(4)]
    words = [*CONTROL, *label_tokens(5), *grade_tokens(2), *levels, *evidence, "often", "user"]
    words += [f"list{i}" for i in range(12)]
    model = WordLevel({word: i for i, word in enumerate(words)}, unk_token=PAD_TOKEN)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD_TOKEN, eos_token=END)


@pytest.fixture
def story_vocabulary(story_tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    return Vocabulary.from_tokenizer(story_tokenizer, 5)


@pytest.fixture
def story_run(
    tmp_path: Path, story_config: Config, held_out: HeldOut, story_tokenizer: PreTrainedTokenizerFast
) -> RunFolder:
    """A run whose stages have finished, as far as their files show it."""
    run = RunFolder.create_or_open(tmp_path / "run", story_config)
    first, labels = (story_tokenizer.convert_tokens_to_ids(t) for t in ("list0", label_tokens(4)))
    columns = {
        "user": held_out.users,
        "history": held_out.histories,
        "candidates": held_out.candidates,
        "target": [c[t] for c, t in zip(held_out.candidates, held_out.targets, strict=True)],
        "scores": held_out.scores,
        "order": held_out.orders,
        "prompt_ids": [[first + i, *labels] for i in range(len(held_out))],
        "oracle": held_out.oracle,
    }
    Dataset.from_dict(columns).save_to_disk(str(run.data / "instances" / "test"))
    items = list(range(1, 7))
    titles = [f"green tea {item}" for item in items[:-1]] + [""]
    Dataset.from_dict({"item_id": items, "title": titles}).save_to_disk(str(run.data / "items"))
    write_json(run.data / "semantic_ids.json", {str(item): [0, item] for item in items})
    story_tokenizer.save_pretrained(run.tokenizer)
    for stage, seconds in (("prepare", 5.0), ("teacher", 11.0), ("cft", 7.0)):
        run.finish_stage(stage, "f", seconds, {})
        run.checkpoint(stage).mkdir(parents=True)
        (run.checkpoint(stage) / "model.safetensors").write_bytes(stage.encode())
    return run


@pytest.fixture
def story_decoders(
    monkeypatch: pytest.MonkeyPatch, story_vocabulary: Vocabulary, story_config: Config
) -> dict[str, FakeDecoder]:
    """Decoders in the place of the checkpoints: the teacher's blocks never close a trace natively, one native
    answer in four of the student repeats an identifier, and all else puts the target first."""
    v = story_vocabulary

    def script(stage: str) -> Callable[[list[int], DecodePolicy], list[int]]:
        def respond_to(prompt: list[int], policy: DecodePolicy) -> list[int]:
            place = (prompt[0] - first) % 4 if first <= prompt[0] < first + 12 else 0
            best = v.labels[place]
            answer = [best, *(label for label in v.labels[:4] if label != best)]
            if stage == "cft" and policy.name == "native" and place == 3:
                answer.append(best)
            time.sleep(0.004 if policy.name == "ar" else 0.001)
            closed = stage == "cft" or policy.name == "ar"
            trace = [v.grades[0]] * 6 + ([v.think_end, v.fill] if closed else [v.grades[0]] * 2)
            return [*trace, *answer, v.eos]

        return respond_to

    first = v.grades[-1] + 1 + 16 + 8 + 2  # after codes, evidence and two words
    decoders = {stage: FakeDecoder(script(stage)) for stage in ("teacher", "cft")}

    def get(self: Engines, stage: str) -> Engine:
        return Engine(decoders[stage], v, story_config)  # type: ignore[arg-type]

    def build(self: object, histories: list, candidates: list, scores: list | None = None) -> list:
        return [SimpleNamespace(prompt_ids=[first, *v.labels[:4]]) for _ in candidates]

    monkeypatch.setattr(Engines, "get", get)
    builder = type("Builder", (), {"build": build})()
    monkeypatch.setattr(InstanceBuilder, "load", classmethod(lambda cls, folder: builder))
    return decoders
