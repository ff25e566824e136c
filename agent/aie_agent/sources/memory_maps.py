"""What the anonymous memory of suspect engines is: the heap of malloc, pages of mapped files that were written, or other mappings.

Only of engines that are followed, because their memory may leak: the kernel walks all of a process's pages to answer, and it may
not map memory meanwhile. Once a minute.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from typing import Final, Literal, NamedTuple

from aie_agent.identity import Engines
from aie_agent.samples import Batch, Point
from aie_agent.sources.procfs import Procfs
from aie_telemetry.catalogue import Kind as MetricKind

METRIC: Final = "aie_process_anonymous_bytes"

MapKind = Literal["heap", "file", "mapping"]

MOST_PROCESSES: Final = 64
"""Of all engines that are followed."""

_EVERY_S: Final = 60.0
_LEAST_PERIOD_S: Final = 5.0
_ARENA_BYTES: Final = 64 << 20
"""glibc makes malloc's further arenas of pieces of this size that begin at a multiple of it (HEAP_MAX_SIZE on 64 bits); what of a
piece is not used yet lies behind it, without access."""


class Mapping(NamedTuple):
    """One mapping of /proc/PID/smaps: `anonymous_bytes` of it are resident or swapped out, and no file's."""

    start: int
    end: int
    permissions: str
    path: str
    anonymous_bytes: int


class MemoryMaps:
    """A source: `aie_process_anonymous_bytes` of the engines that are followed, nothing while there are none. A process that ends
    meanwhile, or may not be read, is left out."""

    name: Final = "memory_maps"

    def __init__(self, engines: Engines, procfs: Procfs, time_scale: float = 1.0) -> None:
        """`time_scale` is the leak analysis'."""
        self.period_s = max(_EVERY_S / time_scale, _LEAST_PERIOD_S)
        self._engines = engines
        self._procfs = procfs
        self._followed: Set[str] = frozenset()

    def follow(self, engines: Set[str]) -> None:
        """From now on these and no others."""
        self._followed = engines

    async def collect(self, now_s: float) -> Batch:
        """Reads the followed engines' mappings in a thread."""
        tgids = {name: [each.tgid for each in self._engines.processes(name)] for name in self._followed}
        points = await asyncio.to_thread(self._read, tgids) if tgids else []
        return Batch(self.name, now_s, points, whole=(METRIC,), period_s=self.period_s)

    async def close(self) -> None:
        """Holds nothing."""

    def _read(self, tgids: dict[str, list[int]]) -> list[Point]:
        points = []
        left = MOST_PROCESSES
        for engine, processes in tgids.items():
            held: Counter[tuple[MapKind, int]] = Counter()
            for tgid in processes[:left]:
                held.update(self._held(tgid))
            left -= len(processes[:left])
            points += [
                Point(METRIC, MetricKind.GAUGE, (("engine", engine), ("kind", kind), ("size_class", str(size))), float(held_bytes))
                for (kind, size), held_bytes in sorted(held.items())
            ]
        return points

    def _held(self, tgid: int) -> dict[tuple[MapKind, int], int]:
        try:
            content = self._procfs.read(f"{tgid}/smaps")
        except OSError:  # another user's: then nothing is known of it
            content = None
        return by_kind(parse(content.decode(errors="replace"))) if content else {}


def by_kind(mappings: Iterable[Mapping]) -> dict[tuple[MapKind, int], int]:
    """Bytes of anonymous memory by what they are and by the size of their mapping, up to the next power of two."""
    found: Counter[tuple[MapKind, int]] = Counter()
    for mapping, after in _with_next(mappings):
        if mapping.anonymous_bytes:
            found[_kind(mapping, after), 1 << (mapping.end - mapping.start - 1).bit_length()] += mapping.anonymous_bytes
    return dict(found)


def parse(text: str) -> Iterator[Mapping]:
    """The mappings of a /proc/PID/smaps, by address. Raises ValueError for anything else."""
    head: list[str] = []
    kilobytes = 0
    for line in text.splitlines():
        if line.startswith(("Anonymous:", "Swap:")):
            kilobytes += int(line.split()[1])
        elif "-" in line.partition(" ")[0]:  # fields are "Name: value", and no name has one
            if head:
                yield _mapping(head, kilobytes)
            head, kilobytes = line.split(None, 5), 0
    if head:
        yield _mapping(head, kilobytes)


def _mapping(head: list[str], kilobytes: int) -> Mapping:
    start, end = (int(each, 16) for each in head[0].split("-"))
    return Mapping(start, end, head[1], head[5] if len(head) > 5 else "", kilobytes * 1024)


def _with_next(mappings: Iterable[Mapping]) -> Iterator[tuple[Mapping, Mapping | None]]:
    before = None
    for mapping in mappings:
        if before is not None:
            yield before, mapping
        before = mapping
    if before is not None:
        yield before, None


def _kind(mapping: Mapping, after: Mapping | None) -> MapKind:
    if mapping.path == "[heap]" or _is_arena(mapping, after):
        return "heap"
    return "file" if mapping.path.startswith("/") else "mapping"


def _is_arena(mapping: Mapping, after: Mapping | None) -> bool:
    """Whether it is a piece of one of malloc's arenas."""
    piece_end = mapping.start + _ARENA_BYTES
    if mapping.path or mapping.start % _ARENA_BYTES or mapping.end > piece_end:
        return False
    is_reserved = (
        after is not None and after.start == mapping.end and after.permissions.startswith("---") and after.end >= piece_end
    )
    return mapping.end == piece_end or is_reserved
