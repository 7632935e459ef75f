"""The loop: resumable to the bit, indifferent to the split of a step, and each phase learns."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from ranks import OPTIM, make_task, train_as_rank
from ray.train import Checkpoint
from tiny import VOCABULARY, tiny_model, tiny_prompts, tiny_responses

from dgr2.config.schema import Config, GridConfig, OptimConfig, RayConfig
from dgr2.errors import DGR2Error
from dgr2.models.backbone import hidden_states
from dgr2.training.loop import Phase, fit, learning_rate, make_optimizer, micro_slices, step_indices
from dgr2.training.tasks import Cft, Sft
from dgr2.training.worker import read_checkpoint, training_state, write_checkpoint


@pytest.fixture(scope="module")
def config() -> Config:
    config = Config(grid=GridConfig(block_size=4, trace_blocks=2))
    config.cft.block_curriculum = [2, 4]
    return config


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    prompts, responses = tiny_prompts(20), tiny_responses(20)
    responses[3] = responses[3][:8] + [5, 6, 1, 1]  # two candidates only
    counts = [2 if i == 3 else 4 for i in range(20)]
    Dataset.from_dict(
        {"prompt_ids": prompts, "response_ids": responses, "candidates": [list(range(c)) for c in counts]}
    ).save_to_disk(str(folder / "instances" / "train"))
    Dataset.from_dict({"input_ids": [p + r for p, r in zip(prompts, responses, strict=True)]}).save_to_disk(
        str(folder / "midtrain")
    )
    return folder


def same(a, b):
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def test_a_gradient_that_is_not_finite_stops_before_the_weights_are_lost(data, config):
    model = tiny_model(31)
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("nan")
    before = model.model.norm.weight.clone()
    phase = Phase("sft", make_task("sft", data, config), OPTIM, 1)
    with pytest.raises(DGR2Error, match="not finite at step 1"):
        fit(model, phase, make_optimizer(model, OPTIM), 0, 0, lambda *_: None)
    assert torch.equal(model.model.norm.weight, before)


@pytest.mark.parametrize("kind", ["midtrain", "sft", "cft"])
def test_interrupted_training_ends_bit_identical(kind, data, config, tmp_path):
    torch.set_num_threads(1)
    phase = Phase(kind, make_task(kind, data, config), OPTIM, 1)

    whole = tiny_model(31)
    fit(whole, phase, make_optimizer(whole, OPTIM), 0, 0, lambda *_: None)

    class Killed(Exception):
        pass

    broken = tiny_model(31)
    optimizer = make_optimizer(broken, OPTIM)

    def die_after_four(step, _):
        if step == 4:
            write_checkpoint(tmp_path, training_state(broken, optimizer), 0, step)
        if step == 5:
            raise Killed

    with pytest.raises(Killed):
        fit(broken, phase, optimizer, 0, 0, die_after_four)
    state = read_checkpoint(Checkpoint.from_directory(tmp_path))
    resumed = tiny_model(99)
    resumed.load_state_dict(state["model"])
    resumed.tie_weights()
    optimizer = make_optimizer(resumed, OPTIM)
    optimizer.load_state_dict(state["optimizer"])
    fit(resumed, phase, optimizer, 0, state["step"], lambda *_: None)
    assert same(whole, resumed) and not same(whole, tiny_model(31))


@pytest.mark.parametrize("kind", ["midtrain", "sft", "cft"])
def test_gradient_does_not_depend_on_how_a_step_is_split(kind, data, config):
    task = make_task(kind, data, config)
    indices = step_indices(task.size, 6, 0, 0, 1)
    denominator = task.denominator(indices)

    def gradient(parts):
        model = tiny_model(32)
        prepared = task.prepare(indices, 3, 6, np.random.default_rng(5))
        for first, last in parts:
            loss, _ = task.loss(model, indices, slice(first, last), prepared)
            (loss / denominator).backward()
        return torch.cat([p.grad.reshape(-1) for p in model.parameters()])

    one = gradient([(0, 6)])
    for parts in ([(0, 3), (3, 6)], [(i, i + 1) for i in range(6)], [(0, 5), (5, 6)]):
        torch.testing.assert_close(gradient(parts), one, rtol=1e-4, atol=1e-6)
    assert one.abs().sum() > 0


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 120), st.data()
)
def test_micro_batches_cover_a_share_within_both_bounds(widths, size, tokens, data):
    start = data.draw(st.integers(0, len(widths)))
    stop = data.draw(st.integers(start, len(widths)))
    optim = OptimConfig(micro_batch_size=size, micro_batch_tokens=tokens)
    parts = list(micro_slices(widths, start, stop, optim))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(start, stop))
    cost = [max(widths[part]) * (part.stop - part.start) for part in parts]
    for part, padded in zip(parts, cost, strict=True):
        count = part.stop - part.start
        assert 0 < count <= size and (not tokens or padded <= tokens or count == 1)
    for part, after in itertools.pairwise(parts):  # none could have taken the next example
        grown = widths[part.start : after.start + 1]
        assert len(grown) > size or (tokens and len(grown) * max(grown) > tokens)


@pytest.mark.parametrize("kind", ["midtrain", "sft", "cft"])
def test_a_task_knows_the_width_of_its_forwards(kind, data, config, monkeypatch):
    """A budget counts what the forward really takes: the widest example, its blocks and noisy copies."""
    task, widths = make_task(kind, data, config), []

    def watched(model, rows):
        widths.append(rows.ids.shape)
        return hidden_states(model, rows)

    monkeypatch.setattr("dgr2.training.tasks.hidden_states", watched)
    indices = list(range(task.size))
    prepared = task.prepare(indices, 5, 6, np.random.default_rng(5))
    for i in indices:
        task.loss(tiny_model(32), indices, slice(i, i + 1), prepared)
    assert widths == [(1, task.tokens(i)) for i in indices]


@pytest.mark.parametrize("how", ["tokens", "recompute"])
def test_memory_bounds_change_no_result(how, data, config):
    ends = []
    for bounded in (False, True):
        model, optim = tiny_model(35), replace(OPTIM, steps=2)
        if bounded and how == "recompute":
            model.activation_checkpointing_enable()
        elif bounded:
            optim = replace(optim, micro_batch_tokens=90)
        phase = Phase("cft", make_task("cft", data, config), optim, 1)
        fit(model, phase, make_optimizer(model, optim), 0, 0, lambda *_: None)
        ends.append(model.state_dict())
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=1e-4, atol=1e-5)


def test_mixed_precision_trains_weights_in_fp32(data, config):
    losses = {}
    for mixed in (False, True):
        model, optim, seen = tiny_model(33), replace(OPTIM, steps=30), []
        phase = Phase("cft", make_task("cft", data, config), optim, 1)
        optimizer = make_optimizer(model, optim)
        fit(
            model,
            phase,
            optimizer,
            0,
            0,
            lambda _, f, seen=seen: seen.append(f["loss"]),
            mixed_precision=mixed,
        )
        assert all(p.dtype == torch.float32 for p in model.parameters())
        losses[mixed] = seen
    assert losses[True] != losses[False] and losses[True] == pytest.approx(losses[False], rel=0.03)


@pytest.mark.parametrize("how", [RayConfig(), RayConfig(shard=True, recompute_layers=True)])
def test_two_workers_train_and_log_what_one_does(how, data, config, tmp_path):
    """Also when they are interrupted, and where one worker has fewer forwards than the other."""
    train_as_rank(0, 1, tmp_path, data, config)
    torch.multiprocessing.spawn(train_as_rank, (2, tmp_path, data, config, how), nprocs=2)
    one, two = (torch.load(tmp_path / f"{world}.pt", weights_only=True) for world in (1, 2))
    for name, value in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], value, rtol=1e-4, atol=1e-5)
    for alone, together in zip(one["logged"], two["logged"], strict=True):
        assert together == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("kind", ["midtrain", "sft", "cft"])
def test_loss_falls(kind, data, config):
    optim = replace(OPTIM, steps=40)
    losses = []
    model = tiny_model(33)
    fit(
        model, Phase(kind, make_task(kind, data, config), optim, 1), make_optimizer(model, optim), 0, 0,
        lambda _, figures: losses.append(figures["loss"]),
    )  # fmt: skip
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


def test_reasoning_weighs_less_than_the_answer(data, config):
    config = copy.deepcopy(config)
    config.teacher.reason_weight = 0.0
    task = Sft(data, VOCABULARY, config)
    assert task.denominator([0]) == 5  # four labels and the end
    config.teacher.reason_weight = 0.5
    assert task.denominator([0]) == 5 + 0.5 * 8


def test_every_epoch_sees_every_example_once():
    seen = [i for step in range(10) for i in step_indices(20, 4, step, 7, 1)]
    assert sorted(seen[:20]) == list(range(20)) and sorted(seen[20:]) == list(range(20))
    assert seen[:20] != seen[20:]
    assert step_indices(3, 8, 0, 0, 1) and len(step_indices(3, 8, 0, 0, 1)) == 8


def test_curriculum_ends_on_the_last_block_size(data, config):
    task = Cft(data, VOCABULARY, config)
    assert [task.curriculum(s, 8) for s in range(8)] == [2, 2, 2, 2, 4, 4, 4, 4]


def test_learning_rate_warms_up_and_decays():
    optim = OptimConfig(steps=100, warmup=0.1, learning_rate=1.0)
    assert learning_rate(optim, 0) == pytest.approx(0.1)
    assert learning_rate(optim, 9) == pytest.approx(1.0)
    assert learning_rate(optim, 99) == pytest.approx(0.1, abs=0.01)
