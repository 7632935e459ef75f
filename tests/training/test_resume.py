"""A stage interrupted on the command line continues from its checkpoint and ends bit-identical."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SHOP = ["data.users=150", "data.items=60", "data.folds=2", "expert.trees=10", "tokenizer.vocabulary=400"]
MODEL = ["model.hidden=32", "model.layers=1", "model.heads=2", "model.kv_heads=1", "model.mlp=32"]
STEPS = ["teacher.midtrain.steps=2", "teacher.sft.steps=12", "teacher.sft.checkpoint_every=3"]


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "dgr2.jobs", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen, code: int = 0) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    return output


@pytest.mark.ray
def test_interrupted_stage_ends_bit_identical(tmp_path: Path) -> None:
    one, two = tmp_path / "one run", tmp_path / "two"
    for run in (one, two):
        finish(start("prepare", *SHOP, *MODEL, *STEPS, "--run", str(run)))
    finish(start("teacher", "--run", str(one)))

    broken = start("teacher", "--run", str(two))
    deadline = time.monotonic() + 200
    while not any(two.glob("train/teacher/*/checkpoint_*/position.json")):
        assert broken.poll() is None and time.monotonic() < deadline, broken.communicate()[0]
        time.sleep(0.05)
    os.kill(broken.pid, signal.SIGINT)
    assert "continues from the last checkpoint" in finish(broken, 130)
    assert not (two / "checkpoints" / "teacher").exists()

    finish(start("teacher", "--run", str(two)))
    weights = [load_file(run / "checkpoints" / "teacher" / "model.safetensors") for run in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert "skipped" in finish(start("teacher", "--run", str(two)))
