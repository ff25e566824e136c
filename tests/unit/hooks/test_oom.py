"""Records of memory that ran out: from torch's numbers, from an engine's own pool, and with everything broken."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hook_receivers import Clock, UnixReceiver, hellos, manual_emitter

from aie_hooks import AllocatorHook, Emitter, PoolState, oom, oom_forensics, report_oom, torch_cuda_stats
from aie_hooks.oom import asked_bytes, is_out_of_memory, own_pids
from aie_telemetry.api import Event
from aie_telemetry.events import decode_event
from tests.fakes.fake_torch_cuda import MESSAGE, MIB, UUID, FakeTorchCuda

ERROR = torch.OutOfMemoryError(MESSAGE)


def events(receiver: UnixReceiver) -> list[Event]:
    """What lies in the socket; an event stands alone in its packet."""
    found = []
    for packet in receiver.packets():
        match = re.match(rb"_e\{(\d+),(\d+)\}:", packet)
        if match:
            body = packet[match.end() :]
            title, text = body[: int(match[1])], body[int(match[1]) + 1 :]
            assert len(text) == int(match[2])
            event = decode_event(title.decode(), text.decode())
            assert event is not None
            found.append(event)
    return found


@pytest.fixture
def emitter(receiver: UnixReceiver, socket_path: Path) -> Emitter:
    return manual_emitter(f"unix://{socket_path}")


@pytest.fixture
def _no_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.mark.usefixtures("_no_pynvml")
def test_everything_that_torch_knows_goes_out_at_once(receiver: UnixReceiver, emitter: Emitter) -> None:
    assert report_oom(emitter, ERROR, 0, cuda=FakeTorchCuda(), time_s=1700000000.5)
    (event,) = events(receiver)  # without a flush
    assert (event.time_s, event.kind, event.engine) == (1700000000.5, "oom", "chat")
    assert event.summary.startswith("out of memory on cuda0: CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0")
    assert event.details == {
        "device": "cuda0",
        "asked_bytes": 100 * MIB,
        "free_bytes": 15 * MIB,
        "total_bytes": 32120 * MIB,
        "largest_free_bytes": 7 * MIB,  # what is free in the graphs' pool, or on the other GPU, is no use here
        "reserved_unallocated_bytes": 20 * MIB,
        "allocated_bytes": 31480 * MIB,
        "reserved_bytes": 31500 * MIB,
        "inactive_split_bytes": 12 * MIB,
        "private_pool_bytes": 64 * MIB,
        "retries": 3,
        "ooms": 2,
        "error": "OutOfMemoryError",
        "suppressed": 0,
    }


class _Nvml:
    """As `pynvml` with three processes on the GPU, of which one is this one, and one that the driver says nothing of."""

    def __init__(self, own: int) -> None:
        self.own = own
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        assert uuid == f"GPU-{UUID}"
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        used = {11: None, 12: 700 * MIB, self.own: 31000 * MIB, 13: 2048 * MIB}
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in used.items()]


_OTHERS = "pid 13: 2048 MiB, pid 12: 700 MiB, pid 11: unknown"


@pytest.mark.parametrize(
    ("own", "holders"),
    [
        (frozenset({40, 7}), _OTHERS),
        (None, f"pid 40: 31000 MiB, {_OTHERS}, of all on the GPU one may be this process"),
    ],
)
def test_who_else_is_on_the_gpu(
    receiver: UnixReceiver, emitter: Emitter, monkeypatch: pytest.MonkeyPatch, own: frozenset[int] | None, holders: str
) -> None:
    nvml = _Nvml(40)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(oom, "own_pids", lambda: own)
    assert report_oom(emitter, ERROR, 0, cuda=FakeTorchCuda())
    assert events(receiver)[0].details["holders"] == holders
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("namespace", "status", "pids"),
    [
        ("pid:[4026531836]", "Pid:\t40\nNSpid:\t40\n", {40}),  # the host itself
        ("pid:[4026532300]", "Pid:\t40\nNSpid:\t40\t7\n", {40, 7}),  # a container with the host's /proc
        ("pid:[4026532300]", "Pid:\t7\nNSpid:\t7\n", None),  # a container with its own: the host's pid is out of sight
        ("pid:[4026531836]", "Pid:\t40\n", {os.getpid()}),  # a kernel before 4.1
        (None, "NSpid:\t40\n", None),
    ],
)
def test_by_which_pids_the_host_knows_this_process(
    tmp_path: Path, namespace: str | None, status: str, pids: set[int] | None
) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/status").write_text(status)
    if namespace is not None:
        (tmp_path / "self/ns/pid").symlink_to(namespace)
    assert own_pids(tmp_path) == pids


def test_a_child_by_the_real_proc() -> None:
    assert own_pids() is None or os.getpid() in own_pids()  # type: ignore[operator]


@pytest.mark.usefixtures("_no_pynvml")
def test_what_cannot_be_read_is_absent_and_named(receiver: UnixReceiver, emitter: Emitter) -> None:
    cuda = FakeTorchCuda(breaks=frozenset({"mem_get_info", "memory_snapshot", "memory_stats"}))
    assert report_oom(emitter, ERROR, 1, cuda=cuda)
    assert events(receiver)[0].details == {
        "device": "cuda1",
        "asked_bytes": 100 * MIB,
        "unreadable": "mem_get_info: RuntimeError, memory_stats: RuntimeError, memory_snapshot: RuntimeError",
        "error": "OutOfMemoryError",
        "suppressed": 0,
    }


def test_a_pool_of_ones_own(receiver: UnixReceiver, emitter: Emitter) -> None:
    class ArenaFullError(Exception):
        pass

    state = PoolState(asked_bytes=4096, free_bytes=9000, largest_free_bytes=2048, allocated_bytes=91000, reserved_bytes=100000)
    error = ArenaFullError("no 4096 bytes in a row")
    with pytest.raises(ArenaFullError) as caught, oom_forensics(emitter, "kv", pool=lambda: state, errors=(ArenaFullError,)):
        raise error
    assert caught.value is error
    (event,) = events(receiver)
    assert event.summary == "out of memory on kv: no 4096 bytes in a row"
    assert event.details == {
        "device": "kv",
        "asked_bytes": 4096,
        "free_bytes": 9000,
        "largest_free_bytes": 2048,
        "allocated_bytes": 91000,
        "reserved_bytes": 100000,
        "reserved_unallocated_bytes": 9000,
        "error": "ArenaFullError",
        "suppressed": 0,
    }


def test_a_real_allocation_that_fails(receiver: UnixReceiver, emitter: Emitter) -> None:
    """torch's own words on a CPU, whatever version is installed."""

    @oom_forensics(emitter, "cpu", pool=PoolState)
    def allocate() -> torch.Tensor:
        return torch.empty(2**50, dtype=torch.uint8)

    with pytest.raises(RuntimeError, match="allocate"):
        allocate()
    (event,) = events(receiver)
    assert event.details["asked_bytes"] == 2**50
    assert allocate.__name__ == "allocate"


def test_of_a_device_without_a_pool_only_the_error_is_known(receiver: UnixReceiver, emitter: Emitter) -> None:
    cuda = FakeTorchCuda()
    assert report_oom(emitter, MemoryError("you tried to allocate 42 bytes"), "cpu", cuda=cuda)
    assert events(receiver)[0].details == {"device": "cpu", "asked_bytes": 42, "error": "MemoryError", "suppressed": 0}
    assert cuda.calls == []  # a GPU that the host has as well is another matter


def test_a_receiver_that_is_full_is_not_waited_for(receiver: UnixReceiver, emitter: Emitter) -> None:
    sent = 0
    while emitter.event(_event()):  # a Unix socket holds some ten packets
        sent += 1
    assert emitter.stats().dropped["would_block"] == 1
    assert len(events(receiver)) == sent


def test_other_errors_and_none_leave_no_record(receiver: UnixReceiver, emitter: Emitter) -> None:
    forensics = oom_forensics(emitter, cuda=FakeTorchCuda())
    for _ in range(1000):
        with forensics:
            pass
    for error in (
        RuntimeError("CUDA error: device-side assert triggered"),
        KeyError("x"),
        KeyboardInterrupt(),
        ValueError(MESSAGE),
    ):
        with pytest.raises(type(error)), forensics:
            raise error
    emitter.flush()
    assert events(receiver) == []


@pytest.mark.usefixtures("_no_pynvml")
def test_one_record_a_period_and_the_rest_are_counted(receiver: UnixReceiver, emitter: Emitter) -> None:
    clock = Clock()
    forensics = oom_forensics(emitter, cuda=FakeTorchCuda(), clock=clock)
    for _ in range(50):
        with pytest.raises(torch.OutOfMemoryError), forensics:
            raise torch.OutOfMemoryError(MESSAGE)
        clock.now_s += 0.125
    assert [event.details["suppressed"] for event in events(receiver)] == [0]
    assert forensics.suppressed == 49
    clock.now_s += oom.PERIOD_S
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError), forensics:
            raise torch.OutOfMemoryError(MESSAGE)
    assert [event.details["suppressed"] for event in events(receiver)] == [49]
    assert forensics.suppressed == 1


def test_a_record_that_cannot_be_made_does_not_reach_the_engine(
    receiver: UnixReceiver, emitter: Emitter, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> PoolState:
        raise OSError("the pool is gone")

    class UnprintableError(MemoryError):
        def __str__(self) -> str:
            raise ValueError("no words")

    def leaving() -> PoolState:
        raise SystemExit(4)

    class InterruptedError(RuntimeError):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    faults: tuple[tuple[Exception, Any], ...] = (
        (MemoryError(), broken),
        (UnprintableError(), PoolState),
        (MemoryError(), leaving),
        (InterruptedError(), PoolState),
    )
    for error, pool in faults:
        with pytest.raises(type(error)) as caught, oom_forensics(emitter, "cpu", pool=pool):
            raise error
        assert caught.value is error
    assert events(receiver) == []
    assert emitter.stats().dropped["invalid"] == 4
    assert "the pool is gone" in caplog.text


@pytest.mark.usefixtures("_no_pynvml")
def test_as_a_decorator_of_whatever_runs_later_than_its_call(receiver: UnixReceiver, emitter: Emitter) -> None:
    watched = [oom_forensics(emitter, f"d{number}") for number in range(3)]

    @watched[0]
    def plain() -> int:
        raise MemoryError("plain")

    @watched[1]
    async def coroutine() -> int:
        await asyncio.sleep(0)
        raise MemoryError("coroutine")

    @watched[2]
    def generator(start: int) -> Iterator[int]:
        yield start
        raise MemoryError("generator")

    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    values = generator(7)
    assert next(values) == 7
    for run in (plain, lambda: asyncio.run(coroutine()), lambda: next(values)):
        with pytest.raises(MemoryError):
            run()
    assert [event.details["device"] for event in events(receiver)] == ["d0", "d1", "d2"]


def test_a_decorated_generator_passes_on_what_it_is_sent_and_returns(emitter: Emitter) -> None:
    @oom_forensics(emitter, "cpu")
    def echo() -> Generator[int, int, str]:
        got = yield 1
        got = yield got
        return str(got)

    values = echo()
    assert (next(values), values.send(5)) == (1, 5)
    with pytest.raises(StopIteration) as ended:
        values.send(9)
    assert ended.value.value == "9"


def test_asynchronous_generators_are_refused(emitter: Emitter) -> None:
    async def stream() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match="asynchronous generator"):
        oom_forensics(emitter, "cpu")(stream)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (MESSAGE, 100 * MIB),
        (
            "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already allocated)",
            2426656522,
        ),
        ("CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has", 512),
        ("Tried to allocate 1.50 KiB", 1536),
        ("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to allocate 42 bytes.", 42),
        ("CUDA error: out of memory", None),
        ("Tried to allocate 1.2.3 MiB", None),
        ("Tried to allocate many MiB", None),
        ("Tried to allocate 9e99 MiB", None),
        ("", None),
    ],
)
def test_how_much_was_asked_for(message: str, size: int | None) -> None:
    asked = asked_bytes(message)
    assert asked == (size if size is None else pytest.approx(size, abs=1))


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (ERROR, True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_which_errors_say_that_memory_ran_out(error: BaseException, ran_out: bool) -> None:
    assert is_out_of_memory(error) is ran_out


# The stand-in against the real thing, which has no GPU here but a signature and a documentation.


@pytest.mark.parametrize(
    "name", ["mem_get_info", "memory_stats", "memory_snapshot", "host_memory_stats", "get_device_properties", "is_available"]
)
def test_the_stand_in_takes_the_arguments_of_the_real_functions(name: str) -> None:
    real = list(inspect.signature(getattr(torch.cuda, name)).parameters)
    assert list(inspect.signature(getattr(FakeTorchCuda(), name)).parameters) == real


def test_the_stand_ins_counters_are_documented_by_torch() -> None:
    documented = " ".join((torch.cuda.memory_stats.__doc__ or "").split())
    for key in FakeTorchCuda().memory_stats():
        assert f'``"{key.split(".")[0]}' in documented, key
    documented = torch.cuda.host_memory_stats.__doc__ or ""
    for key in FakeTorchCuda().host_memory_stats():
        assert f'"{key.split(".")[0]}' in documented, key


def test_torchs_numbers_are_read_from_the_stand_in() -> None:
    stats = torch_cuda_stats(0, cuda=FakeTorchCuda())
    assert (stats.allocated_bytes, stats.reserved_bytes, stats.inactive_split_bytes) == (31480 * MIB, 31500 * MIB, 12 * MIB)
    assert (stats.pinned_bytes, stats.retries, stats.ooms) == (96 * MIB, 3, 2)
    assert (stats.private_pool_bytes, stats.largest_free_bytes) == (None, None)
    assert torch_cuda_stats(1, cuda=FakeTorchCuda()).pinned_bytes is None


def test_no_snapshot_on_the_fast_path(emitter: Emitter) -> None:
    cuda = FakeTorchCuda()
    AllocatorHook(emitter, lambda: torch_cuda_stats(0, cuda=cuda)).report()
    assert cuda.calls == ["memory_stats", "host_memory_stats"]


def test_before_the_first_use_of_cuda_everything_is_zero() -> None:
    stats = torch_cuda_stats(0, cuda=FakeTorchCuda(used=False))
    assert (stats.allocated_bytes, stats.inactive_split_bytes, stats.pinned_bytes, stats.retries, stats.ooms) == (0, 0, 0, 0, 0)


# The emitter's side: one packet, at once, and never an error.


def _event(**details: float | str) -> Event:
    return Event(time_s=1.0, kind="oom", engine="chat", summary="s", details=details)


def test_the_engine_says_who_it_is_before_its_first_event(receiver: UnixReceiver, emitter: Emitter) -> None:
    receiver.packets()
    emitter._greeted_generation = 0  # as after a restart of the agent
    assert emitter.event(_event())
    packets = receiver.packets()
    assert [packet[:3] for packet in packets] == [b"aie", b"_e{"]


def test_an_event_takes_from_the_budget(receiver: UnixReceiver, socket_path: Path) -> None:
    clock = Clock()
    emitter = manual_emitter(f"unix://{socket_path}", packets_per_second=3.0, clock=clock)
    # Two packets are spent: the hello line, and the counters that are announced.
    assert [emitter.event(_event()) for _ in range(3)] == [True, False, False]
    assert emitter.stats().dropped["budget"] == 2
    clock.now_s += 1.0
    assert emitter.event(_event())
    assert len(events(receiver)) == 2


@pytest.mark.parametrize("kind", ["nonsense", "oom"])
def test_an_event_that_cannot_be_said_is_counted(receiver: UnixReceiver, emitter: Emitter, kind: str) -> None:
    details: dict[str, Any] = {} if kind != "oom" else {"set": {object()}}
    event = Event(time_s=1.0, kind=kind, engine="chat", summary="s", details=details)
    assert not emitter.event(event)
    assert emitter.stats().dropped["invalid"] == 1
    assert events(receiver) == []


def test_without_a_receiver_an_event_is_dropped_and_counted(tmp_path: Path) -> None:
    emitter = manual_emitter(f"unix://{tmp_path}/nobody.sock")
    assert not emitter.event(_event())
    assert emitter.stats().dropped["no_receiver"] == 1


def test_an_emitter_that_is_off_or_closed_sends_no_event(receiver: UnixReceiver, emitter: Emitter) -> None:
    assert not manual_emitter("off").event(_event())
    emitter.close()
    assert not emitter.event(_event())
    assert events(receiver) == []


def test_a_flush_that_hangs_does_not_hang_the_event(receiver: UnixReceiver, emitter: Emitter) -> None:
    hanging = threading.Thread(target=emitter._flushing.take)  # and the thread's end does not free it
    hanging.start()
    hanging.join()
    assert not emitter.event(_event())
    emitter._flushing.leave()
    assert emitter.stats().dropped["would_block"] == 1
    assert emitter.event(_event())


def test_hello_lines_and_events_do_not_disturb_each_other(receiver: UnixReceiver, emitter: Emitter) -> None:
    assert len(hellos(receiver.samples())) == 1
    emitter.event(_event(x=1.0))
    emitter.flush()
    assert hellos(receiver.samples()) == []
