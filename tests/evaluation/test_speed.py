from __future__ import annotations

import time

import pytest

from dgr2.decoding.policy import ar_policy, native_policy
from dgr2.evaluation.speed import time_in_turns


@pytest.fixture
def slow_engine(make_engine, say):
    def script(prompt, policy):
        time.sleep(0.009 if policy.name == "ar" else 0.003)
        return say.respond(list(say.labels))

    return make_engine(script)


def test_speedup_is_the_ratio_of_rates(slow_engine, held_out, config):
    policies = {"ar": ar_policy(), "native": native_policy(config.decode, config.grid)}
    timings = time_in_turns(slow_engine, held_out.prompts, held_out.counts, policies)
    assert len(timings["ar"].tokens) == len(held_out)
    assert set(timings["ar"].tokens) == {12}, "thirteen tokens, one of them fill"
    gain = timings["native"].speedup(timings["ar"], 200, seed=0)
    assert 2 < gain.value < 4 and gain.low <= gain.value <= gain.high


def test_turns_alternate_after_a_warm_up(slow_engine, held_out, config):
    policies = {"ar": ar_policy(), "native": native_policy(config.decode, config.grid)}
    time_in_turns(slow_engine, held_out.prompts[:3], held_out.counts[:3], policies)
    names = [name for name, _ in slow_engine.decoder.calls]
    assert names == ["ar", "native", "ar", "native", "native", "ar", "ar", "native"]


def test_batches_are_full(slow_engine, held_out):
    timings = time_in_turns(slow_engine, held_out.prompts, held_out.counts, {"ar": ar_policy()}, batch_size=5)
    assert timings["ar"].tokens == [60, 60]
