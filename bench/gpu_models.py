"""The model that `gpu_check.py` runs: a folder, or a random one made in memory, which needs no package but torch."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aie_engine.model import Decoder
from aie_engine.model_config import ModelConfig

_THREADS = 8
_STD = 0.02


class Loaded(NamedTuple):
    """What the runner takes of a loaded model."""

    config: ModelConfig
    decoder: Decoder


class Model(NamedTuple):
    """`load` gives the engine's model on a device, `peer` transformers' own with the same weights in bf16; that raises
    ModuleNotFoundError without transformers."""

    load: Callable[[str, torch.dtype], Loaded]
    peer: Callable[[torch.device], Any]


def from_folder(folder: Path) -> Model:
    """A Hugging Face folder. Raises ModuleNotFoundError where the engine's own loader lacks a package, and ModelError."""
    from aie_engine.loading import load_model

    def load(device: str, dtype: torch.dtype) -> Loaded:
        found = load_model(folder, device=device, dtype=dtype)
        return Loaded(found.config, found.decoder)

    def peer(device: torch.device) -> Any:
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        return model.eval().to(device)

    return Model(load, peer)


def random_model(config: ModelConfig, device: str) -> Model:
    """Random bf16 weights, the same each time on a kind of device. `config` has the constants that are transformers' defaults."""
    weights = _RandomWeights(config, torch.device(device))

    def load(device: str, dtype: torch.dtype) -> Loaded:
        return Loaded(config, Decoder(config, weights, device=torch.device(device), dtype=dtype, threads=_THREADS))

    return Model(load, lambda device: _peer_of(config, weights, device))


class _RandomWeights:
    """A `WeightSource`. Makes a tensor when it is first asked for, on the device, where that takes no time."""

    stored_bits = 16

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._made: dict[str, Tensor] = {}

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """From several threads."""
        with self._lock:
            if name not in self._made:
                self._made[name] = self._make(name, shape)
            return self._made[name]

    def _make(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16, device=self._device)
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        return (torch.randn(shape, generator=generator, device=self._device) * _STD).bfloat16()


def _peer_of(config: ModelConfig, weights: _RandomWeights, device: torch.device) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    words = LlamaConfig(
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        intermediate_size=config.ffn,
        vocab_size=config.vocab,
        max_position_embeddings=config.context,
        rms_norm_eps=config.norm_eps,
        tie_word_embeddings=config.tied_head,
    )
    # By default rather than by `to`, which would round the frequencies of RoPE as well.
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            model: Any = LlamaForCausalLM(words)
    finally:
        torch.set_default_dtype(usual)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights.read(name, tuple(parameter.shape)))
    return model.eval()
