"""XIDs, the errors that NVIDIA's driver tells of by number: counted per GPU, each once, whoever told of it.

Two sources tell: events of NVML and lines of the kernel's log. Neither has them all (events need a GPU that still lives, the log
may be closed to us), and most come from both. What is counted is what happened since the agent started: a line that was in the log
before sets when the XID was last seen, and no count, so that a restart of the agent is no rise.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from aie_agent.samples import Point
from aie_agent.sources.kernel_log import Record
from aie_agent.sources.nvml.bus_id import bus_id
from aie_telemetry.catalogue import Kind
from aie_telemetry.xids import COMMON

MATCH_WITHIN_S: Final = 10.0
"""A report of one source and one of the other within this time are the same error. The log is read once a second, and NVML may keep
an event until its waiter is scheduled; the same XID of the same GPU from one source twice is two errors, however near."""

MAX_GPUS: Final = 64
MAX_NUMBERS_OF_A_GPU: Final = 96
_MAX_UNMATCHED: Final = 256

_LINE: Final = re.compile(
    r"NVRM: Xid \((?P<bus>(?:PCI:)?[0-9a-fA-F:.]+)[^)]*\): (?P<xid>\d{1,5})(?!\d)(?:,\s*(?P<text>.*))?", re.DOTALL
)
_PID: Final = re.compile(r"\bpid='?(\d{1,10})\b")


class XidReport(NamedTuple):
    """One source told of one error: on which GPU (`bus`, as `bus_id` writes it), when (seconds since the epoch), by which source,
    the process that the driver blames and its words, where it has any."""

    bus: str
    xid: int
    time_s: float
    source: str
    pid: int | None = None
    text: str = ""


def from_kernel_log(record: Record, time_s: float) -> XidReport | None:
    """The XID that a record of the log tells of, if it does. The caller has seen to it that the kernel wrote it."""
    match = _LINE.match(record.text)
    bus = bus_id(match["bus"].rstrip(":.")) if match else None
    if match is None or bus is None:
        return None
    text = match["text"] or ""
    pid = _PID.search(text)
    blamed = int(pid[1]) if pid else 0
    return XidReport(bus, int(match["xid"]), time_s, "kernel_log", blamed or None, text)


def from_tracepoint(device: str, xid: int, text: str, time_s: float) -> XidReport | None:
    """What the driver's tracepoint told (nvidia:nvidia_dev_xid): the same as its line in the log. None for what is no GPU."""
    bus = bus_id(device)
    pid = _PID.search(text)
    return None if bus is None else XidReport(bus, xid, time_s, "tracepoint", int(pid[1]) or None if pid else None, text)


class _Tally:
    """One XID of one GPU: how often, when last, and what one source told of and the other has not yet."""

    __slots__ = ("count", "last_s", "unmatched")

    def __init__(self) -> None:
        self.count = 0
        self.last_s: float | None = None
        self.unmatched: dict[str, deque[float]] = {}

    def points(self, gpu: str, xid: int) -> Iterator[Point]:
        """Its series."""
        tags = (("gpu", gpu), ("xid", str(xid)))
        yield Point("aie_gpu_xid_errors_total", Kind.COUNTER, tags, float(self.count))
        if self.last_s is not None:
            yield Point("aie_gpu_xid_last_timestamp_seconds", Kind.GAUGE, tags, self.last_s)

    def add(self, report: XidReport) -> bool:
        """Whether it is a new error, and not one that the other source told of already."""
        self.last_s = max(report.time_s, self.last_s or 0.0)
        for source, times in self.unmatched.items():
            while source != report.source and times:
                if abs(report.time_s - times.popleft()) <= MATCH_WITHIN_S:
                    return False
        self.unmatched.setdefault(report.source, deque(maxlen=_MAX_UNMATCHED)).append(report.time_s)
        self.count += 1
        return True


class XidCounter:
    """Counts by bus id, which stays with the board; what a GPU is called is looked up when it is shown.

    For n reports of one source and m of the other within `MATCH_WITHIN_S` it counts max(n, m). Bounded: beyond `MAX_GPUS` boards
    and `MAX_NUMBERS_OF_A_GPU` numbers of each, reports are only counted in `refused`.
    """

    def __init__(self) -> None:
        self._gpus: dict[str, dict[int, _Tally]] = {}
        self._told: tuple[dict[str, str], list[Point]] | None = None
        """What was told last, by which names; None after news: there are a dozen series of each GPU, and hardly ever any news."""
        self.refused = 0

    def expect(self, buses: Iterable[str]) -> None:
        """These GPUs are there: their common XIDs stand at 0."""
        for bus in buses:
            self._of(bus)

    def add(self, report: XidReport) -> bool:
        """Counts a report. Returns whether it is a new error."""
        tally = self._tally(report.bus, report.xid)
        self._told = None
        return tally is not None and tally.add(report)

    def note_old(self, report: XidReport) -> None:
        """Something from before the agent started: only when it was last seen is kept."""
        tally = self._tally(report.bus, report.xid)
        self._told = None
        if tally is not None:
            tally.last_s = max(report.time_s, tally.last_s or 0.0)

    def counts(self, bus: str) -> dict[str, float]:
        """The XIDs of a GPU by number, only those above 0, for `api.Gpu.xids`."""
        return {str(xid): float(tally.count) for xid, tally in sorted(self._gpus.get(bus, {}).items()) if tally.count}

    def points(self, names: Mapping[str, str]) -> list[Point]:
        """`aie_gpu_xid_errors_total` and `aie_gpu_xid_last_timestamp_seconds`. `names` is what each GPU is called by its bus id.

        A GPU that NVML never showed (it fell off the bus before the agent started) goes by its bus id: its errors are those that
        matter most.
        """
        if self._told is None or self._told[0] != names:
            points = [
                point
                for bus, tallies in self._gpus.items()
                for xid, tally in tallies.items()
                for point in tally.points(names.get(bus, bus), xid)
            ]
            self._told = (dict(names), points)
        return self._told[1].copy()

    def _of(self, bus: str) -> dict[int, _Tally] | None:
        """The tallies of a board. A new one, also one that NVML never showed, has the common XIDs at 0 from now on."""
        gpu = self._gpus.get(bus)
        if gpu is None and len(self._gpus) < MAX_GPUS:
            gpu = self._gpus[bus] = {xid: _Tally() for xid in COMMON}
            self._told = None
        return gpu

    def _tally(self, bus: str, xid: int) -> _Tally | None:
        gpu = self._of(bus)
        tally = None if gpu is None else gpu.get(xid)
        if gpu is not None and tally is None and len(gpu) < MAX_NUMBERS_OF_A_GPU:
            tally = gpu[xid] = _Tally()
        self.refused += tally is None
        return tally
