"""Rollout workers, teacher, weight store and queue as actors, on models that fit in a cache line or two."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from tiny import GRID, VOCABULARY, tiny_model, tiny_prompts, tiny_responses
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from dgr2.actors.failures import get
from dgr2.actors.placement import require_capacity
from dgr2.actors.rollout_worker import RolloutGroup, RolloutModel
from dgr2.actors.sample_queue import SampleQueue
from dgr2.actors.teacher import TeacherGroup, TeacherModel, TeacherWorker
from dgr2.actors.weight_store import NONE, WeightStore
from dgr2.config.schema import DecodeConfig, RolloutConfig
from dgr2.data.vocabulary import (
    CONTROL,
    END,
    FILL,
    MASK,
    PAD,
    THINK_END,
    Vocabulary,
    grade_tokens,
    label_tokens,
)
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy, rollout_policy
from dgr2.decoding.trajectory import Trajectory
from dgr2.errors import (
    CapacityError,
    ConfigError,
    DGR2Error,
    RolloutDataError,
    RolloutInfraError,
    StaleWeightsError,
    StorageError,
)
from dgr2.models.backbone import save_model
from dgr2.rollout.capacity import loop_demands
from dgr2.rollout.checksum import checksum
from dgr2.rollout.chunks import chunk_seed
from dgr2.rollout.teacher import score_responses, tokenizer_fingerprint
from dgr2.rollout.weights import export_weights

pytestmark = pytest.mark.ray
CONFIG = RolloutConfig(timeout_s=240)
SEED, KEY, CHUNK = 3, (2, 5), 3
PROMPTS = tiny_prompts(10)
COUNTS = [4, 3, 2, 4, 4, 3, 4, 2, 4, 4]


def make_tokenizer(words: str = "word") -> PreTrainedTokenizerFast:
    tokens = [PAD, END, MASK, THINK_END, FILL, *label_tokens(4), *grade_tokens(2)]
    tokens += [f"{words}{i}" for i in range(VOCABULARY.size - len(tokens))]
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=FILL))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=END, mask_token=MASK
    )
    assert set(tokens) & set(CONTROL) and Vocabulary.from_tokenizer(tokenizer, 4) == VOCABULARY
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with its tokenizer, on a path with a space."""
    folder = tmp_path_factory.mktemp("a model")
    save_model(tiny_model(1, scale=20), folder, make_tokenizer())
    return folder


@pytest.fixture(scope="module")
def rollouts(cluster: None, folder: Path) -> Iterator[RolloutGroup]:
    with RolloutGroup(RolloutModel(folder, folder, GRID, "in_place", 4), CONFIG) as group:
        yield group


@pytest.fixture
def store(cluster: None) -> Iterator[ray.actor.ActorHandle]:
    actor = WeightStore.remote()
    yield actor
    ray.kill(actor)


def publish(store: ray.actor.ActorHandle, version: int, seed: int) -> None:
    state = export_weights(tiny_model(seed, scale=20))
    get(store.publish.remote(version, ray.put(state), checksum(state)), 60, "publication")


def sampling() -> DecodePolicy:
    return rollout_policy(DecodeConfig(), GRID, temperature=1.0)


def generate(group: RolloutGroup, key: tuple[int, ...] = KEY) -> list[Trajectory]:
    return group.generate(key, PROMPTS, COUNTS, sampling(), SEED, CHUNK)


def expected(seed: int) -> list[Trajectory]:
    """The same rollouts without any actor."""
    torch.set_num_threads(1)
    decoder, found = Decoder(tiny_model(seed, scale=20), VOCABULARY, GRID), []
    for i, start in enumerate(range(0, len(PROMPTS), CHUNK)):
        part = slice(start, start + CHUNK)
        found += decoder.decode(
            PROMPTS[part], COUNTS[part], sampling(), CHUNK, seed=chunk_seed(SEED, *KEY, i)
        )
    return found


def test_rollouts_are_those_of_the_version_asked_for(
    rollouts: RolloutGroup, store: ray.actor.ActorHandle
) -> None:
    for version, seed in ((0, 8), (1, 9)):
        publish(store, version, seed)
        rollouts.arm(get(store.fetch.remote(version), 60, "weights"))
        assert generate(rollouts) == expected(seed)
    assert generate(rollouts, (2, 6)) != expected(9)


def test_lost_workers_do_not_show(rollouts: RolloutGroup, store: ray.actor.ActorHandle) -> None:
    publish(store, 5, 8)
    rollouts.arm(get(store.fetch.remote(5), 60, "weights"))
    lost = rollouts.pool.replacements
    ray.kill(rollouts.pool.actors[1])
    assert generate(rollouts) == expected(8)
    assert rollouts.pool.replacements == lost + 1
    assert all(generate(rollouts) == expected(8) for _ in range(2))
    rollouts.arm(get(store.fetch.remote(5), 60, "weights"))  # the replacement is up now at the latest
    versions = [actor.version.remote() for actor in rollouts.pool.actors if actor is not None]
    assert ray.get(versions, timeout=60) == [5, 5]


def test_a_worker_refuses_other_weights_and_damaged_ones(
    rollouts: RolloutGroup, store: ray.actor.ActorHandle
) -> None:
    publish(store, 6, 8)
    weights = get(store.fetch.remote(6), 60, "weights")
    rollouts.arm(weights)
    worker = rollouts.pool.actors[0]
    with pytest.raises(StaleWeightsError, match="at version 7 asked of a worker that holds version 6"):
        get(worker.generate.remote(7, PROMPTS, COUNTS, sampling().record(), 0, 4), 60, "rollout")
    with pytest.raises(StorageError, match="version 7 of the weights arrived damaged"):
        get(worker.load_weights.remote(7, weights.state, "0" * 64), 60, "weights")
    assert get(worker.version.remote(), 60, "version") == NONE
    assert generate(rollouts) == expected(8)  # refused as stale, armed, done


def test_a_prompt_that_cannot_be_decoded_names_its_chunk(
    rollouts: RolloutGroup, store: ray.actor.ActorHandle, all_free: Callable[[], None]
) -> None:
    publish(store, 0, 8)
    rollouts.arm(get(store.fetch.remote(0), 60, "weights"))
    with pytest.raises(RolloutDataError, match=r"rollout 1\.7, chunk 1: prompt 0 is empty"):
        rollouts.generate((1, 7), [[11], [12], []], [4, 4, 4], sampling(), SEED, 2)
    all_free()
    with pytest.raises(DGR2Error, match="the pool of rollout workers is closed"):
        generate(rollouts)


def test_teacher_scores_survive_a_lost_worker(folder: Path, all_free: Callable[[], None]) -> None:
    responses = [r[: len(r) - i % 4] for i, r in enumerate(tiny_responses(10))]
    torch.set_num_threads(1)
    reference = score_responses(tiny_model(1, scale=20), PROMPTS, responses, VOCABULARY, 5, CHUNK)
    spec = TeacherModel(folder, folder, tokenizer_fingerprint(make_tokenizer()), 4)
    with TeacherGroup(spec, CONFIG) as teacher:
        teacher.ready()
        first = teacher.score(PROMPTS, responses, 5, CHUNK)
        ray.kill(teacher.pool.actors[0])
        second = teacher.score(PROMPTS, responses, 5, CHUNK)
        assert teacher.pool.replacements == 1
    for scores in (first, second):
        for found, wanted in zip(scores, reference, strict=True):
            assert all(map(np.array_equal, found, wanted))
    all_free()


def test_a_teacher_of_another_tokenizer_is_refused(folder: Path) -> None:
    other = tokenizer_fingerprint(make_tokenizer("other"))
    with pytest.raises(ConfigError, match=rf"is not the student's \({other}\)"):
        TeacherWorker(TeacherModel(folder, folder, other, 4), 1)


def test_the_store_keeps_two_versions_and_wakes_who_waits(store: ray.actor.ActorHandle) -> None:
    state = {"w": np.arange(4, dtype=np.float32)}
    digest = checksum(state)
    early = store.wait_for.remote(2, 60)
    assert get(store.latest.remote(), 60, "version") == NONE
    for version in (0, 1, 2):
        figures = {"loss": float(version)}
        get(store.publish.remote(version, ray.put(state), digest, figures), 60, "publication")
    woken = get(early, 60, "weights")
    assert (woken.version, woken.checksum, woken.figures) == (2, digest, {"loss": 2.0})
    assert np.array_equal(ray.get(woken.state, timeout=60)["w"], state["w"])
    assert get(store.publish.remote(2, state, digest), 60, "publication") == 2
    with pytest.raises(StaleWeightsError, match=r"version 0 .* there are: \[1, 2\]"):
        get(store.fetch.remote(0), 60, "weights")
    with pytest.raises(DGR2Error, match="version 1 of the weights cannot follow version 2"):
        get(store.publish.remote(1, state, digest), 60, "publication")
    with pytest.raises(StorageError, match="damaged"):
        get(store.publish.remote(3, {"w": state["w"] + 1}, digest), 60, "publication")
    with pytest.raises(RolloutInfraError, match=r"version 3 .* not published within 0\.1 s; the latest is 2"):
        get(store.wait_for.remote(3, 0.1), 60, "weights")
    late = store.wait_for.remote(3, 60)
    get(store.close.remote(DGR2Error("the trainer ran out of memory")), 60, "close")
    with pytest.raises(DGR2Error, match="^the trainer ran out of memory$"):
        get(late, 60, "weights")


def test_the_queue_holds_producers_back_and_tells_the_first_cause(cluster: None) -> None:
    queue = SampleQueue.remote(2)
    puts = [queue.put.remote(block, 60) for block in range(5)]  # at the same time: in any order
    _, held = ray.wait(puts, num_returns=2, timeout=60)
    time.sleep(0.2)
    assert len(held) == 3 and not ray.wait(held, timeout=0)[0]
    assert sorted(get(queue.get.remote(60), 60, "block") for _ in range(5)) == [0, 1, 2, 3, 4]
    for block in "ab":
        get(queue.put.remote(block, 60), 60, "room")
    assert [get(queue.get.remote(60), 60, "block") for _ in range(2)] == ["a", "b"]
    assert get(queue.figures.remote(), 60, "figures") == {"size": 0, "high_water": 2, "bound": 2}
    waiting = queue.get.remote(60)
    get(queue.close.remote(RolloutDataError("chunk 3: no answer")), 60, "close")
    with pytest.raises(RolloutDataError, match="^chunk 3: no answer$"):
        get(waiting, 60, "block")
    ray.kill(queue)


def test_a_wait_says_what_was_asked_for_and_what_is_free(cluster: None) -> None:
    queue = SampleQueue.remote(1)
    with pytest.raises(RolloutInfraError, match=r"within 0\.2 s; asked for 3 CPUs each; free: 2 of 2"):
        get(queue.get.remote(60), 0.2, "block", {"CPU": 3})
    waiting = queue.get.remote(60)
    ray.kill(queue)
    with pytest.raises(RolloutInfraError, match="block: "):
        get(waiting, 60, "block")


def test_the_preflight_reads_the_cluster(cluster: None) -> None:
    require_capacity(loop_demands(CONFIG, 1, 1))
    with pytest.raises(CapacityError, match="together 2.75 CPUs, and the cluster has 2"):
        require_capacity(loop_demands(CONFIG, 2, 1))
