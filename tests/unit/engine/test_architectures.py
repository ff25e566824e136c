"""Llama and Qwen2 in all their shapes: prefill, chunked prefill and decode give transformers' logits and its greedy answer."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import GREEDY, LLAMA3_ROPE, logits_of_prompt, tiny_llama, tiny_qwen2, write_folder, write_gguf

from aie_engine.errors import ModelError
from aie_engine.loading import load_model
from aie_engine.plan import Chunk
from aie_engine.runner import Runner

MAKERS = {"llama": tiny_llama, "qwen2": tiny_qwen2}
HEADS = {"tied": {"tie_word_embeddings": True}, "untied": {"tie_word_embeddings": False}}
KV_HEADS = {"MQA": 1, "GQA": 2, "MHA": 4}
ROPES: dict[str, dict[str, Any]] = {"plain rope": {}, "llama3 rope": {"rope_parameters": LLAMA3_ROPE}}
PROMPT = [(11 * index) % 299 + 1 for index in range(50)]  # longer than the 32 positions that the scaled RoPE was "trained" with
ANSWER_TOKENS = 16
BOUNDS = ((0, 50), (0, 1, 18, 19, 50), tuple(range(51)))  # one chunk, odd chunks, token by token
TOLERANCE = 1e-4  # absolute, on fp32 logits of about 5


@pytest.fixture(
    params=[(maker, head, kv, rope) for maker in MAKERS for head in HEADS for kv in KV_HEADS for rope in ROPES], ids="-".join
)
def model(request: pytest.FixtureRequest) -> Any:
    maker, head, kv, rope = request.param
    return MAKERS[maker](**HEADS[head], num_key_value_heads=KV_HEADS[kv], eos_token_id=None, **ROPES[rope])


def greedy_answer(model: Any) -> list[int]:
    ids = torch.tensor([PROMPT])
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=ANSWER_TOKENS, do_sample=False, pad_token_id=0)
    tokens: list[int] = answer[0, len(PROMPT) :].tolist()
    return tokens


def test_logits_and_greedy_answer_are_those_of_transformers(model: Any, tmp_path: Path) -> None:
    answer = greedy_answer(model)
    assert len(answer) == ANSWER_TOKENS
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT + answer])).logits[0]
    loaded = load_model(write_folder(tmp_path, model))
    for bounds in BOUNDS:
        runner = Runner(loaded, capacity_tokens=128, max_step_tokens=64)
        sequence = PROMPT.copy()
        steps = [*pairwise(bounds), *((end - 1, end) for end in range(len(PROMPT) + 1, len(PROMPT) + ANSWER_TOKENS))]
        for start, end in steps:
            chunk = Chunk(9, start, sequence[start:end], True, GREEDY)
            torch.testing.assert_close(runner.logits([chunk])[0], expected[end - 1], atol=TOLERANCE, rtol=0)
            (token,) = runner.execute([chunk])  # writes the same keys and values once more
            assert token is not None
            if end >= len(PROMPT):
                sequence.append(token.id)
        assert sequence[len(PROMPT) :] == answer


def test_gguf_gives_the_logits_of_the_folder(model: Any, tmp_path: Path) -> None:
    folder = load_model(write_folder(tmp_path, model))
    file = load_model(write_gguf(tmp_path / "tiny.gguf", model, rope_factors(model)))
    assert file.config.attention_bias is folder.config.attention_bias is (model.config.model_type == "qwen2")
    assert not file.config.output_bias
    for pieces in ((), (17, 49)):
        ours, theirs = logits_of_prompt(file, PROMPT, pieces), logits_of_prompt(folder, PROMPT, pieces)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def rope_factors(model: Any) -> Any:
    """What llama.cpp's converter stores for a scaled RoPE: plain frequencies over scaled ones."""
    if model.config.rope_parameters["rope_type"] == "default":
        return None
    return tiny_llama().model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq


@pytest.mark.parametrize("maker", MAKERS)
def test_every_bias_counts(maker: str, tmp_path: Path) -> None:
    """The parity above would pass without biases if they did not matter: without any one of them the logits are others."""
    model = MAKERS[maker](**({"attention_bias": True} if maker == "llama" else {}))
    names = [name for name, _ in model.named_parameters() if name.endswith("bias") and "layers.1." in name]
    projections = {"llama": {"q_proj", "k_proj", "v_proj", "o_proj"}, "qwen2": {"q_proj", "k_proj", "v_proj"}}[maker]
    assert {name.split(".")[-2] for name in names} == projections
    exact = logits_of_prompt(load_model(write_folder(tmp_path, model)), PROMPT)
    for name in names:
        bias = model.get_parameter(name).data
        kept = bias.clone()
        bias.zero_()
        change = (logits_of_prompt(load_model(write_folder(tmp_path, model)), PROMPT) - exact).abs().max()
        assert change > 100 * TOLERANCE, name
        bias.copy_(kept)


def test_a_qwen2_folder_with_sliding_windows_is_refused(tmp_path: Path) -> None:
    off = tiny_qwen2(use_sliding_window=False, sliding_window=8)
    load_model(write_folder(tmp_path / "off", off))
    on = tiny_qwen2(use_sliding_window=True, sliding_window=8, max_window_layers=1)
    with pytest.raises(ModelError, match="sliding_window"):
        load_model(write_folder(tmp_path / "on", on))
