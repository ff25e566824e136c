"""Guarded reading of GGUF files: the header here, dequantisation by the `gguf` package.

The header is parsed here and not by `gguf.GGUFReader`: the reader loops over array lengths taken from the file without
a bound, so that a damaged file hangs it or exhausts memory, and it needs seconds for a healthy vocabulary. Checking
before handing over would mean parsing everything twice.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from aie_engine.errors import ModelError, require_regular
from aie_engine.model_config import ARCHITECTURES, ModelConfig
from aie_engine.weight_check import check_tensors, expect_shape, warn_if_not_finite

_VERSIONS = (2, 3)
_MAX_HEADER_BYTES = 64 << 20  # vocabulary and merges of the largest published models take about 10 MB
_MAX_ENTRIES = 65_536  # tensors, and metadata keys
_MAX_ARRAY = 4 << 20
_MAX_DIMENSIONS = 4
# One call of gguf.dequantize handles this many weights. It splits what it gets into groups of 16 rows, so rows as they
# stand in the file (576 weights) make it spend its time in Python: 3.5 s for SmolLM2 against 0.6 s in these pieces.
_PIECE_WEIGHTS = 1 << 18

_SCALARS: dict[int, struct.Struct] = {
    int(gguf.GGUFValueType.UINT8): struct.Struct("<B"),
    int(gguf.GGUFValueType.INT8): struct.Struct("<b"),
    int(gguf.GGUFValueType.UINT16): struct.Struct("<H"),
    int(gguf.GGUFValueType.INT16): struct.Struct("<h"),
    int(gguf.GGUFValueType.UINT32): struct.Struct("<I"),
    int(gguf.GGUFValueType.INT32): struct.Struct("<i"),
    int(gguf.GGUFValueType.FLOAT32): struct.Struct("<f"),
    int(gguf.GGUFValueType.BOOL): struct.Struct("<?"),
    int(gguf.GGUFValueType.UINT64): struct.Struct("<Q"),
    int(gguf.GGUFValueType.INT64): struct.Struct("<q"),
    int(gguf.GGUFValueType.FLOAT64): struct.Struct("<d"),
}
_STRING = int(gguf.GGUFValueType.STRING)
_ARRAY = int(gguf.GGUFValueType.ARRAY)
_U32 = _SCALARS[int(gguf.GGUFValueType.UINT32)]
_U64 = _SCALARS[int(gguf.GGUFValueType.UINT64)]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies. `shape` is in row-major order (GGUF stores it reversed); `offset_bytes` is from file start."""

    shape: tuple[int, ...]
    encoding: gguf.GGMLQuantizationType
    offset_bytes: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A validated GGUF file. `metadata` values are str, int, float, bool, or a list of one of them."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    data: mmap.mmap

    def read(self, name: str) -> torch.Tensor:
        """Dequantises one tensor to fp32 on the CPU. Safe to call from several threads. Raises ModelError."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelError(self.path, f"tensor {name!r} is missing")
        block_weights, block_bytes = gguf.GGML_QUANT_SIZES[tensor.encoding]
        raw = np.frombuffer(self.data, np.uint8, tensor.n_bytes, tensor.offset_bytes)
        weights = np.empty(tensor.n_bytes // block_bytes * block_weights, np.float32)
        step_bytes = _PIECE_WEIGHTS // block_weights * block_bytes
        for start in range(0, tensor.n_bytes, step_bytes):
            piece = _dequantise(raw[start : start + step_bytes], tensor.encoding, self.path)
            first = start // block_bytes * block_weights
            weights[first : first + piece.size] = piece
        return torch.from_numpy(weights).view(tensor.shape)


def open_gguf(path: Path) -> GgufFile:
    """Parses and validates the header of a little-endian GGUF v2/v3 file; tensor data stays on disk until read.

    Raises ModelError when the file is unreadable, truncated, or declares counts or sizes that do not fit it.
    """
    require_regular(path, "a GGUF file")
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelError(path, f"cannot be read: {error}", "a GGUF file") from error
    cursor = _Cursor(data, path)
    n_tensors = _read_preamble(cursor)
    metadata: dict[str, Any] = {}
    for _ in range(cursor.count("metadata key", _MAX_ENTRIES)):
        key = cursor.string()
        if key in metadata:
            raise ModelError(path, f"metadata key {key!r:.80} appears twice")
        metadata[key] = cursor.value(cursor.number(_U32))
    infos = [_read_tensor_info(cursor) for _ in range(n_tensors)]
    return GgufFile(path, metadata, _place_tensors(infos, metadata, cursor), data)


def _dequantise(raw: NDArray[np.uint8], encoding: gguf.GGMLQuantizationType, path: Path) -> NDArray[np.float32]:
    kinds = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}
    if encoding in kinds:
        return raw.view(kinds[encoding]).astype(np.float32)
    try:
        weights: NDArray[np.float32] = gguf.dequantize(raw.reshape(1, -1), encoding).reshape(-1)
    except NotImplementedError as error:
        raise ModelError(path, f"encoding {encoding.name}", "what the gguf package can dequantise") from error
    return weights


def _read_preamble(cursor: _Cursor) -> int:
    """Checks magic and version; returns the tensor count and leaves the cursor at the metadata count."""
    magic = cursor.take(4)
    if magic != b"GGUF":
        raise ModelError(cursor.path, f"starts with {magic!r}", "a GGUF file")
    version = cursor.number(_U32)
    if version & 0xFFFF == 0:
        raise ModelError(cursor.path, "big-endian GGUF", "little-endian GGUF")
    if version not in _VERSIONS:
        raise ModelError(cursor.path, f"GGUF version {version}", "versions 2 and 3")
    return cursor.count("tensor", _MAX_ENTRIES)


def _read_tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape in row-major order, encoding and offset within the data section."""
    name = cursor.string()
    n_dimensions = int(cursor.number(_U32))
    if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
        raise ModelError(cursor.path, f"tensor {name!r:.80} has {n_dimensions} dimensions", f"1 to {_MAX_DIMENSIONS}")
    shape = tuple(int(cursor.number(_U64)) for _ in range(n_dimensions))[::-1]
    return name, shape, int(cursor.number(_U32)), int(cursor.number(_U64))


def _place_tensors(
    infos: list[tuple[str, tuple[int, ...], int, int]], metadata: dict[str, Any], cursor: _Cursor
) -> dict[str, GgufTensor]:
    alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise ModelError(cursor.path, f"alignment {alignment!r:.40}", "a power of two up to 1 MiB")
    start = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, code, offset in infos:
        if name in tensors:
            raise ModelError(cursor.path, f"tensor {name!r:.80} appears twice")
        if code not in gguf.GGMLQuantizationType._value2member_map_:
            raise ModelError(cursor.path, f"tensor {name!r:.80} has unknown encoding {code}")
        encoding = gguf.GGMLQuantizationType(code)
        block_weights, block_bytes = gguf.GGML_QUANT_SIZES[encoding]
        if min(shape) < 1 or shape[-1] % block_weights:
            raise ModelError(cursor.path, f"tensor {name!r:.80} of {encoding.name} has impossible shape {shape}")
        n_bytes = math.prod(shape) // block_weights * block_bytes
        if start + offset + n_bytes > len(cursor.data):
            wrong = f"tensor {name!r:.80} needs {n_bytes} bytes at {start + offset}, the file has {len(cursor.data)}"
            raise ModelError(cursor.path, f"{wrong}: truncated or damaged")
        tensors[name] = GgufTensor(shape, encoding, start + offset, n_bytes)
    return tensors


class _Cursor:
    """Walks the header; every read is checked against the end of the file and the limit on headers."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.offset = 0
        self._end = min(len(data), _MAX_HEADER_BYTES)

    def _advance(self, n_bytes: int) -> int:
        start = self.offset
        if n_bytes > self._end - start:
            if self._end < len(self.data):
                raise ModelError(self.path, "header is too long", f"up to {_MAX_HEADER_BYTES >> 20} MiB")
            raise ModelError(self.path, f"truncated: {n_bytes} bytes wanted at {start}, the file has {self._end}")
        self.offset = start + n_bytes
        return start

    def take(self, n_bytes: int) -> bytes:
        start = self._advance(n_bytes)
        return self.data[start : start + n_bytes]

    def number(self, kind: struct.Struct) -> Any:
        return kind.unpack_from(self.data, self._advance(kind.size))[0]

    def count(self, what: str, limit: int) -> int:
        value = int(self.number(_U64))
        if value > limit:
            raise ModelError(self.path, f"{what} count {value}", f"up to {limit}")
        return value

    def string(self) -> str:
        # Not UTF-8 in a name or token is damage that must not stop a load with a stack trace.
        return self.take(int(self.number(_U64))).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ModelError(self.path, f"metadata of unknown type {kind}")
        return self.number(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind = int(self.number(_U32))
        length = self.count("array length", _MAX_ARRAY)
        if kind == _STRING:
            return [self.string() for _ in range(length)]
        if kind not in _SCALARS:
            raise ModelError(self.path, f"array of unsupported type {kind}", "arrays of strings and numbers")
        scalar = _SCALARS[kind]
        raw = self.take(length * scalar.size)
        return [item[0] for item in scalar.iter_unpack(raw)]


_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


#: Divisors of the RoPE frequencies, which become part of the configuration.
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GgufWeights:
    """The tensors of a GGUF file under their Hugging Face names and in Hugging Face row order.

    `stored_bits` is the widest that a weight of any matrix takes in the file, block scales included: 32 for F32, 16 for F16, 9
    for Q8_0. Vectors (norms, biases) do not count: converters leave them in F32 beside quantised matrices.
    """

    file: GgufFile
    config: ModelConfig
    paired_rows: bool
    stored_bits: int

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns tensor `name` in fp32; raises ModelError when it is missing or not of `shape`."""
        stored = gguf_name(name)
        found = self.file.tensors.get(stored)
        expect_shape(stored, None if found is None else found.shape, shape, self.file.path)
        weight = self.file.read(stored)
        warn_if_not_finite(stored, weight, self.file.path)
        for projection, heads in (("q_proj", self.config.heads), ("k_proj", self.config.kv_heads)):
            if self.paired_rows and projection in name:
                return _half_split_rows(weight, heads)
        return weight


def gguf_weights(file: GgufFile, config: ModelConfig) -> GgufWeights:
    """The weights of `file`; raises ModelError where it does not hold the model that `config` describes."""
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    check_tensors(config, shapes, file.path, stored_name=gguf_name, unread=lambda name: name == ROPE_FACTORS)
    paired_rows = ARCHITECTURES[file.metadata["general.architecture"]].paired_rows
    return GgufWeights(file, config, paired_rows, stored_bits(file))


def stored_bits(file: GgufFile) -> int:
    """Bits a weight of its widest matrix, as `GgufWeights` has them. The file must have a matrix."""
    matrices = (tensor for tensor in file.tensors.values() if len(tensor.shape) > 1)
    return max(-(-tensor.n_bytes * 8 // math.prod(tensor.shape)) for tensor in matrices)


def gguf_name(name: str) -> str:
    """GGUF's name for a Hugging Face tensor name: `model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_LAYER_NAMES[part]}.{suffix}"
    return f"{_NAMES[stem]}.{suffix}"


def _half_split_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undoes llama.cpp's row order: it stores the two halves that RoPE turns together as neighbouring rows."""
    head_dim = weight.shape[0] // heads
    return weight.view(heads, head_dim // 2, 2, -1).transpose(1, 2).reshape(weight.shape)
