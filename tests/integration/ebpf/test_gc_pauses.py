"""Collections of a real CPython through its USDT probes: how many, how long, and the counter that the kernel raises."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aie_ebpf import uprobe_links
from aie_ebpf.door import PROGRAMS, Bcc, Module, Probe
from aie_ebpf.messages import Histogram
from aie_ebpf.readers.gc import GcReader
from aie_ebpf.readers.watched import SETS
from aie_ebpf.targets import AttachPoint
from aie_ebpf.uprobe_links import Spot, Way
from aie_ebpf.usdt import gc_points
from tests.integration.ebpf.uprobe_ways import both_ways

COLLECTIONS = 40
# Collects when it is told to, and says how long that took by its own clock. Garbage makes some take longer.
COLLECTS = """
import gc, json, sys, time
gc.disable()
pauses, began = [], [0]
def note(phase, info):
    if phase == "start":
        began[0] = time.perf_counter()
    else:
        pauses.append(time.perf_counter() - began[0])
gc.callbacks.append(note)
print("ready", flush=True)
for line in sys.stdin:
    pauses.clear()
    for round in range(int(line)):
        rows = [[each] for each in range(round * 1000 + 1)]
        for row in rows:
            row.append(row)
        del rows, row
        gc.collect() if round else gc.collect(0)
    print(json.dumps(pauses), flush=True)
"""
WATCHED_FIELDS = 3 + 4 * len(SETS) + 2


class Collector(NamedTuple):
    """A process that collects, and the points of its probes."""

    tgid: int
    points: list[AttachPoint]
    collect: Callable[[int], list[float]]


@pytest.fixture(scope="module")
def module(bcc: Bcc) -> Module:
    """gc with a map of watched processes of its own."""
    # The map that modules share is another test's, if it runs in the same process.
    alone = 'BPF_TABLE("hash", u32, struct watched, watched, 64);\n'
    base, watched, gc = ((PROGRAMS / name).read_text() for name in ("common.h", "watched.h", "gc.bpf.c"))
    return bcc.compile_text(base + watched + alone + gc)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", COLLECTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        points, reason = gc_points(process.pid)
        stdin, stdout = process.stdin, process.stdout

        def collect(times: int) -> list[float]:
            stdin.write(f"{times}\n")
            stdin.flush()
            return list(json.loads(stdout.readline()))

        try:
            if not points:
                pytest.skip(reason)
            yield Collector(process.pid, points, collect)
        finally:
            process.kill()


def counters(tgid: int, points: list[AttachPoint]) -> list[int]:
    """The probes' semaphores, as they are in the process's memory now."""
    found = []
    for point in points:
        for line in Path(f"/proc/{tgid}/maps").read_text().splitlines():
            span, access, offset, _, _, *path = line.split(None, 5)
            start, end = (int(word, 16) for word in span.split("-"))
            inside = point.semaphore_offset - int(offset, 16)
            if "w" in access and path and path[0].startswith("/") and 0 <= inside < end - start and "python" in path[0]:
                with open(f"/proc/{tgid}/mem", "rb") as memory:
                    memory.seek(start + inside)
                    found.append(int.from_bytes(memory.read(2), "little"))
    assert len(found) == len(points)
    return found


def watch(module: Module, tgid: int) -> Any:
    table = module.table("watched", "I", f"{WATCHED_FIELDS}Q")
    table.put((tgid,), (0,) * WATCHED_FIELDS)
    return table


def attach(module: Module, way: Way, collector: Collector) -> list[Probe]:
    return [
        uprobe_links.attach(
            module, way, str(point.path), [Spot(point.offset, point.semaphore_offset)], point.row.entry, collector.tgid
        )
        for point in collector.points
    ]


@both_ways
def test_every_collection_is_seen_as_long_as_it_is(module: Module, way: Way, collector: Collector) -> None:
    watched = watch(module, collector.tgid)
    reader = GcReader(module)
    collector.collect(3)
    assert reader.read() == {}, "nobody looks yet"
    assert counters(collector.tgid, collector.points) == [0, 0]
    probes = attach(module, way, collector)
    try:
        assert counters(collector.tgid, collector.points) == [1, 1]
        told = collector.collect(COLLECTIONS)
        seen = reader.read()[collector.tgid]
        again = reader.read()
    finally:
        for probe in probes:
            module.detach(probe)
    assert_same(seen, told)
    assert again == {}
    assert watched.get(collector.tgid)[3 + SETS.index("gc")] == 2 * COLLECTIONS, "each hit is charged"
    assert counters(collector.tgid, collector.points) == [0, 0]
    collector.collect(3)
    assert reader.read() == {}, "nobody looks any more"
    reader.forget(collector.tgid)
    watched.delete(collector.tgid)


def assert_same(seen: Histogram, told: list[float]) -> None:
    """The probes are inside what the process's own callbacks measure, and the larger part of it."""
    assert sum(seen.slots) == len(told) == COLLECTIONS
    assert 0.5 * sum(told) < seen.total <= sum(told)


def test_who_is_not_watched_is_not_counted(module: Module, way: Way, collector: Collector) -> None:
    probes = attach(module, way, collector)
    try:
        collector.collect(5)
        assert GcReader(module).read() == {}
    finally:
        for probe in probes:
            module.detach(probe)


def test_a_set_that_is_off_sees_nothing_and_is_charged(module: Module, way: Way, collector: Collector) -> None:
    table = watch(module, collector.tgid)
    table.put((collector.tgid,), (0, 0, 1 << SETS.index("gc"), *(0,) * (WATCHED_FIELDS - 3)))
    probes = attach(module, way, collector)
    try:
        collector.collect(5)
        assert table.get(collector.tgid)[3 + SETS.index("gc")] == 2 * 5
        assert GcReader(module).read() == {}
    finally:
        for probe in probes:
            module.detach(probe)
        table.delete(collector.tgid)
