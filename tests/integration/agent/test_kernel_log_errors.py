"""The kernel's log after a read that failed: nothing twice, nothing lost. On the real /dev/kmsg where it can be written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aie_agent.sources.kernel_log import USER_FACILITY, KernelLog
from aie_agent.sources.nvml.xids import Xids

KMSG = Path("/dev/kmsg")
NAMES = {"00fe:ed:01": "7"}


@pytest.fixture
def kmsg() -> Callable[[str], None]:
    """Writes a line to the kernel's log. The kernel takes 10 lines in 5 s of each that opens it, so each line opens it anew."""

    def write(line: str) -> None:
        try:
            with KMSG.open("wb", buffering=0) as file:
                file.write(f"<4>{line}\n".encode())
        except OSError as error:
            pytest.skip(f"{KMSG} cannot be written: {error.strerror}")

    return write


def counted(xids: Xids) -> dict[str, float]:
    """Of the GPU of this file's tests: the log is the host's, and other tests write to it at the same time."""
    return {
        tags["xid"]: point.value
        for point in xids.collect(NAMES).points
        if point.name == "aie_gpu_xid_errors_total" and point.value > 0 and (tags := dict(point.tags))["gpu"] == "7"
    }


def test_what_was_counted_before_a_read_failed_is_not_counted_again(kmsg: Callable[[str], None]) -> None:
    """The log is opened anew then, and the kernel gives it from its beginning."""
    kernel_log = KernelLog()
    xids = Xids(kernel_log=kernel_log, facility=USER_FACILITY)
    xids.collect(NAMES)
    kmsg("NVRM: Xid (PCI:00fe:ed:01): 79, pid=1, name=one, text of the driver")
    assert counted(xids) == {"79": 1.0}
    unreadable = os.open(os.devnull, os.O_WRONLY)
    assert kernel_log._descriptor is not None
    os.dup2(unreadable, kernel_log._descriptor)
    os.close(unreadable)
    assert counted(xids) == {"79": 1.0}
    assert "kernel_log" in xids.problems
    kmsg("NVRM: Xid (PCI:00fe:ed:01): 79, pid=1, name=two, while nobody could read")
    assert counted(xids) == {"79": 2.0}
    assert "kernel_log" not in xids.problems
    assert counted(xids) == {"79": 2.0}
    xids.close()


def test_what_a_failed_read_had_read_comes_with_the_next(tmp_path: Path) -> None:
    """A descriptor that fails in the midst of the log, and then is opened anew: what the kernel would answer stands in a list."""
    one, two, three = (f"4,{number},5,-;{text}\n".encode() for number, text in enumerate(("one", "two", "three")))
    over, broken = BlockingIOError(11, "empty"), OSError(5, "Input/output error")
    answers: Iterator[bytes | OSError] = iter((one, over, two, broken, one, two, three, over))
    log = KernelLog(tmp_path / "log")
    (tmp_path / "log").write_bytes(b"")
    real_read = os.read

    def read(descriptor: int, size: int) -> bytes:
        answer = next(answers) if descriptor == log._descriptor else real_read(descriptor, size)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "read", read)
        assert [record.text for record in log.read()] == ["one"]
        with pytest.raises(OSError, match="Input/output error"):
            log.read()
        assert [record.text for record in log.read()] == ["two", "three"]
    log.close()
