"""What ``dgr2 bench decode`` compares, and what it leaves behind."""

from __future__ import annotations

import pytest
from matplotlib.image import imread
from tiny import GRID, VOCABULARY, tiny_model

from dgr2.benchmarks.decode import compared
from dgr2.benchmarks.decode_shape import BATCHES, bench_decode_shape
from dgr2.benchmarks.figures import Summary, exact
from dgr2.benchmarks.plots import write_decode_plot
from dgr2.benchmarks.shapes import find_device
from dgr2.config.schema import Config
from dgr2.decoding.decoder import Decoder
from dgr2.errors import ConfigError
from dgr2.evaluation.engine import Engine


def engine_of(config: Config) -> Engine:
    return Engine(Decoder(tiny_model(95), VOCABULARY, config.grid), VOCABULARY, config)


def test_every_policy_is_compared_with_the_ar_decode_of_its_kind():
    config = Config()
    config.evaluation.sweep = [0.5, 0.9]
    policies = compared(engine_of(config))
    assert policies["readout"][1] == "ar_readout" and policies["readout"][0].verify
    assert policies["lossless"] == policies["decode"], "as shipped, decoding is lossless: timed once"
    finer = [policies[name][0].block_size for name in policies if name.startswith("decode_block")]
    assert finer == [4, 8, 16]
    native = [policies[f"native_tau{tau:g}"][0] for tau in (0.5, 0.9)]
    assert [(p.threshold, p.answer_threshold) for p in native] == [(0.5, 0.5), (0.9, 0.9)]
    config.decode.readout = True
    assert compared(engine_of(config))["decode"][1] == "ar_readout"


def test_blocks_divide_the_trained_ones():
    policies = compared(engine_of(Config(grid=GRID)))
    assert [name for name in policies if name.startswith("decode_block")] == ["decode_block4"]


def test_a_shape_decodes_as_many_tokens_a_forward_as_asked(monkeypatch):
    monkeypatch.setattr(Decoder, "compile", lambda decoder: None)  # tests/decoding/test_compiled.py does
    figures = bench_decode_shape("small", "cpu", 6, 2, Summary(50, 0))
    # blocks of 16: the anchor and 6 tokens, then 6, then the last 3
    assert figures["decode_tokens_per_forward"]["value"] == pytest.approx(16 / 3)
    for batch in BATCHES:
        for name in ("decode_speedup", "ar_compiled", "decode_compiled", "decode_compiled_speedup"):
            assert figures[f"{name}_b{batch}"]["value"] > 0
    assert {"ar_overhead_ms", "decode_roofline_ms", "decode_trace_speedup_b1"} <= set(figures)


def test_devices_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU"):
        find_device("cuda")
    with pytest.raises(ConfigError, match="not 'tpu'"):
        find_device("tpu")


def test_the_picture_is_drawn_from_the_figures(tmp_path):
    figures = {"ar_recall@1": exact(0.5, "share"), "decode_recall@1": exact(0.5, "share")}
    for batch in (1, 4, 16):
        for name in ("decode", "native", "readout", "follow_load", "decode_block4", "decode_block8"):
            figures[f"{name}_speedup_b{batch}"] = exact(3 - batch / 8, "x")
        figures[f"decode_vs_hf_b{batch}"] = exact(5.0, "x")
    for tau in ("0.5", "0.99"):
        figures[f"native_tau{tau}_speedup_b1"] = exact(2.5, "x")
        figures[f"native_tau{tau}_recall@1"] = exact(0.4, "share")
    write_decode_plot(figures, tmp_path / "bench.png")
    picture = imread(tmp_path / "bench.png")
    assert picture.shape[0] > 400 and picture.shape[1] > 1200 and picture.std() > 0.05
