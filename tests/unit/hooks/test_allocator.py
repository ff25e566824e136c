"""The allocator's numbers, and readers that fail."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hook_receivers import UnixReceiver, levels, manual_emitter, totals

from aie_hooks import AllocatorHook, AllocatorStats, torch_cuda_stats


def test_both_gauges_of_each_device(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    for device, allocated in (("cuda0", 3 * 2**33 + 1), ("cpu", 0)):
        AllocatorHook(emitter, lambda d=device, a=allocated: AllocatorStats(d, a, a + 512)).report()  # type: ignore[misc]
    emitter.flush()
    gauges = {(name, dict(tags).get("device")): value for (name, tags), value in levels(receiver.samples()).items()}
    assert gauges["aie_engine_allocator_allocated_bytes", "cuda0"] == 3 * 2**33 + 1
    assert gauges["aie_engine_allocator_reserved_bytes", "cuda0"] == 3 * 2**33 + 513
    assert gauges["aie_engine_allocator_allocated_bytes", "cpu"] == 0
    assert gauges["aie_engine_allocator_reserved_bytes", "cpu"] == 512


def test_a_reader_that_fails_is_logged_once_until_it_works(
    receiver: UnixReceiver, socket_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    works = iter([False, False, True, False])

    def read() -> AllocatorStats:
        if not next(works):
            raise RuntimeError("CUDA error: device lost")
        return AllocatorStats("cuda0", 1, 2)

    hook = AllocatorHook(emitter, read)
    for _ in range(4):
        hook.report()
    assert emitter.stats().dropped["invalid"] == 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.ERROR]
    assert "device lost" in caplog.text


def test_a_device_name_that_cannot_be_said_does_not_reach_the_engine_either(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    AllocatorHook(emitter, lambda: AllocatorStats("x" * 2000, 1, 2)).report()
    assert emitter.stats().dropped["invalid"] == 1


def test_without_cuda_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    with pytest.raises(RuntimeError, match="no CUDA device"):
        torch_cuda_stats()


def test_torchs_own_names_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"allocated_bytes.all.current": 10, "reserved_bytes.all.current": 20, "allocated_bytes.all.peak": 99}
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, memory_stats=lambda device: numbers if device else {})
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert torch_cuda_stats(1) == AllocatorStats("cuda1", 10, 20)
    assert torch_cuda_stats(0) == AllocatorStats("cuda0", 0, 0, inactive_split_bytes=0, retries=0, ooms=0)
    with pytest.raises(RuntimeError, match="2 CUDA devices, none with index 2"):
        torch_cuda_stats(2)


def test_what_is_not_known_is_not_sent(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    AllocatorHook(emitter, lambda: AllocatorStats("cuda0", 1, 2)).report()
    emitter.flush()
    names = {name for (name, tags) in levels(receiver.samples()) if "device" in dict(tags)}
    assert names == {"aie_engine_allocator_allocated_bytes", "aie_engine_allocator_reserved_bytes"}


def test_everything_that_is_known_is_sent(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    hook = AllocatorHook(emitter, lambda: AllocatorStats("cuda0", 1, 2, 3, 4, 5, 6, 7, 8))
    hook.report()
    hook.report()
    emitter.flush()
    samples = receiver.samples()
    values = {name: value for (name, tags), value in (levels(samples) | totals(samples)).items() if "device" in dict(tags)}
    assert values == {
        f"aie_engine_allocator_{name}": float(value)
        for value, name in enumerate(
            (
                "allocated_bytes",
                "reserved_bytes",
                "inactive_split_bytes",
                "private_pool_bytes",
                "pinned_bytes",
                "largest_free_bytes",
                "retries_total",
                "ooms_total",
            ),
            start=1,
        )
    }


def test_counters_follow_torchs_and_survive_its_reset(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    counts = iter([3, 5, 5, 0, 2, 9])
    hook = AllocatorHook(emitter, lambda: AllocatorStats("cuda0", 1, 2, ooms=next(counts)))
    seen = []
    for _ in range(6):
        hook.report()
        emitter.flush()
        seen.append(sum(value for (name, _), value in totals(receiver.samples()).items() if name.endswith("ooms_total")))
    assert sum(seen) == 3 + 2 + 2 + 7
    assert min(seen) == 0


def test_what_malloc_and_python_hold_is_told_with_it(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    hooks = [AllocatorHook(emitter, lambda d=device: AllocatorStats(d, 1, 2)) for device in ("cuda0", "cuda1")]  # type: ignore[misc]
    held = [bytearray(10**7) for _ in range(10)]
    for hook in hooks:
        hook.report()
    emitter.flush()
    gauges = {name: value for (name, tags), value in levels(receiver.samples()).items() if "device" not in dict(tags)}
    assert gauges["aie_engine_python_blocks"] == pytest.approx(sys.getallocatedblocks(), rel=0.2)
    assert gauges["aie_engine_malloc_held_bytes"] >= gauges["aie_engine_malloc_used_bytes"] > sum(map(len, held))


def test_it_is_told_where_the_allocator_cannot_be_read_and_not_at_every_report(receiver: UnixReceiver, socket_path: Path) -> None:
    def broken() -> AllocatorStats:
        raise RuntimeError

    emitter = manual_emitter(f"unix://{socket_path}")
    hook = AllocatorHook(emitter, broken)
    hook.report()
    blocks = emitter.gauge("aie_engine_python_blocks")
    blocks.set(-1)
    hook.report()
    emitter.flush()
    assert levels(receiver.samples())["aie_engine_python_blocks", (("engine", emitter.engine),)] == -1
