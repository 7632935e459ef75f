"""Checkpoints in Hugging Face's layout, from scratch and from a folder."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tiny import VOCABULARY, tiny_model
from transformers import AutoModelForCausalLM

from dgr2.config.schema import ModelConfig
from dgr2.errors import ConfigError
from dgr2.models.backbone import build_model, cross_entropies, load_model, save_model, suppress


def test_saved_model_is_loaded_by_auto_classes(tmp_path):
    model = tiny_model(61)
    save_model(model, tmp_path)
    ids = torch.tensor([[11, 12, 13]])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert any(tmp_path.glob("*.safetensors")) and not any(tmp_path.glob("*.bin"))


def test_init_folder_keeps_its_weights_and_grows_to_the_vocabulary(tmp_path):
    base = tiny_model(62)
    save_model(base, tmp_path)
    larger = replace(VOCABULARY, size=27, labels=(20, 21, 22, 23))
    grown = build_model(ModelConfig(init=str(tmp_path)), larger, seed=0)
    old, new = base.get_input_embeddings().weight, grown.get_input_embeddings().weight
    assert new.shape[0] == 27 and torch.equal(new[:20], old)
    assert new[20:].std() < old.std()
    assert grown.config.eos_token_id == VOCABULARY.eos


def test_seed_decides_the_initialisation_and_the_global_state_is_left_alone():
    before = torch.get_rng_state()
    one, two, other = tiny_model(1), tiny_model(1), tiny_model(2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one.lm_head.weight, two.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


@pytest.mark.parametrize("chunk", [1, 45, 10**6])
def test_cross_entropies_and_gradients_do_not_depend_on_the_chunk(chunk):
    model = tiny_model(63, 4.0)
    hidden, targets = torch.randn(7, 32, generator=torch.Generator().manual_seed(0)), torch.arange(5, 12)
    found = []
    for losses in (
        lambda h: cross_entropies(model, h, targets, VOCABULARY, chunk),
        lambda h: torch.nn.functional.cross_entropy(
            suppress(model.lm_head(h), VOCABULARY), targets, reduction="none"
        ),
    ):
        model.zero_grad()
        states = hidden.clone().requires_grad_()
        loss = losses(states)
        (loss * torch.arange(1.0, 8.0)).sum().backward()
        found.append((loss.detach(), states.grad, model.lm_head.weight.grad.clone()))
    for ours, reference in zip(*found, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-5)


def test_unsupported_and_missing_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="config.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ConfigError, match="gpt2"):
        load_model(tmp_path)
