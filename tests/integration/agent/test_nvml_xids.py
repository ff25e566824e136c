"""XIDs from the kernel's real log and from events of the stand-in library, through the real binding."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from aie_agent import simulate
from aie_agent.sources.kernel_log import KERNEL_FACILITY, USER_FACILITY, KernelLog, Record
from aie_agent.sources.nvml.bus_id import bus_id
from aie_agent.sources.nvml.door import Absent, Device, Door
from aie_agent.sources.nvml.xid import from_tracepoint
from aie_agent.sources.nvml.xids import Xids
from aie_telemetry.xids import COMMON

KMSG = Path("/dev/kmsg")
LOST_BUS = "00fe:ee:01"  # a bus that no host has


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


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[simulate.Controller]:
    controller = simulate.install(3, "H100", state_file=tmp_path / "gpus")
    pynvml.nvmlInit()
    yield controller
    pynvml.nvmlShutdown()
    controller.close()


def opened() -> tuple[Door, dict[str, Device]]:
    door = Door(pynvml)
    devices = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        bus = bus_id(pynvml.nvmlDeviceGetPciInfo(handle).busId)
        assert bus is not None
        devices[bus] = Device(index, handle)
    return door, devices


def xids_of(xids: Xids, names: dict[str, str]) -> dict[tuple[str, str], float]:
    points = xids.collect(names).points
    return {
        (tags["gpu"], tags["xid"]): point.value
        for point in points
        if point.name == "aie_gpu_xid_errors_total" and point.value > 0 and (tags := dict(point.tags))
    }


def until(condition: Callable[[], Any], patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_lines_that_came_before_and_after_the_start(kmsg: Callable[[str], None]) -> None:
    name = {LOST_BUS: "7"}
    before = time.time()
    kmsg("NVRM: Xid (PCI:00fe:ee:01): 48, pid=1, name=old, An uncorrectable double bit error")
    with_facility_1 = Xids(kernel_log=KernelLog(), facility=USER_FACILITY)
    first = {point.tags: point for point in with_facility_1.collect(name).points if point.name.startswith("aie_gpu_xid_last")}
    seen = first[("gpu", "7"), ("xid", "48")]
    assert seen.value == pytest.approx(before, abs=60), "it says when, by the log's clock"
    # The log is the host's, and other tests write to it at the same time: only what is of this bus is this test's.
    assert not any(gpu == "7" for gpu, _ in xids_of(with_facility_1, name)), "what was before the agent is no rise"
    for number in (79, 79, 13):
        kmsg(f"NVRM: Xid (PCI:00fe:ee:01): {number}, pid=4242, name=python3, text of the driver")
    collection = with_facility_1.collect(name)
    counts = ((dict(p.tags), p.value) for p in collection.points if p.name == "aie_gpu_xid_errors_total" and p.value)
    assert {tags["xid"]: value for tags, value in counts if tags["gpu"] == "7"} == {"79": 2.0, "13": 1.0}
    events = [event for event in collection.events if event.details["gpu"] == "7"]
    assert [event.details["xid"] for event in events] == [79.0, 79.0, 13.0]
    assert events[0].details["pid"] == 4242.0
    assert "fallen off the bus" in events[0].summary
    assert "kernel_log" not in with_facility_1.problems
    with_facility_1.close()


def test_what_a_user_writes_is_not_believed(kmsg: Callable[[str], None]) -> None:
    as_in_production = Xids(kernel_log=KernelLog(), facility=KERNEL_FACILITY)
    as_in_production.collect({})
    kmsg("NVRM: Xid (PCI:00fe:ee:01): 79, pid=1, name=liar, GPU has fallen off the bus.")
    assert xids_of(as_in_production, {LOST_BUS: "7"}) == {}
    as_in_production.close()


def test_records_that_were_overwritten_are_counted_and_the_reader_goes_on(tmp_path: Path) -> None:
    """The kernel says EPIPE once records were lost. Filling the real log takes too long at 10 lines in 5 s, so a descriptor that
    the kernel refuses in the same way stands for it: the reader is given one whose first read fails so."""
    line = b"4,1,5,-;NVRM: Xid (PCI:0000:3b:00): 79\n"
    answers: Iterator[bytes | OSError] = iter([BrokenPipeError(32, "Broken pipe"), line, BlockingIOError(11, "empty")])
    log = KernelLog(tmp_path / "log")
    (tmp_path / "log").write_bytes(b"")
    real_read = os.read

    def read(descriptor: int, size: int) -> bytes:
        if descriptor != log._descriptor:
            return real_read(descriptor, size)
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "read", read)
        records = log.read()
    log.close()
    assert [record.sequence for record in records] == [1]
    assert log.overruns == 1


def test_the_drivers_tracepoint_stands_in_for_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    """And for nothing else: it tells what the log tells, and an error counts once."""
    report = from_tracepoint("0000:3b:00", 79, "GPU has fallen off the bus.", time.time())
    assert report is not None
    readable = tmp_path / "log"
    readable.write_bytes(b"")
    for path, count in ((tmp_path / "none", 1.0), (readable, 0.0)):
        xids = Xids(kernel_log=KernelLog(path))
        xids.collect({})
        xids.tell(report)
        assert len(xids.collect({}).events) == count
        assert xids.counts("0000:3b:00").get("79", 0.0) == count
        xids.close()


def test_a_log_that_may_not_be_read_is_a_state_and_not_an_error(tmp_path: Path) -> None:
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    points = {dict(p.tags)["source"]: p.value for p in xids.collect({}).points if p.name == "aie_gpu_xid_source_up"}
    assert points == {"kernel_log": 0.0, "nvml_events": 0.0}
    assert xids.problems["kernel_log"] == f"{tmp_path / 'none'}: No such file or directory"
    (tmp_path / "none").write_bytes(b"")
    xids.collect({})
    assert "kernel_log" not in xids.problems, "and it recovers"
    xids.close()


def test_events_of_every_gpu_arrive_once_each(gpus: simulate.Controller, tmp_path: Path) -> None:
    door, devices = opened()
    names = {bus: str(device.index) for bus, device in devices.items()}
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    xids.watch(door, devices, wait_ms=50)
    until(lambda: "nvml_events" not in xids.problems)
    assert xids_of(xids, names) == {}
    gpus.push_xid(0, 13)
    gpus.push_xid(2, 79)
    gpus.push_xid(2, 79)
    seen: dict[tuple[str, str], float] = {}

    def all_there() -> bool:
        seen.update(xids_of(xids, names))
        return seen == {("0", "13"): 1.0, ("2", "79"): 2.0}

    until(all_there)
    assert door.errors() == {}, "waiting in vain is no error"
    assert "nvmlEventSetWait_v2" not in door.seconds(), "and no time of the agent's"
    xids.close()


def test_a_lost_gpu_does_not_end_the_waiter(gpus: simulate.Controller, tmp_path: Path) -> None:
    door, devices = opened()
    names = {bus: str(device.index) for bus, device in devices.items()}
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    xids.watch(door, devices, wait_ms=50)
    until(lambda: "nvml_events" not in xids.problems)
    gpus.lose(1)
    gpus.fail("nvmlEventSetWait_v2", 15)
    until(lambda: "nvml_events" in xids.problems)
    gpus.fail("nvmlEventSetWait_v2", 0)
    until(lambda: "nvml_events" not in xids.problems)
    assert door.errors()["nvmlDeviceRegisterEvents", "gpu_is_lost"] > 0
    gpus.push_xid(0, 48)
    until(lambda: xids_of(xids, names) == {("0", "48"): 1.0})
    xids.close()


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"])
@pytest.mark.parametrize("code", [1, 2, 3, 4, 6, 9, 13, 15, 17, 999])
def test_every_error_is_a_state(gpus: simulate.Controller, tmp_path: Path, function: str, code: int) -> None:
    gpus.fail(function, code)
    door, devices = opened()
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    xids.watch(door, devices, wait_ms=20)
    until(lambda: xids.problems.get("nvml_events", "the first wait has not begun") != "the first wait has not begun")
    points = {dict(p.tags)["source"]: p.value for p in xids.collect({}).points if p.name == "aie_gpu_xid_source_up"}
    assert points["nvml_events"] == 0.0
    xids.close()


def test_stopping_ends_the_thread_and_gives_the_set_back(gpus: simulate.Controller, tmp_path: Path) -> None:
    door, devices = opened()
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    for _ in range(20):
        xids.watch(door, devices, wait_ms=5)
    xids.close()
    assert door.calls()["nvmlEventSetCreate"] == door.calls()["nvmlEventSetFree"]
    assert not isinstance(door.query("nvmlEventSetCreate", None), Absent)


def test_a_gpu_that_could_not_be_registered_for_a_moment_gives_events_later(
    gpus: simulate.Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aie_agent.sources.nvml.xid_events._REGISTER_AGAIN_S", 0.05)
    door, devices = opened()
    names = {bus: str(device.index) for bus, device in devices.items()}
    gpus.fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_UNKNOWN, gpu=1)
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    xids.watch(door, devices, wait_ms=20)
    until(lambda: "nvml_events" not in xids.problems)
    gpus.fail("nvmlDeviceRegisterEvents", 0, gpu=1)

    def arrived() -> bool:
        gpus.push_xid(1, 31)
        return ("1", "31") in xids_of(xids, names)

    until(arrived)
    xids.close()


def test_a_handle_that_is_gone_is_never_registered_again(
    gpus: simulate.Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aie_agent.sources.nvml.xid_events._REGISTER_AGAIN_S", 0.0)
    monkeypatch.setattr("aie_agent.sources.nvml.xid_events._RETRY_S", 0.01)
    door, devices = opened()
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    xids.watch(door, devices, wait_ms=20)
    until(lambda: "nvml_events" not in xids.problems)
    assert gpus.calls("nvmlDeviceRegisterEvents") == 3
    gpus.lose(1)
    lost = next(device for device in devices.values() if device.index == 1)
    until(lambda: lost.gone == "lost" and "nvml_events" not in xids.problems)
    # The first set, and once more of all three, which tells of the loss.
    assert gpus.calls("nvmlDeviceRegisterEvents") == 6
    waits = gpus.calls("nvmlEventSetWait_v2")
    until(lambda: gpus.calls("nvmlEventSetWait_v2") > waits + 20)
    assert gpus.calls("nvmlDeviceRegisterEvents") == 6
    gpus.lose(1, False)
    _, renewed = opened()
    assert xids.watch(door, renewed, wait_ms=20)
    until(lambda: "nvml_events" not in xids.problems)
    assert gpus.calls("nvmlDeviceRegisterEvents") == 9
    xids.close()


def test_an_event_that_came_before_the_waiter_ended_is_told(
    gpus: simulate.Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, and shown: an XID is often what makes a session end."""
    door, devices = opened()
    names = {bus: str(device.index) for bus, device in devices.items()}
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    xids.watch(door, devices, wait_ms=20)
    until(lambda: "nvml_events" not in xids.problems)
    gpus.push_xid(1, 48)
    until(lambda: xids._events is not None and xids._events._came)
    until(xids.unwatch)
    collection = xids.collect(names)
    assert [(event.details["gpu"], event.details["xid"]) for event in collection.events] == [("1", 48.0)]
    assert xids_of(xids, names) == {("1", "48"): 1.0}
    xids.close()


def test_events_that_nobody_has_taken_when_the_waiter_is_ended_are_told(gpus: simulate.Controller, tmp_path: Path) -> None:
    """They would go with their event set."""
    door, devices = opened()
    names = {bus: str(device.index) for bus, device in devices.items()}
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    xids.watch(door, devices, wait_ms=20)
    until(lambda: "nvml_events" not in xids.problems)
    gpus.delay("nvmlEventSetWait_v2", 0.1)
    waits = gpus.calls("nvmlEventSetWait_v2")
    until(lambda: gpus.calls("nvmlEventSetWait_v2") > waits)
    for xid in (48, 63, 94):
        gpus.push_xid(1, xid)
    until(xids.unwatch)
    gpus.delay("nvmlEventSetWait_v2", 0.0)
    assert xids_of(xids, names) == {("1", "48"): 1.0, ("1", "63"): 1.0, ("1", "94"): 1.0}
    xids.close()


def test_a_waiter_that_hangs_is_left_alone_and_nvml_with_it(gpus: simulate.Controller, tmp_path: Path) -> None:
    door, devices = opened()
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    xids.watch(door, devices, wait_ms=20)
    until(lambda: "nvml_events" not in xids.problems)
    gpus.delay("nvmlEventSetWait_v2", 600.0)
    waits = gpus.calls("nvmlEventSetWait_v2")
    until(lambda: gpus.calls("nvmlEventSetWait_v2") > waits)
    try:
        assert not xids.unwatch()
        assert xids.problems["nvml_events"] == "a call to NVML hangs"
        assert not xids.watch(door, devices, wait_ms=20), "no second waiter beside one that hangs"
        assert sum(thread.name == "nvml-events" for thread in threading.enumerate()) == 1
    finally:
        gpus.delay("nvmlEventSetWait_v2", 0.0)
    until(xids.unwatch)
    xids.close()


def test_the_first_line_about_a_gpu_gives_it_all_common_xids_at_zero(kmsg: Callable[[str], None]) -> None:
    """It fell off the bus before the agent started: NVML never showed it, and a rate needs the series to begin at 0."""
    xids = Xids(kernel_log=KernelLog(), facility=USER_FACILITY)
    xids.collect({})
    kmsg("NVRM: Xid (PCI:00fe:ee:02): 79, pid=1, name=x, GPU has fallen off the bus.")
    counted = [point for point in xids.collect({}).points if point.name == "aie_gpu_xid_errors_total"]
    points = {tags["xid"]: point.value for point in counted if (tags := dict(point.tags))["gpu"] == "00fe:ee:02"}
    xids.close()
    assert points["79"] == 1.0
    assert {int(number) for number, value in points.items() if value == 0} == set(COMMON) - {79}


def test_names_stay_while_nvml_is_closed(gpus: simulate.Controller, tmp_path: Path) -> None:
    door, devices = opened()
    xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
    xids.watch(door, devices, wait_ms=20)
    names = {bus: str(device.index) for bus, device in devices.items()}

    def labels(known: dict[str, str]) -> set[str]:
        return {tags["gpu"] for point in xids.collect(known).points if (tags := dict(point.tags)) and "gpu" in tags}

    assert labels(names) == {"0", "1", "2"}
    xids.unwatch()
    assert labels({}) == {"0", "1", "2"}
    swapped = {bus: str(2 - int(name)) for bus, name in names.items()}
    assert labels(swapped) == {"0", "1", "2"}, "and follow a new numbering"
    xids.close()


def test_a_log_that_is_longer_than_one_read_is_old_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stood in the log before the start is no rise, however many reads it takes."""
    monkeypatch.setattr("aie_agent.sources.kernel_log.RECORDS_A_READ", 10)
    path = tmp_path / "log"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    xids = Xids(kernel_log=OneAtATime(path))
    line = b"4,1,5,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=\x1b[31mred, GPU has fallen off the bus.\n"
    os.write(writer, line * 25)
    for _ in range(3):
        assert xids_of(xids, {}) == {}
    os.write(writer, line)
    collection = xids.collect({})
    assert [event.summary for event in collection.events] == ["GPU 0000:3b:00: XID 79: the GPU has fallen off the bus"]
    assert "\x1b" not in str(collection.events[0].details["text"])
    xids.close()
    os.close(writer)


class OneAtATime(KernelLog):
    """A log in a pipe: as of /dev/kmsg, each read gives one record; this one's records are of equal length."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.real_read = os.read

    def read(self) -> list[Record]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "read", lambda descriptor, size: self.real_read(descriptor, 90))
            return super().read()


def test_the_pid_namespace_of_a_container_is_seen() -> None:
    code = "from aie_agent.sources.nvml.process_join import in_other_pid_namespace as f; print(f())"
    own = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unshared = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    if (
        shutil.which("unshare") is None
        or (done := subprocess.run(unshared, capture_output=True, text=True, check=False)).returncode
    ):
        pytest.skip("no pid namespace can be made here")
    assert done.stdout.strip() == "True"
    assert own.stdout.strip() in ("True", "False"), "these tests may themselves run in one"
