"""Random Llama and Qwen2 models of a few kilobytes, written by the libraries that write real ones (transformers, gguf)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from aie_engine.loading import LoadedModel
from aie_engine.plan import Chunk, SamplingParams
from aie_engine.runner import Runner

GREEDY = SamplingParams(temperature=0.0)
END = "<|end|>"
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}" + END + "{% endfor %}"
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def tiny_llama(**overrides: Any) -> PreTrainedModel:
    """A random Llama model of two layers with four heads on two KV heads."""
    return _tiny(LlamaForCausalLM, LlamaConfig, overrides)


def tiny_qwen2(**overrides: Any) -> PreTrainedModel:
    """The same as a Qwen2 model: biases on q, k and v."""
    return _tiny(Qwen2ForCausalLM, Qwen2Config, overrides)


def _tiny(model_class: Any, config_class: Any, overrides: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(7)
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "eos_token_id": 0,
    }
    model: PreTrainedModel = model_class(config_class(**(sizes | overrides)))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # initialised to 0, which would hide a missing bias
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def byte_tokens() -> list[str]:
    """One control token, the 256 byte tokens of byte-level BPE, and one merged token."""
    return [END, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]


def write_folder(folder: Path, model: PreTrainedModel, max_shard_size: str = "1GB") -> Path:
    """Saves `model` as Hugging Face does, with a byte tokenizer and a chat template."""
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(byte_tokens())}, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END, special=True)])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    factors: Sequence[float] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    **metadata: Any,
) -> Path:
    """Writes `model` as llama.cpp's converter does: renamed tensors, Q and K rows permuted (Llama), RoPE `factors` as a tensor.

    `extra` are more tensors. `metadata` adds or replaces values, with `__` for the dots of their keys: texts, or what
    `GGUFWriter.add_key_value` takes after the key.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokens = byte_tokens()
    tokens += [f"<unused{index}>" for index in range(config.vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre({"llama": "smollm", "qwen2": "qwen2"}[config.model_type])
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for key, value in metadata.items():
        writer.add_key_value(key.replace("__", "."), *((value, gguf.GGUFValueType.STRING) if isinstance(value, str) else value))
    permuted = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads} if config.model_type == "llama" else {}
    name_map = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    state = model.state_dict()
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    for name, tensor in state.items():
        weight = tensor.numpy()
        for projection, count in permuted.items():
            if projection in name:
                halves = weight.reshape(count, 2, weight.shape[0] // count // 2, -1)
                weight = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
        writer.add_tensor(name_map.get_name(name, try_suffixes=(".weight", ".bias")), weight)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits_of_prompt(loaded: LoadedModel, ids: list[int], pieces: tuple[int, ...] = ()) -> torch.Tensor:
    """Logits after `ids`, [vocab], computed in one chunk or in chunks that begin at `pieces`."""
    runner = Runner(loaded, capacity_tokens=128, max_step_tokens=128)
    bounds = [0, *pieces, len(ids)]
    for start, end in pairwise(bounds[:-1]):
        runner.execute([Chunk(5, start, ids[start:end], False, GREEDY)])
    return runner.logits([Chunk(5, bounds[-2], ids[bounds[-2] :], True, GREEDY)])[0]
