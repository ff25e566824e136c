"""Field values: many numbers of a GPU in one call, each with a type and a code of its own."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection, Sequence
from typing import Final

from aie_agent.sources.nvml import units
from aie_agent.sources.nvml.door import NOT_SUPPORTED, SENTINEL, Absent, Device, Door, number
from aie_agent.sources.nvml.rows import FIELDS, Row

# fieldId, scopeId, timestamp, latency, valueType, nvmlReturn, value: nvmlFieldValue_t.
_ENTRY: Final = struct.Struct("=IIqqIIQ")

# nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, long long, int, unsigned short.
_TYPES: Final = tuple(struct.Struct(code) for code in ("=d", "=I", "=Q", "=Q", "=q", "=i", "=H"))
_UNSIGNED_INT, _UNSIGNED_LONG, _UNSIGNED_LONG_LONG = 1, 2, 3

# Fields of links are many: asked in calls of this size, apart from the others.
_LINK_FIELDS_A_CALL: Final = 64

Answer = float | int | Absent


class FieldReader:
    """Reads the same fields of one GPU again and again. `fields` are pairs of a field's id and its scope.

    Those in `wide` are of no use in four bytes: a counter of bytes has soon wrapped there.
    """

    def __init__(
        self, door: Door, device: Device, fields: Sequence[tuple[int, int]], wide: Collection[tuple[int, int]] = ()
    ) -> None:
        self._door = door
        self._device = device
        self._wide = frozenset(wide)
        self._count = ctypes.c_int(len(fields))
        # Made once, and filled by the library itself: the binding's own structs cost a Python call for every member.
        self._buffer = ctypes.create_string_buffer(_ENTRY.size * len(fields))
        for place, (field, scope) in enumerate(fields):
            struct.pack_into("=II", self._buffer, place * _ENTRY.size, field, scope)

    def read(self) -> list[Answer]:
        """A number or an `Absent` for each field, in their order."""
        failed = self._door.query_raw(FIELDS, self._device, self._count, self._buffer)
        if failed is not None:
            return [failed] * self._count.value
        return [
            self._refused(field, scope, code)
            if code or (kind == _UNSIGNED_INT and (field, scope) in self._wide)
            else bits
            if kind in (_UNSIGNED_LONG, _UNSIGNED_LONG_LONG)
            else _value(kind, bits)
            for field, scope, _, _, kind, code, bits in _ENTRY.iter_unpack(self._buffer.raw)
        ]

    def _refused(self, field: int, scope: int, code: int) -> Absent:
        key = (FIELDS, (field, scope))
        if code:
            return self._door.code(FIELDS, self._device, key, code)
        self._device.unsupported.add(key)
        return NOT_SUPPORTED


def _value(kind: int, bits: int) -> float | int | Absent:
    if kind == _UNSIGNED_INT:
        return bits & 0xFFFFFFFF
    if kind >= len(_TYPES):
        return SENTINEL
    value: float | int = _TYPES[kind].unpack_from(bits.to_bytes(8, "little"))[0]
    return value


class RowFields:
    """Reads the rows of the table that are field values. Of one that is counted on each of so many NVLinks it gives the sum, and
    where it is not known how many there are (`Absent`) that."""

    def __init__(self, door: Door, device: Device, rows: Sequence[Row], links: int | Absent) -> None:
        self._device = device
        self._rows = tuple(rows)
        self._unknown = links if isinstance(links, Absent) else None
        links = self._links = 0 if isinstance(links, Absent) else links
        plain = [(row.args[0], row.args[1]) for row in rows if not row.each_link]
        of_links = [(row.args[0], link) for row in rows if row.each_link for link in range(links)]
        wide_fields = {row.args[0] for row in rows if row.unit is units.BYTES}
        wide = [pair for pair in (*plain, *of_links) if pair[0] in wide_fields]
        self._plain = FieldReader(door, device, plain, wide) if plain else None
        self._of_links = [
            FieldReader(door, device, of_links[first : first + _LINK_FIELDS_A_CALL], wide)
            for first in range(0, len(of_links), _LINK_FIELDS_A_CALL)
        ]
        self._last = dict.fromkeys(of_links, 0)

    def read(self) -> list[Answer]:
        """A number or an `Absent` for each row, in their order."""
        plain = iter([] if self._plain is None else self._plain.read())
        of_links = iter([answer for reader in self._of_links for answer in reader.read()])
        return [
            self._sum(row, [next(of_links) for _ in range(self._links)]) if row.each_link else next(plain) for row in self._rows
        ]

    def _sum(self, row: Row, answers: Sequence[Answer]) -> Answer:
        """A link that does not answer now stands where it stood: without it the sum would fall."""
        if self._unknown is not None:
            return self._unknown
        plain = [number(answer) if not isinstance(answer, Absent) else answer for answer in answers]
        for link, value in enumerate(plain):
            if not isinstance(value, Absent):
                self._last[row.args[0], link] = int(value)
        if any(not isinstance(value, Absent) for value in plain):
            return sum(self._last[row.args[0], link] for link in range(self._links))
        if all(answer is NOT_SUPPORTED for answer in plain):
            self._device.unsupported.add((FIELDS, row.args))
            return NOT_SUPPORTED
        return plain[0]
