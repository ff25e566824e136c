"""Field values: many numbers of a GPU in one call, each with a type and a code of its own."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from aie_agent.sources.nvml.door import SENTINEL, Absent, Device, Door
from aie_agent.sources.nvml.rows import FIELDS

# fieldId, scopeId, timestamp, latency, valueType, nvmlReturn, value: nvmlFieldValue_t.
_ENTRY: Final = struct.Struct("=IIqqII8s")

# nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, long long, int, unsigned short.
_TYPES: Final = tuple(struct.Struct(code) for code in ("=d", "=I", "=Q", "=Q", "=q", "=i", "=H"))


class FieldValue(NamedTuple):
    """A number or an `Absent`, and in how many bytes it came: a counter of four has soon wrapped."""

    value: float | int | Absent
    size_bytes: int = 0


class FieldReader:
    """Reads the same fields of one GPU again and again. `fields` are pairs of a field's id and its scope."""

    def __init__(self, door: Door, device: Device, fields: Sequence[tuple[int, int]]) -> None:
        self._door = door
        self._device = device
        self._fields = list(fields)
        # Made once, and filled by the library itself: the binding's own structs cost a Python call for every member.
        self._buffer = ctypes.create_string_buffer(_ENTRY.size * len(fields))
        for place, (field, scope) in enumerate(self._fields):
            struct.pack_into("=II", self._buffer, place * _ENTRY.size, field, scope)

    def read(self) -> list[FieldValue]:
        """One for each field, in their order."""
        failed = self._door.query_raw(FIELDS, self._device, ctypes.c_int(len(self._fields)), self._buffer)
        if failed is not None:
            return [FieldValue(failed)] * len(self._fields)
        return [
            _value(kind, raw) if code == 0 else FieldValue(self._door.code(FIELDS, self._device, (FIELDS, (field, scope)), code))
            for field, scope, _, _, kind, code, raw in _ENTRY.iter_unpack(self._buffer.raw)
        ]


def _value(kind: int, raw: bytes) -> FieldValue:
    if kind >= len(_TYPES):
        return FieldValue(SENTINEL)
    return FieldValue(_TYPES[kind].unpack_from(raw)[0], _TYPES[kind].size)
