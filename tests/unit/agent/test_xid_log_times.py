"""When an error of the kernel's log happened: now, or as its record says where nobody looked for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from aie_agent.sources.kernel_log import KernelLog, Record
from aie_agent.sources.nvml.xid import XidReport
from aie_agent.sources.nvml.xids import Xids


def counted(xids: Xids) -> dict[str, float]:
    return xids.counts("0000:3b:00")


class Told(KernelLog):
    """A log in which a test writes records with the time since boot that they bear."""

    def __init__(self) -> None:
        super().__init__(Path("none"))
        self.records: list[Record] = []

    def read(self) -> list[Record]:
        records, self.records = self.records, []
        return records

    def write(self, time_s: float, xid: int = 48) -> None:
        self.records.append(Record(0, 4, 1, int(time_s * 1e6), f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid=1, name=x"))


@pytest.mark.parametrize("late_s", [0.0, 300.0])
def test_after_a_gap_a_line_has_its_own_time_and_is_the_error_that_nvml_told_of(late_s: float) -> None:
    """The agent was stopped for a minute while NVML told of an error. The log's clock may be off by minutes after months."""
    boot_s, since = 1_000_000.0, [1000.0]
    log = Told()
    xids = Xids(lambda: boot_s + since[0], log, since_boot=lambda: since[0])
    xids.collect({})
    for _ in range(3):
        since[0] += 1.0
        log.write(since[0] - 0.5 - late_s, xid=31)
        assert xids.collect({}).events[0].time_s == boot_s + since[0], "what was not there a second ago happened now"
    since[0] += 60.0
    log.write(since[0] - 50.0 - late_s)
    xids._left.append(XidReport("0000:3b:00", 48, boot_s + since[0] - 50.0, "nvml_events"))
    (event,) = xids.collect({}).events
    assert event.time_s == pytest.approx(boot_s + since[0] - 50.0, abs=1.0)
    assert counted(xids)["48"] == 1.0
    xids.close()


def test_a_line_is_not_older_than_the_look_before() -> None:
    since = [1000.0]
    log = Told()
    xids = Xids(lambda: since[0], log, since_boot=lambda: since[0])
    xids.collect({})
    since[0] += 30.0
    log.write(1.0)
    assert xids.collect({}).events[0].time_s == 1000.0
    since[0] += 30.0
    log.write(5000.0)
    assert xids.collect({}).events[0].time_s == 1060.0, "nor from the future"
    xids.close()
