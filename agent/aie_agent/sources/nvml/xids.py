"""XIDs of a host: both sources, one count, and the events that people see."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from aie_agent.samples import Point
from aie_agent.sources.kernel_log import KERNEL_FACILITY, KernelLog, Record
from aie_agent.sources.nvml import xid_events
from aie_agent.sources.nvml.door import Device, Door
from aie_agent.sources.nvml.xid import XidCounter, XidReport, from_kernel_log
from aie_agent.sources.nvml.xid_events import XidEvents
from aie_telemetry.api import Event
from aie_telemetry.catalogue import Kind
from aie_telemetry.xids import BY_NUMBER, describe

log = logging.getLogger(__name__)

_KERNEL_LOG: Final = "kernel_log"
_TEXT_CHARS: Final = 200
# What the log says was there a moment ago, if it was read that long ago; else by the record's own time.
_FRESH_S: Final = 2.0
_MAX_LEFT: Final = 4096
# An application that faults in a loop brings thousands: they are counted, and some of them shown.
_MAX_EVENTS_A_COLLECTION: Final = 10


class XidCollection(NamedTuple):
    """What one look brought: samples, and an event for each new error."""

    points: list[Point]
    events: list[Event]


class Xids:
    """Everything about XIDs. `facility` is whose records of the log are believed, `engine_of` to which engine a pid belongs,
    `since_boot` the clock (in seconds) that the log's records are stamped by."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        kernel_log: KernelLog | None = None,
        facility: int = KERNEL_FACILITY,
        engine_of: Callable[[int], str | None] = lambda _: None,
        since_boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_MONOTONIC),
    ) -> None:
        self._clock = clock
        self._since_boot = since_boot
        self._log = kernel_log or KernelLog()
        self._facility = facility
        self._engine_of = engine_of
        self._counter = XidCounter()
        self._names: dict[str, str] = {}
        self._events: XidEvents | None = None
        self._left: deque[XidReport] = deque(maxlen=_MAX_LEFT)
        """What a waiter that was ended had not handed over."""
        self._log_read_before = False
        self._log_read_at_s: float | None = None
        self._log_late_s = 0.0
        self._log_problem: str | None = None
        self._overruns = 0

    @property
    def problems(self) -> dict[str, str]:
        """Why a source does not work, by its name. Empty while both do."""
        found = {}
        if self._log_problem is not None:
            found[_KERNEL_LOG] = self._log_problem
        events = self._events.problem if self._events is not None else "NVML is not open"
        if events is not None:
            found[xid_events.SOURCE] = events
        return found

    def expect(self, buses: Iterable[str]) -> None:
        """The host has these GPUs, whether NVML reaches them or not: their common XIDs stand at 0."""
        self._counter.expect(buses)

    def watch(self, door: Door, devices: Mapping[str, Device], wait_ms: int = 500) -> bool:
        """A session of NVML is open, with these GPUs by bus id: waits for their events. False while the waiter of before does not
        end: there is none but that one then."""
        self._counter.expect(devices)
        if not self.unwatch():
            return False
        self._events = XidEvents(door, devices, self._clock, wait_ms)
        return True

    def tell(self, report: XidReport) -> None:
        """A third source, the driver's tracepoint, told of an error. It tells what the log tells, and stands in for it where that
        cannot be read; else it is passed over, so that nothing counts twice."""
        if self._log_problem is not None:
            self._left.append(report)

    def unwatch(self) -> bool:
        """The session is about to end. What came is told at the next `collect`. Blocks until the waiter has ended, at most some
        seconds. False while it does not end: it is inside NVML, and the session must be left alone."""
        if self._events is not None:
            is_over = self._events.stop()
            self._left += self._events.take()
            if not is_over:
                return False
            self._events = None
        return True

    def counts(self, bus: str) -> dict[str, float]:
        """The XIDs of a GPU, by number, only those above 0."""
        return self._counter.counts(bus)

    def collect(self, names: Mapping[str, str]) -> XidCollection:
        """Takes what came since the last time. `names` is what each GPU is called by its bus id; what is not in it keeps the name
        that it had, so that series do not change their labels while NVML is closed.

        Reads a file that does not block, some microseconds a record.
        """
        taken = set(names.values())
        self._names = {bus: name for bus, name in self._names.items() if name not in taken} | dict(names)
        new: list[XidReport] = []
        self._read_log(new)
        self._take_events(new)
        problems = self.problems
        points = self._counter.points(self._names)
        for source in (xid_events.SOURCE, _KERNEL_LOG):
            points.append(Point("aie_gpu_xid_source_up", Kind.GAUGE, (("source", source),), float(source not in problems)))
        return XidCollection(points, [self._event(report) for report in new[-_MAX_EVENTS_A_COLLECTION:]])

    def close(self) -> None:
        """Ends the waiter and closes the log."""
        self.unwatch()
        self._log.close()

    def _read_log(self, new: list[XidReport]) -> None:
        now_s, since_boot_s = self._clock(), self._since_boot()
        try:
            records = self._log.read()
        except OSError as error:
            self._log_problem = f"{error.filename or '/dev/kmsg'}: {error.strerror}"
            return
        if self._log.overruns > self._overruns:
            log.warning("the kernel's log was overwritten faster than it was read: XIDs may be missing")
            self._overruns = self._log.overruns
        gap_s = None if self._log_read_at_s is None else since_boot_s - self._log_read_at_s
        for record in records:
            if record.facility != self._facility:
                continue
            report = from_kernel_log(record, now_s - self._age_s(record, since_boot_s, gap_s))
            if report is None:
                continue
            if not self._log_read_before:
                self._counter.note_old(report)
            elif self._counter.add(report):
                new.append(report)
        self._log_problem = None
        self._log_read_before = self._log_read_before or not self._log.is_behind
        if not self._log.is_behind:
            self._log_read_at_s = since_boot_s
            if records and gap_s is not None and gap_s <= _FRESH_S:
                self._log_late_s = since_boot_s - records[-1].time_us / 1e6

    def _age_s(self, record: Record, since_boot_s: float, gap_s: float | None) -> float:
        """How long ago a record was written. What was not there a moment ago was written now: the log's own clock drifts, by
        `_log_late_s` as it was last seen. It serves for what is older, which is not older than the last look (`gap_s`)."""
        if gap_s is not None and gap_s <= _FRESH_S:
            return 0.0
        age_s = since_boot_s - record.time_us / 1e6 - self._log_late_s
        return max(age_s if gap_s is None else min(age_s, gap_s), 0.0)

    def _take_events(self, new: list[XidReport]) -> None:
        came = [self._left.popleft() for _ in range(len(self._left))]
        came += self._events.take() if self._events is not None else []
        new += [report for report in came if self._counter.add(report)]

    def _event(self, report: XidReport) -> Event:
        gpu = self._names.get(report.bus, report.bus)
        details: dict[str, float | str] = {"gpu": gpu, "xid": float(report.xid), "source": report.source}
        known = BY_NUMBER.get(report.xid)
        if known is not None:
            details |= {"blame": known.blame, "action": known.action}
        if report.pid is not None:
            details["pid"] = float(report.pid)
        if report.text:
            # The name of the process in it is whatever that calls itself.
            details["text"] = "".join(
                char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in report.text[:_TEXT_CHARS]
            )
        engine = self._engine_of(report.pid) if report.pid is not None else None
        summary = f"GPU {gpu}: {describe(report.xid)}"
        return Event(time_s=report.time_s, kind="gpu_xid", engine=engine or "", summary=summary, details=details)
