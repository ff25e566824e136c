"""One GPU: asks it everything in the table, and keeps what a cycle brought. Runs on a thread of `lanes.py`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from aie_agent.samples import Point, Tags
from aie_agent.sources.nvml import gpm
from aie_agent.sources.nvml.bus_id import bus_id
from aie_agent.sources.nvml.devices import Identity, identify
from aie_agent.sources.nvml.door import IMPLAUSIBLE, NOT_SUPPORTED, Absent, Device, Door, down_reason
from aie_agent.sources.nvml.fields import RowFields
from aie_agent.sources.nvml.memory import Memory, is_integrated, read_memory
from aie_agent.sources.nvml.meter import FIRST, Meter
from aie_agent.sources.nvml.mig import MigReader
from aie_agent.sources.nvml.nvlinks import link_count
from aie_agent.sources.nvml.plain_calls import FILLED
from aie_agent.sources.nvml.plan import Number, Part, Plan, Query, plan
from aie_agent.sources.nvml.processes import Context, ProcessReader
from aie_agent.sources.nvml.rows import ROWS, Pace
from aie_agent.sources.nvml.slots import Slot, capped, judged, read_slot
from aie_telemetry.catalogue import CATALOGUE, Kind

_HANDLE: Final = "nvmlDeviceGetHandleByIndex"
# So often in a row what failed among the slow rows is asked again at the next cycle.
_RETRIES: Final = 2
# Of the calls on a thread of their own, which come every two seconds, or where GPUs are read more rarely at each look.
_APART_VALID_S: Final = 6.0
_APART_VALID_PERIODS: Final = 2.0
_LINKS_NOT_ASKED: Final = Absent("not_asked")
# A way that turns out not to be supported has a next best: so many ways are tried at the first cycle.
_WAYS: Final = 3


class Reading(NamedTuple):
    """What a cycle brought, when it was there (monotonic), and how long it took. `reason` is why the GPU is not up: then there
    are no points. `contexts` are the processes on it, None where they are not told."""

    points: list[Point]
    reason: str | None
    at_s: float
    took_s: float
    contexts: list[Context] | None = None
    used_bytes: float | None = None


class Options(NamedTuple):
    """What a reader needs from outside: the host's memory, for GPUs that have none of their own; `exists` of `ProcessReader`; and
    whether GPM is wanted. `period_s` is how often a GPU is read."""

    host_memory: Callable[[], Memory | None]
    exists: Callable[[int], bool] | None = None
    gpm: bool = True
    period_s: float = 1.0


class GpuReader:
    """A GPU of the session that is open, by NVML's index. `read` is called by one thread at a time."""

    def __init__(self, door: Door, index: int, options: Options) -> None:
        self.index = index
        self.device: Device | None = None
        self.identity: Identity | None = None
        self.reading: Reading | None = None
        self._apart: tuple[float, list[Point]] = (0.0, [])
        self._is_to_revive = False
        self.mig: MigReader | None = None
        self._door = door
        self._options = options
        self._processes: ProcessReader | None = None
        self._slot: Slot | None = None
        self._held: tuple[Memory, bool] | None = None
        self._held_points: list[Point] = []  # of `_held`: engines take their memory at the start, and then it stays the same
        self._total_bytes: float | None = None
        self._used_bytes: float | None = None
        self._gpu = str(index)
        self._plan: Plan = {}
        self._planned_for: tuple[int, frozenset[int]] | None = None
        self._links: int | Absent = _LINKS_NOT_ASKED
        self._gpm: gpm.GpmReader | None = None
        self._has_gpm: bool | None = None
        self._gpm_outputs: list[tuple[Number, Tags]] = []
        self._of_gpm: set[Number] = set()
        self._fields: dict[Pace, RowFields] = {}
        self._meters: dict[Number, Meter] = {}
        self._slow: list[Point] = []
        self._retries = 0

    def read(self, slow: bool) -> None:
        """Reads everything, the slow rows too where `slow`; the outcome is `reading`."""
        began_s = time.monotonic()
        points, reason = self._read(slow)
        contexts = None if reason else self._contexts()
        now_s = time.monotonic()
        if reason:
            points = []
        elif self._slot is not None:
            self._slot = judged(self._slot, points)
            points = capped(points, self._slot)
        self.reading = Reading(points, reason, now_s, now_s - began_s, contexts, self._used_bytes)

    def read_apart(self) -> None:
        """Makes the calls that take their time; the outcome is `apart`."""
        if self.device is not None and (part := self._plan.get(Pace.APART)) and part.queries:
            points, _ = self._part(part, Pace.APART)
            self._apart = (time.monotonic(), points)

    def apart(self) -> list[Point]:
        """What the calls brought that are made on a thread of their own, unless that was too long ago."""
        at_s, points = self._apart
        return points if time.monotonic() - at_s < max(_APART_VALID_S, _APART_VALID_PERIODS * self._options.period_s) else []

    def has_apart(self) -> bool:
        """Whether there are such calls."""
        return bool(self.device and not self.device.gone and (part := self._plan.get(Pace.APART)) and part.queries)

    def revive(self) -> None:
        """The next `read` asks for a new handle: the GPU may be back. Calls nothing."""
        self._is_to_revive = True

    def close(self) -> None:
        """Gives back what GPM holds, while the session is still open."""
        for part in (self._gpm, self.mig):
            if part is not None:
                part.close()
        self._gpm = self.mig = None
        self._plan, self._planned_for = {}, None

    def _read(self, slow: bool) -> tuple[list[Point], str | None]:
        if self._is_to_revive:
            self.close()
            self.device, self._is_to_revive = None, False
        refused = self._connect()
        if refused is not None:
            return [], down_reason(refused)
        assert self.device is not None
        is_first = not self._plan
        self._replan()
        points = self._rows(slow or is_first)
        for _ in range(_WAYS if is_first else 0):
            if self._replan():
                points = self._rows(slow=True)
        if self.device.gone is None and not points:
            return [], "error"
        return points + self._beside_rows(), self.device.gone

    def _connect(self) -> Absent | None:
        """Makes sure that there is a handle and that we know whose; why not, if it cannot be had."""
        if self.device is None:
            handle = self._door.query(_HANDLE, None, self.index)
            if isinstance(handle, Absent):
                return handle
            self.device, self.identity = Device(self.index, handle), None
        if self.device.gone is not None:
            return Absent(self.device.gone)
        if self.identity is None:
            found = self._identify(self.device)
            if isinstance(found, Absent):
                return found
            self._prepare(self.device)
        return None

    def _identify(self, device: Device) -> Identity | Absent:
        found = identify(self._door, device)
        if not isinstance(found, Absent):
            self.identity = found
            bus = bus_id(found.pci_bus_id)
            self._slot = None if bus is None else read_slot(bus)
        return found

    def _prepare(self, device: Device) -> None:
        self._links = link_count(self._door, device)
        self._gpm = None
        self._has_gpm = None if self._options.gpm else False
        self.mig = MigReader(self._door, device, self._options.exists, self._options.period_s)
        self._look_for_gpm(device)
        self._gpm_outputs = [((row.metric, row.labels), _tags(row.metric, self._gpu, row.labels)) for row in gpm.GPU_ROWS]
        self._processes = ProcessReader(self._door, device, self._options.exists)

    def _look_for_gpm(self, device: Device) -> None:
        """Until the GPU has said whether it has GPM."""
        if self._has_gpm is None:
            self._has_gpm = gpm.support(self._door, device)
            if self._has_gpm and self.mig is not None:
                self._gpm = gpm.GpmReader(self._door, device, gpm.GPU_ROWS, period_s=self._options.period_s)
                self.mig.has_gpm = True
                self._planned_for = None

    def _contexts(self) -> list[Context] | None:
        if self._processes is None:
            return None
        wall_s = time.time()
        found = self._processes.read(self._total_bytes, wall_s, self._used_bytes)
        if self.mig is not None and self.mig.instances and (isinstance(found, Absent) or not found):
            of_instances = self.mig.contexts(self._total_bytes, wall_s)
            if of_instances is not None:
                return of_instances
        return None if isinstance(found, Absent) else found

    def _replan(self) -> bool:
        """Plans anew where the GPU turned out to lack something; returns whether it did."""
        assert self.device is not None
        now = len(self.device.unsupported), frozenset() if self._gpm is None else self._gpm.refused
        if self._plan and self._planned_for == now:
            return False
        self._planned_for = now
        self._of_gpm = set()
        if self._gpm is not None:
            self._of_gpm = {(row.metric, row.labels) for row in gpm.GPU_ROWS if self._gpm.tells(row)}
        self._plan = plan(ROWS, self.device, self._meters, self._of_gpm)
        self._fields = {
            pace: RowFields(self._door, self.device, [meter.row for meter in part.fields], self._links)
            for pace, part in self._plan.items()
            if part.fields
        }
        return True

    def _rows(self, slow: bool) -> list[Point]:
        """What the table brings now, and what its slow rows brought last."""
        points, _ = self._part(self._plan[Pace.FAST], Pace.FAST)
        if slow or self._retries > 0:
            self._slow, failed = self._part(self._plan[Pace.SLOW], Pace.SLOW)
            self._retries = 0 if not failed else _RETRIES if slow else self._retries - 1
            self._look_again()
        return points + self._slow

    def _beside_rows(self) -> list[Point]:
        """What takes more than a row: memory, GPM, MIG."""
        points = self._memory().copy()
        if self._gpm is not None:
            points += self._active(self._gpm)
        if self.mig is not None and self.mig.instances:
            points += self.mig.points()
        return points

    def _look_again(self) -> None:
        """For what changes now and then: MIG, and with it what the GPU supports. And for what it has not told yet."""
        assert self.device is not None
        self._look_for_gpm(self.device)
        if self.identity is not None and self.identity.is_partial:
            self._identify(self.device)
        if isinstance(self._links, Absent):
            self._links = link_count(self._door, self.device)
            self._planned_for = None
        if self.mig is not None and self.mig.find():
            self.device.unsupported.clear()
            self._planned_for = None

    def _part(self, part: Part, pace: Pace) -> tuple[list[Point], bool]:
        """The points of a part of the plan, and whether something failed that may work the next time."""
        assert self.device is not None
        points: list[Point] = []
        failed = False
        answered: list[Iterable[tuple[Meter, Any]]] = []
        if part.fields:
            answered.append(zip(part.fields, self._fields[pace].read(), strict=True))
        plain = iter(self._door.query_all(self.device, part.plain))
        for query in part.queries:
            answer = next(plain) if query.call in FILLED else self._ask(query)
            answered.append(zip(query.meters, itertools.repeat(answer), strict=False))
        now_s = time.monotonic()
        for meter, answer in itertools.chain.from_iterable(answered):
            if answer == meter.answer and meter.level is not None:
                points.append(meter.level)
                continue
            point = meter.take(answer, now_s)
            if isinstance(point, Point):
                points.append(point)
            elif point is IMPLAUSIBLE:
                self._door.implausible(meter.row.call)
                failed = True
            elif not point.is_for_good and point is not FIRST:
                failed = True
        return points, failed

    def _ask(self, query: Query) -> Any:
        if not query.each_link:
            return self._door.query(query.call, self.device, *query.args)
        if isinstance(self._links, Absent):
            return self._links
        answers = [self._door.query(query.call, self.device, link, *query.args) for link in range(self._links)]
        found = [answer for answer in answers if not isinstance(answer, Absent)]
        if found:
            return found
        if self.device is not None and all(answer is NOT_SUPPORTED for answer in answers):
            self.device.unsupported.add((query.call, query.args))
        return answers[0] if answers else NOT_SUPPORTED

    def _active(self, reader: gpm.GpmReader) -> Iterable[Point]:
        numbers = reader.read()
        for (which, tags), number in zip(self._gpm_outputs, numbers or (), strict=False):
            # What was just had in another way is not had twice: from the next cycle on it is GPM's again.
            if not isinstance(number, Absent) and which in self._of_gpm:
                yield Point(which[0], Kind.GAUGE, tags, number)

    def _memory(self) -> list[Point]:
        assert self.device is not None
        memory: Memory | Absent | None = read_memory(self._door, self.device)
        is_unified = memory is NOT_SUPPORTED and self.identity is not None and is_integrated(self.identity.name)
        if is_unified:
            memory = self._options.host_memory()
        self._total_bytes = self._used_bytes = None
        if not isinstance(memory, Memory):
            return []
        self._total_bytes, self._used_bytes = float(memory.total), float(memory.used)
        if self._held != (memory, is_unified):
            self._held, self._held_points = (memory, is_unified), list(_memory_points(memory, is_unified, self._gpu))
        return self._held_points


def _memory_points(memory: Memory, is_unified: bool, gpu: str) -> Iterable[Point]:
    tags = (("gpu", gpu),)
    yield Point("aie_gpu_memory_unified", Kind.GAUGE, tags, float(is_unified))
    for what, value in memory._asdict().items():
        if value is not None:
            yield Point(f"aie_gpu_memory_{what}_bytes", Kind.GAUGE, tags, float(value))


def _tags(metric: str, gpu: str, labels: tuple[str, ...]) -> Tags:
    return tuple(sorted(zip(CATALOGUE[metric].labels, (gpu, *labels), strict=True)))
