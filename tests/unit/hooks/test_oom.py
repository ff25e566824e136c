"""Records of memory that ran out: from torch's numbers, from an engine's own pool, and with everything broken."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hook_receivers import Clock, UnixReceiver, events

from aie_hooks import Emitter, PoolState, oom, oom_forensics, report_oom
from aie_hooks.oom import own_pids
from tests.fakes.fake_torch_cuda import MESSAGE, MIB, UUID, FakeTorchCuda

ERROR = torch.OutOfMemoryError(MESSAGE)


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
