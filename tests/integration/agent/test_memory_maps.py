"""The mappings of this very process, as the kernel tells them."""

from __future__ import annotations

import asyncio
import ctypes
import json
import mmap
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from aie_agent.identity import Engines, Origin
from aie_agent.sources.memory_maps import METRIC, MemoryMaps, by_kind, parse
from aie_agent.sources.procfs import Procfs
from aie_hooks.process_memory import malloc_trim, physical_bytes

MB = 10**6
BLOCK_BYTES = 1 << 16


def held() -> Counter[str]:
    """Bytes by kind now."""
    found: Counter[str] = Counter()
    for (kind, _), size in by_kind(parse(Path("/proc/self/smaps").read_text())).items():
        found[kind] += size
    return found


@contextmanager
def _malloc(megabytes: int) -> Iterator[None]:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    blocks = [int(libc.malloc(BLOCK_BYTES)) for _ in range(megabytes * MB // BLOCK_BYTES)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK_BYTES)
    try:
        yield
    finally:
        for block in blocks:
            libc.free(block)


@contextmanager
def malloc_in_a_thread(megabytes: int) -> Iterator[None]:
    """Another thread has another arena."""
    taken, over = threading.Event(), threading.Event()

    def run() -> None:
        with _malloc(megabytes):
            taken.set()
            over.wait()

    thread = threading.Thread(target=run)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def mapped(megabytes: int) -> Iterator[None]:
    with mmap.mmap(-1, megabytes * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.write(b"1" * len(area))
        yield


TAKES: dict[str, Callable[[int], AbstractContextManager[None]]] = {
    "malloc": _malloc,
    "malloc in a thread": malloc_in_a_thread,
    "mmap": mapped,
}


def gains_by(name: str) -> dict[str, int]:
    """What 100 MB, taken in one of these ways, add to each kind."""
    held()  # what it takes to read the mappings is taken before
    before = held()
    with TAKES[name](100):
        after = held()
    return {kind: after[kind] - before[kind] for kind in ("heap", "file", "mapping")}


@pytest.mark.parametrize(("name", "kind"), [("malloc", "heap"), ("malloc in a thread", "heap"), ("mmap", "mapping")])
def test_what_is_taken_is_seen_as_what_it_is(name: str, kind: str) -> None:
    """In a process of its own: what tests before this one gave back is still this one's, and would be taken again."""
    told = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True, timeout=120).stdout
    gains = json.loads(told)
    assert gains.pop(kind) == pytest.approx(100 * MB, rel=0.1)
    assert max(gains.values()) < 5 * MB


def test_written_pages_of_a_mapped_file(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(20 * MB))
    before = held()["file"]
    with (tmp_path / "weights").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as area:
        area.write(b"1" * (20 * MB))
        assert held()["file"] - before == pytest.approx(20 * MB, rel=0.01)


def test_all_kinds_together_are_the_anonymous_memory() -> None:
    malloc_trim()  # what malloc has to give back it gives back at any moment
    assert sum(held().values()) == pytest.approx(physical_bytes() or 0, rel=0.03)


@pytest.mark.parametrize("text", ["", "Anonymous: 4 kB\n"])
def test_nothing(text: str) -> None:
    assert by_kind(parse(text)) == {}


class TestSource:
    @pytest.fixture
    def engines(self) -> Engines:
        procfs = Procfs()
        engines = Engines(procfs.start_ticks)
        engines.declare("e", Origin.STATSD, os.getpid())
        engines.declare("gone", Origin.CONFIG)
        return engines

    def test_only_who_is_followed(self, engines: Engines) -> None:
        source = MemoryMaps(engines, Procfs())
        assert asyncio.run(source.collect(1.0)).points == []
        malloc_trim()
        source.follow({"e", "gone", "stranger"})
        batch = asyncio.run(source.collect(2.0))
        assert (batch.whole, batch.period_s) == ((METRIC,), 60.0)
        assert {dict(each.tags)["engine"] for each in batch.points} == {"e"}
        assert {dict(each.tags)["kind"] for each in batch.points} == {"heap", "file", "mapping"}
        held_bytes = sum(each.value for each in batch.points)
        assert held_bytes == pytest.approx(physical_bytes() or 0, rel=0.25), "the thread that reads may give some back"
        source.follow(frozenset())
        assert asyncio.run(source.collect(3.0)).points == []

    def test_a_process_that_may_not_be_read(self, engines: Engines, tmp_path: Path) -> None:
        """A directory in place of the file: reading it is an error for root, too."""
        (tmp_path / str(os.getpid()) / "smaps").mkdir(parents=True)
        source = MemoryMaps(engines, Procfs(tmp_path))
        source.follow({"e"})
        assert asyncio.run(source.collect(1.0)).points == []

    def test_its_pace(self, engines: Engines) -> None:
        assert MemoryMaps(engines, Procfs(), 240.0).period_s == 5.0


if __name__ == "__main__":
    print(json.dumps(gains_by(sys.argv[1])))
