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

_MAX_JSON_BYTES = 64 << 20
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_BITS = {"F32": 32, "F16": 16, "BF16": 16}  # safetensors' names


@dataclass(frozen=True, slots=True)
class CheckpointWeights:
    """The tensors of a folder. `shard_of` says which file holds a tensor; `handles` are the open files."""

    folder: Path
    shard_of: Mapping[str, str]
    handles: Mapping[str, Any]

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns tensor `name` in the dtype it is stored in; raises ModelError when missing, misshapen or not float."""
        shard = self.shard_of.get(name)
        if shard is None:
            raise ModelError(self.folder, f"tensor {name!r} is missing")
        handle = self.handles[shard]
        try:
            found = tuple(handle.get_slice(name).get_shape())
            if found != shape:
                raise ModelError(self.folder / shard, f"tensor {name!r} has shape {found}", f"{shape}")
            tensor: torch.Tensor = handle.get_tensor(name)
        except SafetensorError as error:
            raise ModelError(self.folder / shard, f"tensor {name!r} cannot be read: {error}") from error
        if tensor.dtype not in _FLOAT_TYPES:
            raise ModelError(self.folder / shard, f"tensor {name!r} is {tensor.dtype}", "float32, float16, bfloat16")
        return tensor

    @property
    def stored_bits(self) -> int:
        """The widest that a weight of any matrix takes in the files: 32 or 16. Vectors (norms, biases) do not count."""
        slices = (self.handles[shard].get_slice(name) for name, shard in self.shard_of.items())
        return max((_BITS.get(piece.get_dtype(), 32) for piece in slices if len(piece.get_shape()) > 1), default=32)

    @property
    def files(self) -> list[Path]:
        """The weight files, in the order of their names."""
        return sorted(self.folder / shard for shard in self.handles)


def open_checkpoint(folder: Path) -> CheckpointWeights:
    """Opens the weight files of `folder` (headers only). Raises ModelError for missing or damaged files."""
    if (folder / _INDEX).exists():
        shard_of = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
            raise ModelError(folder / _INDEX, "has no weight_map")
        handles = {shard: _open_shard(folder, shard) for shard in sorted(set(shard_of.values()))}
        held = {shard: frozenset(handle.keys()) for shard, handle in handles.items()}
        for name, shard in shard_of.items():
            if name not in held[shard]:
                raise ModelError(folder / shard, f"tensor {name!r:.120} is missing, which the index says is in it")
        return CheckpointWeights(folder, shard_of, handles)
    handle = _open_shard(folder, _SINGLE)
    return CheckpointWeights(folder, dict.fromkeys(handle.keys(), _SINGLE), {_SINGLE: handle})


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
