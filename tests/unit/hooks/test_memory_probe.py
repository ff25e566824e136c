"""The memory probe on real memory of this process: what is retained comes back and is told so, what is kept stays."""

from __future__ import annotations

import ctypes
import gc
import logging
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hook_receivers import Clock, UnixReceiver, manual_emitter

from aie_hooks import AllocatorStats, Emitter, MemoryProbe
from aie_hooks.process_memory import malloc_bytes, malloc_trim, physical_bytes, python_blocks
from aie_telemetry.api import Event
from aie_telemetry.memory_probe import REQUESTS_NAME, ProbeRequest, decode_requests, encode_requests
from aie_telemetry.statsd import Parser

MB = 10**6
BLOCK_BYTES = 1 << 16
"""Of malloc's own heap: larger ones it maps, and gives back by itself."""


@contextmanager
def retained(megabytes: int) -> Iterator[list[int]]:
    """Memory that was freed and that malloc still has: every block but one in a thousand, so that the rest cannot shrink."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    blocks = [int(libc.malloc(BLOCK_BYTES)) for _ in range(megabytes * MB // BLOCK_BYTES)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK_BYTES)
    kept = blocks[99::100] + [blocks[-1]] * (blocks[-1] not in blocks[99::100])
    for block in set(blocks) - set(kept):
        libc.free(block)
    try:
        yield kept
    finally:
        for block in kept:
            libc.free(block)


@contextmanager
def cyclic(megabytes: int) -> Iterator[None]:
    """Memory in a cycle that nobody can reach, and that no collection has found yet. Mapped: malloc might retain what is freed."""
    was_enabled = gc.isenabled()
    gc.disable()
    area = mmap.mmap(-1, megabytes * MB or mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, len(area), mmap.PAGESIZE):
        area[page] = 1
    cycle: list[Any] = [area]
    cycle.append(cycle)
    del area, cycle
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Cuda:
    """`torch.cuda` with a cache that can be emptied."""

    def __init__(self, cached: int = 0, fails: bool = False) -> None:
        self.allocated, self.cached, self.fails = 100, cached, fails

    is_available = is_initialized = staticmethod(lambda: True)

    def empty_cache(self) -> None:
        if self.fails:
            raise RuntimeError("CUDA error: device lost")
        self.cached = 0

    def read(self) -> AllocatorStats:
        return AllocatorStats("cuda0", self.allocated, self.allocated + self.cached)


class Asked:
    """An engine's side of the agent's socket, and the file beside it."""

    def __init__(self, receiver: UnixReceiver, socket_path: Path) -> None:
        self.receiver, self.file = receiver, socket_path.with_name(REQUESTS_NAME)
        self.clock, self.wall_s = Clock(), 1_000_000.0
        self.emitter = manual_emitter(f"unix://{socket_path}", clock=self.clock)

    def probe(self, **more: Any) -> MemoryProbe:
        facts = {"window_s": 0.0, **more}
        return MemoryProbe(self.emitter, clock=self.clock, wall_clock=lambda: self.wall_s, **facts)

    def ask(self, number: str = "1", *, engine: str | None = None, expires_s: float = 1e9) -> None:
        request = ProbeRequest(engine=engine or self.emitter.engine, ask="memory_probe", id=number, expires_s=expires_s)
        scratch = self.file.with_name("scratch")
        scratch.write_bytes(encode_requests([request]))
        scratch.replace(self.file)

    def events(self) -> list[Event]:
        parser = Parser(datadog=True)
        parsed = [line for packet in self.receiver.packets() for line in parser.packet(packet)]
        return [line.event for line in parsed if line.event is not None]

    def event(self) -> Event:
        (event,) = self.events()
        return event


@pytest.fixture
def asked(receiver: UnixReceiver, socket_path: Path) -> Asked:
    gc.collect()  # what other tests left behind is none of these numbers
    malloc_trim()
    return Asked(receiver, socket_path)


def given_back(event: Event, step: str, before: str) -> float:
    """MB of physical memory, since `before`, a step or ""."""
    prefix = f"{before}_" if before else ""
    return (float(event.details[f"{prefix}physical_bytes"]) - float(event.details[f"{step}_physical_bytes"])) / MB


def test_what_malloc_retains_is_given_back_by_malloc_trim(asked: Asked) -> None:
    with retained(60) as kept:
        asked.ask()
        assert asked.probe().look()
        event = asked.event()
        assert 50 < given_back(event, "malloc_trim", "gc_collect") < 70
        assert ctypes.string_at(kept[0], BLOCK_BYTES) == b"\1" * BLOCK_BYTES, "what is in use is untouched"
    assert abs(given_back(event, "gc_collect", "")) < 20
    assert event.kind == "memory_probe"
    assert (event.details["id"], event.details["empty_cache"]) == ("1", "absent")
    assert "malloc_trim gave back" in event.summary
    assert {"device", "allocated_bytes"}.isdisjoint(event.details), "nobody tells"


def test_a_cycle_that_no_collection_found_is_given_back_by_gc_collect(asked: Asked) -> None:
    with cyclic(60):
        asked.ask()
        assert asked.probe().look()
    event = asked.event()
    assert 50 < given_back(event, "gc_collect", "") < 70
    assert event.details["gc_collect_objects"] >= 1  # type: ignore[operator]
    assert 0 < float(event.details["gc_collect_seconds"]) < 60


def test_memory_that_is_held_stays(asked: Asked) -> None:
    held = bytearray(b"1") * (60 * MB)
    before = physical_bytes()
    asked.ask()
    assert asked.probe().look()
    event = asked.event()
    assert len(held) == 60 * MB
    assert before is not None
    assert abs(float(event.details["physical_bytes"]) - before) < 10 * MB
    assert given_back(event, "gc_collect", "") + given_back(event, "malloc_trim", "gc_collect") < 40


def test_a_request_is_answered_once_and_no_sooner_than_the_last_allows(asked: Asked) -> None:
    probe = asked.probe(every_s=600.0)
    assert not probe.look(), "nobody asks"
    asked.ask("1")
    assert [probe.look(), probe.look()] == [True, False]
    asked.ask("2")
    assert not probe.look()
    asked.clock.now_s += 599.0
    assert not probe.look()
    asked.clock.now_s += 2.0
    assert [probe.look(), probe.look()] == [True, False]
    assert [event.details["id"] for event in asked.events()] == ["1", "2"]


def test_an_answer_that_was_lost_is_given_again_when_its_time_comes(asked: Asked) -> None:
    probe = asked.probe(every_s=600.0)
    asked.ask()
    asked.receiver.close()
    assert not probe.look()
    asked.receiver = UnixReceiver(asked.file.with_name("statsd.sock"))
    assert not probe.look(), "no sooner than the last allows"
    asked.clock.now_s += 601.0
    assert probe.look()
    assert asked.event().details["id"] == "1"


def test_what_is_asked_of_others_or_has_expired_is_passed_over(asked: Asked) -> None:
    probe = asked.probe()
    asked.ask(engine="another")
    assert not probe.look()
    asked.ask(expires_s=asked.wall_s - 1)
    assert not probe.look()
    asked.file.unlink()
    assert not probe.look()
    assert asked.events() == []


def _open_to_all(file: Path) -> None:
    file.chmod(0o666)


def _a_link(file: Path) -> None:
    file.replace(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def _a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def _too_large(file: Path) -> None:
    file.write_bytes(file.read_bytes() * 2000)


def _no_request(file: Path) -> None:
    file.write_bytes(b'{"engine":"e","ask":"exec","id":"1","expires_s":1e9}\n')


@pytest.mark.parametrize("spoil", [_open_to_all, _a_link, _a_pipe, _too_large, _no_request])
def test_a_file_that_is_none_of_the_agents(asked: Asked, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture) -> None:
    asked.ask()
    spoil(asked.file)
    probe = asked.probe()
    with caplog.at_level(logging.WARNING):
        assert [probe.look(), probe.look()] == [False, False]
    assert asked.events() == []
    assert len(caplog.records) == 1
    assert "passed over" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user(asked: Asked) -> None:
    asked.ask()
    os.chown(asked.file, 12345, 12345)
    assert not asked.probe().look()


class TestEmptyCache:
    def test_at_idle(self, asked: Asked) -> None:
        cuda = Cuda(cached=900)
        asked.ask()
        assert asked.probe(read=cuda.read, idle=lambda: True, cuda=cuda).look()
        details = asked.event().details
        assert (details["device"], details["reserved_bytes"], details["empty_cache_reserved_bytes"]) == ("cuda0", 1000, 100)
        assert details["gc_collect_reserved_bytes"] == 1000
        assert "empty_cache" not in details

    def test_waits_for_an_idle_moment_but_not_for_ever(self, asked: Asked) -> None:
        cuda, busy = Cuda(cached=900), SimpleNamespace(now=True)
        probe = asked.probe(read=cuda.read, idle=lambda: not busy.now, cuda=cuda, every_s=1.0)
        asked.ask("1")
        assert not probe.look()
        busy.now = False
        assert probe.look()
        assert cuda.cached == 0
        busy.now, cuda.cached = True, 900
        asked.clock.now_s += 10.0
        asked.ask("2")
        assert not probe.look()
        asked.clock.now_s += 61.0
        assert probe.look(), "it is always busy"
        _, event = asked.events()
        assert event.details["empty_cache"] == "busy"
        assert cuda.cached == 900
        assert "empty_cache was left out: requests were running" in event.summary

    def test_not_where_nobody_says_what_idle_is(self, asked: Asked) -> None:
        cuda = Cuda(cached=900)
        asked.ask()
        assert asked.probe(read=cuda.read, cuda=cuda).look()
        assert asked.event().details["empty_cache"] == "not_allowed"
        assert cuda.cached == 900

    def test_an_error_is_told_and_the_rest_is_done(self, asked: Asked) -> None:
        cuda = Cuda(cached=900, fails=True)
        asked.ask()
        assert asked.probe(read=cuda.read, idle=lambda: True, cuda=cuda).look()
        details = asked.event().details
        assert details["empty_cache"] == "failed"
        assert "malloc_trim_seconds" in details


def test_an_engine_on_the_cpu_is_asked_at_idle_as_well(asked: Asked) -> None:
    working = SimpleNamespace(now=True)
    probe = asked.probe(idle=lambda: not working.now)
    asked.ask()
    assert not probe.look()
    working.now = False
    assert probe.look()


def test_of_a_busy_allocator_the_least_of_several_readings_counts(asked: Asked) -> None:
    """Every reading but each third falls into a step, which holds 300 MB: nothing is given back by that."""
    count = iter(range(1000))
    held = [AllocatorStats("cpu", 100 * MB + extra, 400 * MB + extra) for extra in (300 * MB, 300 * MB, 0)]
    asked.ask()
    assert asked.probe(read=lambda: held[next(count) % 3], window_s=0.001).look()
    details = asked.event().details
    for step in ("", "gc_collect_", "malloc_trim_"):
        assert (details[f"{step}allocated_bytes"], details[f"{step}reserved_bytes"]) == (100 * MB, 400 * MB)


def _broken() -> AllocatorStats:
    raise RuntimeError("CUDA error: device lost")


def test_an_allocator_that_cannot_be_read(asked: Asked) -> None:
    asked.ask()
    assert asked.probe(read=_broken).look()
    assert "physical_bytes" in asked.event().details


def test_an_engine_whose_idle_raises_goes_on(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bool:
        raise RuntimeError("no such counter")

    asked.ask()
    assert not asked.probe(idle=broken, cuda=Cuda()).look()
    assert "the memory probe failed" in caplog.text


def test_a_look_within_a_look_returns_at_once(asked: Asked) -> None:
    """A finalizer that the collection calls may look, too."""
    seen: list[bool] = []

    class Late:
        probe: ClassVar[MemoryProbe | None] = None

        def __del__(self) -> None:
            assert Late.probe is not None
            seen.append(Late.probe.look())

    Late.probe = asked.probe()
    with cyclic(0):
        late: list[Any] = [Late()]
        late.append(late)
        del late
        asked.ask()
        assert Late.probe.look()
    assert seen == [False]


def test_where_it_looks() -> None:
    assert not MemoryProbe(Emitter("e", "off")).look(), "there is no agent"
    emitter = Emitter("e", "udp://127.0.0.1:9", flush_interval_s=float("inf"))
    with pytest.raises(ValueError, match="path of the agent's file"):
        MemoryProbe(emitter)
    assert not MemoryProbe(emitter, path=Path("none")).look()
    with pytest.raises(ValueError, match="every_s"):
        MemoryProbe(emitter, path=Path("none"), every_s=0.0)


def test_requests_survive_the_file() -> None:
    requests = [ProbeRequest(engine=name, ask="memory_probe", id="7", expires_s=1.5) for name in ("a", "b")]
    assert decode_requests(encode_requests(requests)) == requests
    assert decode_requests(b"") == []


def test_malloc_and_python_count_what_is_taken() -> None:
    malloc, blocks = malloc_bytes(), python_blocks()
    assert malloc is not None
    held = [bytearray(b"1") * MB for _ in range(20)]
    after = malloc_bytes()
    assert after is not None
    assert after.used_bytes - malloc.used_bytes == pytest.approx(20 * MB, rel=0.1)
    assert after.held_bytes >= after.used_bytes
    many = [[number] for number in range(100_000)]
    assert python_blocks() - blocks >= 100_000
    assert len(held) + len(many) == 100_020


def test_no_such_proc(tmp_path: Path) -> None:
    assert physical_bytes(tmp_path / "status") is None
