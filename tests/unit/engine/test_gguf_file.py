"""The GGUF guard: healthy files read as the gguf package reads them, damaged ones are refused at once and cheaply."""

from __future__ import annotations

import contextlib
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_llama, tiny_qwen2, write_gguf

from aie_engine.errors import ModelError
from aie_engine.gguf_file import open_gguf, stored_bits
from aie_engine.loading import load_model

_MAX_CALLS = 100_000  # healthy headers of these sizes take some 5 000; what loops over a declared length takes millions
_MAX_GROWTH_KIB = 64 << 10
_STRING, _ARRAY, _UINT32, _UINT8 = 8, 9, 4, 0


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_llama()).read_bytes()


class Calls:
    """How many functions were called: effort in a unit that does not depend on the machine."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: object, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")


@contextlib.contextmanager
def counted_calls() -> Iterator[Calls]:
    calls, before = Calls(), sys.getprofile()
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def refused(path: Path, content: bytes) -> str:
    """Asserts that `content` is refused with one line, with little work and without allocating; returns the line."""
    path.write_bytes(content)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError) as caught, counted_calls() as calls:
        load_model(path)
    assert calls.count < _MAX_CALLS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < _MAX_GROWTH_KIB
    line = str(caught.value)
    assert str(path) in line
    assert "\n" not in line
    return line


def header(tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor_info(dimensions: tuple[int, ...], encoding: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return text(b"t") + sizes + struct.pack("<IQ", encoding, offset)


HOSTILE = {
    "empty": (b"", "cannot be read"),
    "magic": (b"ZIPP" + bytes(64), "starts with"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version": (header(version=99), "version 99"),
    "tensor count": (header(tensors=1 << 60), "tensor count"),
    "key count": (header(keys=1 << 60), "metadata key count"),
    "array length": (header(keys=1) + text(b"k") + struct.pack("<IIQ", _ARRAY, _UINT8, 1 << 62), "array length"),
    "array past end": (header(keys=1) + text(b"k") + struct.pack("<IIQ", _ARRAY, _UINT32, 1 << 20), "truncated"),
    "strings past end": (header(keys=1) + text(b"k") + struct.pack("<IIQ", _ARRAY, _STRING, 1 << 20), "truncated"),
    "nested array": (header(keys=1) + text(b"k") + struct.pack("<IIQ", _ARRAY, _ARRAY, 1), "unsupported type"),
    "string length": (header(keys=1) + struct.pack("<Q", (1 << 64) - 1), "truncated"),
    "value type": (header(keys=1) + text(b"k") + struct.pack("<I", 77), "unknown type 77"),
    "same key": (header(keys=2) + 2 * (text(b"k") + struct.pack("<II", _UINT32, 1)), "twice"),
    "alignment": (header(keys=1) + text(b"general.alignment") + struct.pack("<II", _UINT32, 3), "alignment 3"),
    "dimensions": (header(tensors=1) + tensor_info((1,) * 5), "5 dimensions"),
    "huge tensor": (header(tensors=1) + tensor_info((1 << 62, 1 << 62)), "truncated or damaged"),
    "far tensor": (header(tensors=1) + tensor_info((4,), offset=1 << 63), "truncated or damaged"),
    "empty tensor": (header(tensors=1) + tensor_info((0, 4)), "impossible shape"),
    "odd block": (header(tensors=1) + tensor_info((33,), encoding=8), "impossible shape"),
    "encoding": (header(tensors=1) + tensor_info((4,), encoding=250), "unknown encoding 250"),
    "line break in a name": (header(keys=2) + 2 * (text(b"a\nb") + struct.pack("<II", _UINT32, 1)), "twice"),
    "no metadata": (header(), "token embedding"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_refused(case: str, tmp_path: Path) -> None:
    content, reason = HOSTILE[case]
    assert reason in refused(tmp_path / "hostile.gguf", content)


def test_truncation_anywhere_is_refused(healthy: bytes, tmp_path: Path) -> None:
    offsets = {*range(64), *range(64, len(healthy), len(healthy) // 97), len(healthy) - 1}
    for offset in sorted(offsets):
        refused(tmp_path / "truncated.gguf", healthy[:offset])


@given(position=st.integers(0, 6_000), value=st.binary(min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_damage_gives_a_model_or_a_model_error(
    position: int, value: bytes, healthy: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(healthy[:position] + value + healthy[position + len(value) :])
    with contextlib.suppress(ModelError):
        load_model(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(tmp_path / "absent.gguf")
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general__architecture": "bert"}, "bert"),
        ({"llama__rope__scaling__type": "yarn"}, "yarn"),
        ({"split__count": "2"}, "split model"),
        ({"tokenizer__ggml__pre": "tekken"}, "tekken"),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer model"),
    ],
)
def test_unsupported_features_are_named(metadata: dict[str, str], reason: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), **metadata)
    with pytest.raises(ModelError, match=reason):
        load_model(path)


def test_wrong_shape_and_missing_tensor(healthy: bytes, tmp_path: Path) -> None:
    missing = healthy.replace(b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight")
    assert "blk.1.ffn_up" in refused(tmp_path / "missing.gguf", missing)
    extra = write_gguf(tmp_path / "extra.gguf", tiny_llama(), extra={"blk.1.attn_q_norm.weight": np.ones(16, np.float32)})
    assert "unknown tensor 'blk.1.attn_q_norm.weight'" in refused(tmp_path / "unknown.gguf", extra.read_bytes())
    config = tiny_llama().config
    wider = tiny_llama(intermediate_size=config.intermediate_size + 32)
    wrong = write_gguf(tmp_path / "wide.gguf", wider).read_bytes()
    key = b"llama.feed_forward_length" + struct.pack("<I", _UINT32)
    assert key in wrong
    narrow = wrong.replace(key + struct.pack("<I", 128), key + struct.pack("<I", 96))
    assert "has shape" in refused(tmp_path / "wrong.gguf", narrow)


_TYPES = gguf.GGUFValueType
_ODD_VALUES: tuple[tuple[object, ...], ...] = (
    ("x", _TYPES.STRING),
    (True, _TYPES.BOOL),
    (0, _TYPES.UINT32),
    (-1, _TYPES.INT32),
    (1 << 63, _TYPES.UINT64),
    (1.5, _TYPES.FLOAT32),
    (float("nan"), _TYPES.FLOAT32),
    ([1, 2], _TYPES.ARRAY, _TYPES.INT32),
    (["a", "b"], _TYPES.ARRAY, _TYPES.STRING),
)


@pytest.mark.parametrize("value", _ODD_VALUES, ids=lambda value: f"{value[1].name}-{value[0]}")
def test_any_value_of_any_key_gives_a_model_or_a_model_error(value: tuple[object, ...], tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    more = ("rope.scaling.type", "expert_count", "attention.key_length", "attention.value_length", "attention.sliding_window")
    healthy = open_gguf(write_gguf(path, tiny_qwen2())).metadata
    others = ("general.alignment", "split.count", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token")
    for key in (*healthy, *others, *(f"qwen2.{key}" for key in more)):
        write_gguf(path, tiny_qwen2(), **{key: value})
        with contextlib.suppress(ModelError):
            assert load_model(path).config.layers == 2


def encodings() -> list[gguf.GGMLQuantizationType]:
    kinds = gguf.GGMLQuantizationType
    return [kinds.F32, kinds.F16, kinds.BF16, kinds.Q4_0, kinds.Q4_1, kinds.Q5_0, kinds.Q5_1, kinds.Q8_0]


@pytest.mark.parametrize("encoding", encodings(), ids=lambda encoding: encoding.name)
def test_reads_what_the_gguf_package_reads(encoding: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    # More weights than are dequantised in one piece, and not a multiple of it.
    weights = np.random.default_rng(3).standard_normal((1_301, 256), dtype=np.float32)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("t", gguf.quantize(weights, encoding), raw_dtype=encoding)
    write: tuple[Callable[[], None], ...] = (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    )
    for part in write:
        part()
    tensor = gguf.GGUFReader(tmp_path / "one.gguf").tensors[0]
    expected = gguf.dequantize(tensor.data, tensor.tensor_type)
    assert np.array_equal(open_gguf(tmp_path / "one.gguf").read("t").numpy(), expected)


def test_stored_bits_are_the_widest_of_the_matrices(tmp_path: Path) -> None:
    kinds = gguf.GGMLQuantizationType
    bits = {kinds.F32: 32, kinds.F16: 16, kinds.BF16: 16, kinds.Q8_0: 9, kinds.Q4_0: 5}
    for encoding, expected in bits.items():
        writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
        for name, its_encoding in (("a.weight", encoding), ("b.weight", kinds.Q4_0)):
            weights = np.ones((4, 64), np.float32)
            writer.add_tensor(name, gguf.quantize(weights, its_encoding), raw_dtype=its_encoding)
        writer.add_tensor("norm.weight", np.ones(64, np.float32))  # vectors stay in F32, and do not count
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert stored_bits(open_gguf(tmp_path / "one.gguf")) == expected


def test_a_header_at_the_size_of_a_real_vocabulary_takes_a_few_calls_a_word(tmp_path: Path) -> None:
    words = [text(b"word%d" % index) for index in range(200_000)]
    array = text(b"k") + struct.pack("<IIQ", _ARRAY, _STRING, len(words)) + b"".join(words)
    (tmp_path / "large.gguf").write_bytes(header(keys=1) + array)
    with counted_calls() as calls:
        assert len(open_gguf(tmp_path / "large.gguf").metadata["k"]) == len(words)
    assert calls.count < 15 * len(words)
