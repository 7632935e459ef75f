"""The whole evaluation on a run folder whose checkpoints are decoded by a script."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from dgr2.benchmarks import decode
from dgr2.errors import ConfigError
from dgr2.evaluation.report import print_report
from dgr2.jobs.bench import Synthetic, bench
from dgr2.jobs.evaluate import evaluate
from dgr2.jobs.run import StageContext
from dgr2.storage import read_json
from dgr2.telemetry import MetricLog, Progress

METRICS = {"recall@1", "recall@3", "recall@5", "ndcg@3", "ndcg@10"}
DECODE = {
    "policy", "threshold", "block_size", "batch_size", "tokens_per_forward", "tokens_per_forward_answer",
    "tokens_per_second", "speedup_vs_ar",
}  # fmt: skip
VALIDITY = {"native", "policy", "duplicate", "dropped", "out_of_set", "unparsable"}


@pytest.fixture
def run_evaluation(story_run, story_config, story_decoders):
    def go() -> dict:
        console = Console(file=open("/dev/null", "w"))  # noqa: SIM115
        metrics = MetricLog(story_run)
        with Progress(console) as progress:
            evaluate(StageContext(story_run, story_config, progress, metrics, console))
        metrics.close()
        return read_json(story_run.report)

    return go


def test_report_holds_every_row_as_agreed(run_evaluation):
    report = run_evaluation()
    stages = {stage["name"]: stage for stage in report["stages"]}
    assert list(stages) == ["pre_rank", "lambdamart", "ar_teacher", "naive_conversion", "cft", "cft_ar"]
    for stage in stages.values():
        assert METRICS == set(stage["metrics"]) == set(stage["metrics_native"])
        assert all({"value", "ci95"} == set(metric) for metric in stage["metrics"].values())
        assert set(stage["validity"]) >= VALIDITY
        if stage["name"] not in ("pre_rank", "lambdamart"):
            assert set(stage["decode"]) >= DECODE and set(stage["decode_native"]) >= DECODE
    assert report["instances"] == 12 and report["oracle"]["recall@1"] == 1
    assert stages["pre_rank"]["metrics"]["recall@1"]["value"] == pytest.approx(0.25)
    assert stages["lambdamart"]["metrics"]["recall@1"]["value"] == 1
    assert stages["naive_conversion"]["validity"] == {
        "policy": 1, "native": 0, "duplicate": 0, "dropped": 0, "out_of_set": 0, "unparsable": 1,
    }  # fmt: skip
    cft = stages["cft"]
    assert cft["validity"]["native"] == pytest.approx(9 / 12) == 1 - cft["validity"]["duplicate"]
    assert cft["decode_native"]["tokens_per_forward"] > 2.5 > stages["cft_ar"]["decode"]["tokens_per_forward"]
    assert cft["decode"]["speedup_vs_ar"] > 1.2 and stages["cft_ar"]["decode"]["speedup_vs_ar"] == 1
    assert (stages["ar_teacher"]["seconds"], stages["naive_conversion"]["seconds"]) == (11.0, 0.0)


def test_pairs_are_taken_on_the_same_instances(run_evaluation, story_config):
    pairs = {(p["a"], p["b"], p["metric"]): p for p in run_evaluation()["paired"]}
    gain = pairs["ar_teacher", "pre_rank", "recall@1"]
    assert gain["delta"] == pytest.approx(0.75) and gain["ci95"][0] > 0 and gain["n"] == 12
    assert {"delta", "ci95", "n", "a", "b", "metric"} == set(gain)
    assert ("cft", "ar_teacher", "ndcg@3") in pairs


def test_files_of_the_run(run_evaluation, story_run, story_config):
    report = run_evaluation()
    for plot in ("metrics", "validity", "sweep"):
        assert (story_run.plots / f"{plot}.png").stat().st_size > 10_000
    samples = [json.loads(line) for line in (story_run.samples / "cft.jsonl").read_text().splitlines()]
    assert len(samples) == 24 and {s["decode"] for s in samples} == {"policy", "native"}
    assert len(report["examples"]) == story_config.evaluation.examples
    assert set(report["position_bias"]) == {"shuffled", "relabelled"}
    assert [p["threshold"] for p in report["sweep"]] == story_config.evaluation.sweep
    assert "| naive_conversion |" in story_run.report.with_suffix(".md").read_text()
    logged = [json.loads(line) for line in story_run.metrics_file.read_text().splitlines()]
    assert any("cft/recall@1" in line["metrics"] for line in logged)


def test_rows_of_unfinished_stages_are_left_out(run_evaluation, story_run):
    (story_run.path / "stages" / "cft.json").unlink()
    report = run_evaluation()
    assert [s["name"] for s in report["stages"]][-1] == "naive_conversion"
    assert report["sweep"] == report["examples"] == [] and report["position_bias"] == {}


def test_a_second_evaluation_decodes_nothing_and_says_the_same(run_evaluation, story_decoders):
    first = run_evaluation()
    for decoder in story_decoders.values():
        decoder.calls.clear()
    assert run_evaluation() == first
    assert not any(decoder.calls for decoder in story_decoders.values())


def test_an_interrupted_evaluation_continues_at_the_row_it_stopped_in(
    run_evaluation, story_decoders, monkeypatch
):
    cft = story_decoders["cft"]
    with monkeypatch.context() as patch:
        patch.setattr(cft, "script", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            run_evaluation()
    teacher = story_decoders["teacher"]
    teacher.calls.clear()
    report = run_evaluation()
    assert {count for _, count in teacher.calls} == {1}, "only the timings at batch 1 are still to do"
    assert len(report["stages"]) == 6


def test_changed_weights_are_decoded_again(run_evaluation, story_decoders, story_run):
    run_evaluation()
    for decoder in story_decoders.values():
        decoder.calls.clear()
    (story_run.checkpoint("cft") / "model.safetensors").write_bytes(b"other weights")
    run_evaluation()
    assert story_decoders["cft"].calls and not story_decoders["teacher"].calls


def test_naive_conversion_may_take_fewer_instances(run_evaluation, story_config):
    story_config.evaluation.naive_instances = 5
    counts = {stage["name"]: stage["instances"] for stage in run_evaluation()["stages"]}
    assert counts["naive_conversion"] == 5 and counts["cft"] == 12


def test_report_is_printed_within_80_columns(run_evaluation, story_run):
    run_evaluation()
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_report(story_run, console)
    text = console.export_text()
    for wanted in ("naive_conversion", "oracle", "Example 3", "green tea", str(story_run.plots)):
        assert wanted in text


SYNTHETIC = Synthetic("small", 2, "cpu", 6)


def test_bench_decode_writes_figures_with_bounds(story_run, story_config, story_decoders, monkeypatch):
    for needs_a_model in ("_hugging_face", "compiled_figures", "forward_figures"):
        monkeypatch.setattr(decode, needs_a_model, lambda *_: {})
    console = Console(file=open("/dev/null", "w"))  # noqa: SIM115
    figures = bench("decode", story_run, story_config, SYNTHETIC, console)
    wanted = {"decode_speedup_b1", "decode_speedup_b12", "decode_tokens_per_forward_answer", "lossless_equal"}
    assert set(figures) >= wanted
    for figure in figures.values():
        assert set(figure) == {"value", "low", "high", "unit"}
        rounding = 1e-12 * abs(figure["value"])
        assert figure["low"] - rounding <= figure["value"] <= figure["high"] + rounding


def test_bench_refuses_what_it_cannot_measure(story_run, story_config):
    def refused(what, run, words, shape="small"):
        with pytest.raises(ConfigError, match=words):
            bench(what, run, story_config, replace(SYNTHETIC, shape=shape), Console())

    refused("decod", story_run, "no benchmark 'decod'; choose one of decode")
    refused("decode", None, "qwen3-0.6b", shape="large")
    refused("train", story_run, "leave --run out")
    refused("replay", None, "qwen3-0.6b", shape="large")
    (story_run.path / "stages" / "cft.json").unlink()
    refused("decode", story_run, "cft")
