"""Model folders that cannot work: each is refused with one line that names the file and the reason, and with little memory."""

from __future__ import annotations

import contextlib
import json
import logging
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import LLAMA3_ROPE, logits_of_prompt, tiny_llama, tiny_qwen2, write_folder, write_gguf

from aie_engine.errors import ModelError
from aie_engine.loading import load_model

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NORM, HEAD, EMBEDDING = "model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"
_MAX_GROWTH_KIB = 64 << 10


def refused(folder: Path, file: str, reason: str) -> None:
    """Asserts that the model is refused for `reason` in one line that names `file` (a part of its path)."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    line = str(caught.value)
    assert reason in line
    assert file in line.split(": ")[0]
    assert "\n" not in line
    assert len(line) < 600
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < _MAX_GROWTH_KIB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", tiny_llama())


def edit_json(path: Path, **changes: Any) -> None:
    """Replaces keys; one whose value is `...` goes."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def edit_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.int8, "I8"),
        (torch.float8_e4m3fn, "F8_E4M3"),
        (torch.float8_e5m2, "F8_E5M2"),
        (torch.complex64, "C64"),
        (torch.float64, "F64"),
        (torch.int64, "I64"),
        (torch.bool, "BOOL"),
    ],
)
def test_weights_of_other_dtypes(folder: Path, dtype: torch.dtype, name: str) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[NORM] = tensors[NORM].to(dtype)

    edit_weights(folder / WEIGHTS, change)
    refused(folder, WEIGHTS, f"tensor '{NORM}' is of dtype {name} (accepted: F32, F16, BF16)")


def test_shards_that_lack_something(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", tiny_llama(), "60KB")
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    shard = weight_map[NORM]
    healthy = (folder / shard).read_bytes()
    edit_weights(folder / shard, lambda tensors: tensors.__delitem__(NORM))
    refused(folder, shard, f"tensor '{NORM}' is missing, which the index says is in it")
    edit_json(folder / INDEX, weight_map={name: file for name, file in weight_map.items() if name != NORM})
    refused(folder, "model", f"tensor '{NORM}' is missing")
    for content in (healthy[:-1], healthy[: len(healthy) // 2], healthy[:7], b"", b"\xff" * 100):
        (folder / shard).write_bytes(content)
        refused(folder, shard, "cannot be read")
    (folder / shard).unlink()
    edit_json(folder / INDEX, weight_map=weight_map)
    refused(folder, shard, "cannot be read")


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"', '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"metadata": {}}'])
def test_an_index_that_is_none(folder: Path, content: str) -> None:
    (folder / INDEX).write_text(content)
    refused(folder, INDEX, "")


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    refused(folder, WEIGHTS, "cannot be read")


def test_misshapen_missing_and_unknown_tensors(folder: Path) -> None:
    for change, reason in (
        (lambda tensors: tensors.update({NORM: torch.ones(65)}), f"tensor '{NORM}' has shape (65,) (accepted: (64,))"),
        (lambda tensors: tensors.update({NORM: torch.ones(64, 1)}), "has shape (64, 1)"),
        (lambda tensors: tensors.__delitem__(NORM), f"tensor '{NORM}' is missing"),
        (
            lambda tensors: tensors.update({NORM: torch.ones(64), "model.layers.0.self_attn.q_norm.weight": torch.ones(16)}),
            "unknown tensor 'model.layers.0.self_attn.q_norm.weight'",
        ),
    ):
        edit_weights(folder / WEIGHTS, change)
        refused(folder, "model", reason)


def test_what_old_converters_left_behind_is_no_hindrance(folder: Path) -> None:
    exact = logits_of_prompt(load_model(folder), [1, 2, 3])
    edit_weights(folder / WEIGHTS, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert torch.equal(logits_of_prompt(load_model(folder), [1, 2, 3]), exact)


def test_biases_that_the_configuration_does_not_know(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "llama", tiny_llama(attention_bias=True))
    edit_json(folder / "config.json", attention_bias=False)
    refused(folder, "llama", "unknown tensor 'model.layers.0.self_attn.")
    folder = write_folder(tmp_path / "qwen2", tiny_qwen2())
    edit_weights(folder / WEIGHTS, lambda tensors: tensors.__delitem__("model.layers.1.self_attn.k_proj.bias"))
    refused(folder, "qwen2", "tensor 'model.layers.1.self_attn.k_proj.bias' is missing")
    bias = {"blk.0.attn_output.bias": np.ones(64, np.float32)}  # in one layer only: the others lack theirs
    refused(write_gguf(tmp_path / "odd.gguf", tiny_qwen2(), extra=bias), "odd.gguf", "tensor 'blk.1.attn_output.bias' is missing")


def test_tied_and_untied_heads(folder: Path) -> None:
    edit_weights(folder / WEIGHTS, lambda tensors: tensors.__delitem__(HEAD))
    refused(folder, "model", f"tensor '{HEAD}' is missing (accepted: a head, or tie_word_embeddings true in config.json)")
    edit_json(folder / "config.json", tie_word_embeddings=True)
    exact = logits_of_prompt(load_model(folder), [1, 2, 3])
    edit_weights(folder / WEIGHTS, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    assert torch.equal(logits_of_prompt(load_model(folder), [1, 2, 3]), exact)
    edit_weights(folder / WEIGHTS, lambda tensors: tensors[HEAD][0, 0].add_(1))
    refused(folder, "model", f"tensor '{HEAD}' differs from the embedding")
    edit_json(folder / "config.json", tie_word_embeddings=False)
    assert not torch.equal(logits_of_prompt(load_model(folder), [1, 2, 3]), exact)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"\xff\xfe{}", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"hidden_size": ' + b"9" * 5_000 + b"}", "cannot be read"),
        (b"[]", "is not a JSON object"),
        (b"{}", "model_type None (accepted: llama, qwen2)"),
    ],
)
def test_a_config_that_is_no_config(folder: Path, content: bytes, reason: str) -> None:
    (folder / "config.json").write_bytes(content)
    refused(folder, "config.json", reason)


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


@pytest.mark.parametrize("key", SIZES)
def test_a_config_that_lacks_or_lies_about_a_size(tmp_path: Path, key: str) -> None:
    folder = write_folder(tmp_path / "model", tiny_llama(rope_parameters=LLAMA3_ROPE))  # whose factors are computed from the sizes
    healthy = json.loads((folder / "config.json").read_text())[key]
    edit_json(folder / "config.json", **{key: ...})
    refused(folder, "config.json", f"{key} is missing")
    for value in ("64", 64.0, True, [64], {}):
        edit_json(folder / "config.json", **{key: value})
        refused(folder, "config.json", f"{key} is {value!r} (accepted: an integer)")
    for value in (0, -1, 10**6 * healthy, 10**4_000):
        edit_json(folder / "config.json", **{key: value})
        refused(folder, "config.json", "")
    # Within every limit and still larger than the files: the files decide, before anything is allocated.
    edit_json(folder / "config.json", **{key: healthy * 4})
    refused(folder, "model", "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta is 1000"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta is nan"),
        ({"rope_parameters": {"rope_theta": -1}}, "out of range"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": [1]}, "rope_parameters is not an object"),
        ({"rms_norm_eps": "1e-5"}, "a finite number"),
        ({"head_dim": 15}, "head size 15 is odd"),
        ({"max_position_embeddings": 1 << 60}, "context = "),
        ({"layer_types": 7}, "layer_types 7"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "full_attention in every layer"),
        ({"model_type": ["llama"]}, "(accepted: llama, qwen2)"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "model_type 'bert' (accepted: llama, qwen2)"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "(accepted: LlamaForCausalLM, Qwen2ForCausalLM)"),
        ({"model_type": "qwen2"}, "architectures ['LlamaForCausalLM']"),
    ],
)
def test_a_config_that_cannot_be_computed(folder: Path, changes: dict[str, Any], reason: str) -> None:
    edit_json(folder / "config.json", **changes)
    refused(folder, "config.json", reason)


ODD_VALUES = ("x", True, -1, 0, 2**70, 10**400, float("nan"), 1.5, [1, 2], ["a"], [[1]], {}, {"a": 1}, None)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_any_value_anywhere_gives_a_model_or_a_model_error(file: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tiny_qwen2(rope_parameters=LLAMA3_ROPE))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "x"}')
    (folder / "chat_template.jinja").unlink()
    healthy = json.loads((folder / file).read_text())
    older = ("rope_scaling", "rope_theta", "head_dim", "partial_rotary_factor", "quantization_config", "eos_token_id")
    rope = [healthy | {"rope_parameters": LLAMA3_ROPE | {key: value}} for key in LLAMA3_ROPE for value in ODD_VALUES]
    cases = [healthy | {key: value} for key in {*healthy, *older} for value in ODD_VALUES] + rope
    loaded = 0
    for case in cases:
        (folder / file).write_text(json.dumps(case))
        with contextlib.suppress(ModelError):
            loaded += load_model(folder).config.layers == 2
    assert 0 < loaded <= len(cases)


def test_the_class_may_be_left_out(folder: Path) -> None:
    edit_json(folder / "config.json", architectures=...)
    assert load_model(folder).config.layers == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"", "cannot be read"),
        (b"\x00\xff", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"version": "1.0"}', "cannot be read"),
        (
            b'{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}',
            "byte-level",
        ),
    ],
)
def test_tokenizers_that_are_none(folder: Path, content: bytes | None, reason: str) -> None:
    path = folder / "tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    refused(folder, "tokenizer.json", reason)


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small", tiny_llama(vocab_size=100))
    refused(folder, "small", "tokenizer has 258 tokens, the model 100")
    folder = write_folder(tmp_path / "eos", tiny_llama())
    for value, reason in (
        (258, "the vocabulary has 258"),
        (-1, "end-of-sequence ids"),
        ("</s>", "eos_token_id"),
        ([0, None], "eos_token_id"),
    ):
        edit_json(folder / "generation_config.json", eos_token_id=value)
        refused(folder, "eos", reason)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for %}", "does not compile"),
        ("{{ " + "(" * 5_000 + ")" * 5_000 + " }}", "does not compile"),
        ("{{ raise_exception('not today') }}", "not today"),
        ("{{ messages[0].name.first }}", "name"),
        ("{{ '{} {}'.format(1) }}", "chat template: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "writes more than"),
    ],
)
def test_chat_templates_that_refuse_everyone(folder: Path, template: str, reason: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    refused(folder, "model", reason)


@pytest.mark.parametrize("role", ["user", "system"])
def test_a_chat_template_that_is_choosy_is_accepted(folder: Path, role: str) -> None:
    choosy = "{% if messages[0].role != '" + role + "' %}{{ raise_exception('no') }}{% endif %}ok"
    (folder / "chat_template.jinja").write_text(choosy)
    loaded = load_model(folder)
    assert loaded.chat_template is not None
    assert loaded.chat_template.render([{"role": role, "content": "hi"}]) == "ok"


def test_weights_that_are_no_numbers_are_served_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_model(folder)
    assert not caplog.records  # healthy weights are quiet
    name = "model.layers.1.mlp.up_proj.weight"
    for value in (float("nan"), float("inf")):
        edit_weights(folder / WEIGHTS, lambda tensors, value=value: tensors[name].view(-1)[5].fill_(value))
        with caplog.at_level(logging.WARNING):
            load_model(folder)
        assert [record.getMessage() for record in caplog.records] == [f"{folder / WEIGHTS}: tensor {name!r} holds NaN or infinity"]
        caplog.clear()


@pytest.mark.parametrize("device", ["tpu", "meta", "cuda:-1", "cuda:300", "cpu:1", "CUDA", ""])
def test_devices_that_are_none(folder: Path, device: str) -> None:
    with pytest.raises(ModelError, match=r"device .*accepted: cpu, cuda, cuda:N"):
        load_model(folder, device=device)


def test_a_device_that_is_not_there(folder: Path) -> None:
    devices = torch.cuda.device_count()
    with pytest.raises(ModelError, match=f"device cuda:{devices} asked for, but this torch sees {devices} CUDA devices"):
        load_model(folder, device=f"cuda:{devices}")
