"""Hugging Face checkpoint folders: config.json and safetensors, in one file or in shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from aie_engine.errors import ModelError, require_regular
from aie_engine.model_config import ModelConfig
from aie_engine.weight_check import check_tensors, expect_shape, warn_if_not_finite

_MAX_JSON_BYTES = 64 << 20
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_BITS = {"F32": 32, "F16": 16, "BF16": 16}  # by safetensors' names of dtypes


@dataclass(frozen=True, slots=True)
class CheckpointWeights:
    """The tensors of a folder. `shard_of` says which file holds a tensor; `handles` are the open files.

    `stored_bits` is the widest that a weight of any matrix takes in the files: 32 or 16. Vectors (norms, biases) do not count.
    """

    folder: Path
    shard_of: Mapping[str, str]
    handles: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    stored_bits: int

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns tensor `name` in the dtype it is stored in; raises ModelError when it is missing or not of `shape`."""
        expect_shape(name, self.shapes.get(name), shape, self.folder)
        path = self.folder / self.shard_of[name]
        try:
            tensor: torch.Tensor = self.handles[path.name].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(path, f"tensor {name!r} cannot be read: {error}") from error
        warn_if_not_finite(name, tensor, path)
        return tensor

    def check(self, config: ModelConfig) -> None:
        """Raises ModelError where the files do not hold the model that `config` describes, its head included."""
        if not config.tied_head and _HEAD not in self.shapes:
            raise ModelError(self.folder, f"tensor {_HEAD!r} is missing", "a head, or tie_word_embeddings true in config.json")
        check_tensors(config, self.shapes, self.folder, unread=lambda name: name == _HEAD or name.endswith("rotary_emb.inv_freq"))
        if config.tied_head and _HEAD in self.shapes:
            # Files of before safetensors hold the tied head a second time. Another head means that one of the two is wrong.
            shape = self.shapes[_EMBEDDING]
            if self.shapes[_HEAD] != shape or not torch.equal(self.read(_HEAD, shape), self.read(_EMBEDDING, shape)):
                raise ModelError(
                    self.folder,
                    f"tensor {_HEAD!r} differs from the embedding, to which config.json ties the head",
                    "equal ones, or tie_word_embeddings false",
                )

    @property
    def files(self) -> list[Path]:
        """The weight files, in the order of their names."""
        return sorted(self.folder / shard for shard in self.handles)


def open_checkpoint(folder: Path) -> CheckpointWeights:
    """Opens the weight files of `folder` (headers only). Raises ModelError for missing or damaged files and other dtypes."""
    if (folder / _INDEX).exists():
        shard_of = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
            raise ModelError(folder / _INDEX, "has no weight_map")
        handles = {shard: _open_shard(folder, shard) for shard in sorted(set(shard_of.values()))}
        held = {shard: frozenset(handle.keys()) for shard, handle in handles.items()}
        for name, shard in shard_of.items():
            if name not in held[shard]:
                raise ModelError(folder / shard, f"tensor {name!r:.120} is missing, which the index says is in it")
    else:
        handles = {_SINGLE: _open_shard(folder, _SINGLE)}
        shard_of = dict.fromkeys(handles[_SINGLE].keys(), _SINGLE)
    shapes: dict[str, tuple[int, ...]] = {}
    stored_bits = 0
    for name, shard in shard_of.items():
        piece = handles[shard].get_slice(name)
        shapes[name], dtype = tuple(piece.get_shape()), piece.get_dtype()
        if dtype not in _BITS:
            raise ModelError(folder / shard, f"tensor {name!r:.120} is of dtype {dtype}", ", ".join(_BITS))
        if len(shapes[name]) > 1:
            stored_bits = max(stored_bits, _BITS[dtype])
    return CheckpointWeights(folder, shard_of, handles, shapes, stored_bits)


def read_json(path: Path) -> dict[str, Any]:
    """Parses a JSON object from a file; raises ModelError when it is missing, too large or something else."""
    require_regular(path, "a JSON object")
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelError(path, "too large", f"up to {_MAX_JSON_BYTES >> 20} MiB")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(path, f"cannot be read: {error}", "a JSON object") from error
    if not isinstance(value, dict):
        raise ModelError(path, "is not a JSON object")
    return value


def _open_shard(folder: Path, shard: str) -> Any:
    # The name comes from the index file: it must not lead out of the folder.
    if Path(shard).name != shard:
        raise ModelError(folder / _INDEX, f"shard name {shard!r:.80}", "names of files in the folder itself")
    require_regular(folder / shard, "a safetensors file")
    try:
        return safe_open(folder / shard, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(folder / shard, f"cannot be read: {error}", "a safetensors file") from error
