"""Block devices, OOM kills and XIDs, as the probes see them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aie_ebpf import tracepoints
from aie_ebpf.door import Bcc, ProgramType
from aie_ebpf.host import HostProbes
from aie_ebpf.messages import BlockIo, OomKill
from aie_ebpf.readers.kernel_events import oom_kill, xid
from tests.integration.ebpf.conftest import Observed

_XID_FORMAT = Path(__file__).parents[2] / "fixtures" / "tracepoints" / "nvidia_dev_xid.format"
_LIMIT_BYTES = 48 << 20
_READ_BYTES = 1 << 16  # of the program that reads


def _completed(rows: tuple[BlockIo, ...], device: str, op: str) -> tuple[int, int]:
    of_device = [row for row in rows if (row.device, row.op) == (device, op)]
    return sum(sum(row.seconds.slots) for row in of_device), sum(row.bytes for row in of_device)


def _device_of(path: Path) -> str:
    number = path.stat().st_dev
    return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name


def _read_sectors(device: str) -> tuple[int, int]:
    """Reads that the device completed, and their bytes, by the kernel's own count."""
    fields = next(line.split() for line in Path("/proc/diskstats").read_text().splitlines() if line.split()[2] == device)
    return int(fields[3]), int(fields[5]) * 512


def test_reads_of_a_block_device_are_those_that_the_kernel_counts(
    host: HostProbes, observe: Callable[..., Observed], tmp_path: Path
) -> None:
    """Others may read meanwhile: then both count them, but not at the same moment. And the kernel runs no probe of a completion
    whose interrupt comes while another probe runs on that CPU."""
    file = tmp_path / "weights"
    file.write_bytes(os.urandom(8 << 20))
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    device = _device_of(file)
    earliest = _read_sectors(device)
    host.read_block_io()
    count_before, bytes_before = _read_sectors(device)
    assert observe("reads", str(file)).says["reads"] == 128
    count, size = _read_sectors(device)
    reads, read_bytes = _completed(host.read_block_io(), device, "read")
    latest = _read_sectors(device)
    assert count - count_before >= 128
    assert size - bytes_before >= 8 << 20
    assert 0.98 * (count - count_before) - 4 <= reads <= 1.02 * (latest[0] - earliest[0]) + 4
    assert 0.98 * (size - bytes_before) - 4 * _READ_BYTES <= read_bytes <= 1.02 * (latest[1] - earliest[1]) + 4 * _READ_BYTES


def test_flushes_are_those_that_the_kernel_counts(host: HostProbes, tmp_path: Path) -> None:
    """What fsync waits for, beside what is written. They are among the others, as what is given back to the device is."""
    file = tmp_path / "checkpoint"
    device = _device_of(tmp_path)
    cache = Path(f"/sys/block/{device}/queue/write_cache")
    if not cache.exists() or cache.read_text().strip() != "write back":
        pytest.skip(f"{device} keeps nothing that is to be flushed")
    earliest = _flushes_and_discards(device)
    host.read_block_io()
    before = _flushes_and_discards(device)
    with file.open("wb") as written:
        for _ in range(20):
            written.write(b"1" * 4096)
            written.flush()
            os.fsync(written.fileno())
    after = _flushes_and_discards(device)
    others, _ = _completed(host.read_block_io(), device, "other")
    latest = _flushes_and_discards(device)
    assert after[0] - before[0] >= 5
    assert 0.9 * (sum(after) - sum(before)) - 4 <= others <= 1.1 * (sum(latest) - sum(earliest)) + 4


def _flushes_and_discards(device: str) -> tuple[int, int]:
    """That the device completed, by the kernel's own count."""
    fields = next(line.split() for line in Path("/proc/diskstats").read_text().splitlines() if line.split()[2] == device)
    return int(fields[18]), int(fields[14])


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, in whichever version of the hierarchy there is."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v2, "memory.max")
    group = root / f"aie-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(_LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    yield group
    for _ in range(50):  # the kernel lets the group go when the last process has
        try:
            group.rmdir()
            break
        except OSError:
            time.sleep(0.1)


@pytest.mark.xdist_group("e2e")
def test_who_was_killed_for_memory(host: HostProbes, small_group: Path) -> None:
    host.read_oom_kills()
    code = f"open({str(small_group / 'cgroup.procs')!r}, 'w').write('0'); x = bytearray(256 << 20)"
    with subprocess.Popen([sys.executable, "-c", code]) as victim:
        assert victim.wait(timeout=60) == -signal.SIGKILL
    kills = [kill for kill in host.read_oom_kills() if kill.tgid == victim.pid]
    assert len(kills) == 1
    assert kills[0].command.startswith("python")
    assert kills[0].anon_bytes is not None
    assert 0.5 * _LIMIT_BYTES < kills[0].anon_bytes < 2 * _LIMIT_BYTES  # what it had before it joined the group is not in the limit
    assert victim.pid not in {kill.tgid for kill in host.read_oom_kills()}


def test_a_kernel_that_tells_only_the_pid(tmp_path: Path) -> None:
    """Before 6.8: the name comes from /proc, sizes are not known. The record is as the program writes it."""
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "comm").write_text("vllm\x1b[2J\n")
    record = (0).to_bytes(24, "little") + (77).to_bytes(4, "little") + bytes(4 + 16)
    assert oom_kill(record, tmp_path) == OomKill(tgid=77, command="vllm?[2J")


def test_the_program_for_xids_is_accepted_by_the_kernel(bcc: Bcc) -> None:
    """Only a host with NVIDIA's driver has the tracepoint: here the program is verified."""
    defines = tracepoints.defines("XID", _XID_FORMAT.read_text())
    module = bcc.compile("common.h", "watched.h", "watched_here.h", "xid", defines=defines)
    assert module.program("nvidia_dev_xid", ProgramType.TRACEPOINT) > 0
    module.close()


def test_an_xid_is_told_as_the_driver_says_it() -> None:
    record = (79).to_bytes(4, "little") + b"0000:3b:00\0".ljust(20, b"\0") + b"GPU has fallen off the bus.\x07\0".ljust(104, b"\0")
    told = xid(record)
    assert (told.device, told.code, told.text) == ("0000:3b:00", 79, "GPU has fallen off the bus.?")
