"""The GPUs of this host, once a period: `aie_gpu_*` of NVML."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from aie_agent.config import GpuSection
from aie_agent.samples import Batch, Count, Point
from aie_agent.sources.base import SourceError
from aie_agent.sources.nvml.bus_id import bus_id
from aie_agent.sources.nvml.cuda_devices import GpuName
from aie_agent.sources.nvml.door import Device
from aie_agent.sources.nvml.gpu import GpuReader, Reading
from aie_agent.sources.nvml.lanes import Job, Lanes
from aie_agent.sources.nvml.memory import Memory
from aie_agent.sources.nvml.process_join import GpuContexts, GpuProcesses
from aie_agent.sources.nvml.roster import Entry, Roster, points
from aie_agent.sources.nvml.session import Session, on_host
from aie_agent.sources.nvml.xid import from_tracepoint
from aie_agent.sources.nvml.xids import Xids
from aie_telemetry.api import GpuFault, GpuProcess

log = logging.getLogger(__name__)

_SESSION: Final = "session"
# How long others wait for a GPU before they go on without it, and how long the first reading of one may take.
_PATIENCE_S: Final = 0.25
_FIRST_PATIENCE_S: Final = 2.0
# nvmlInit wakes GPUs that sleep, one after the other.
_OPEN_PATIENCE_S: Final = 10.0
_CLOSE_PATIENCE_S: Final = 5.0
_APART_PERIOD_S: Final = 2.0
# A lost GPU is asked again whether it is back at every `retry`. A new session interrupts those that work: one is only tried, and
# more rarely, where none is left that does; else when the driver shows other GPUs.
_REOPEN_EVERY: Final = 10
_HANGS: Final = "NVML hangs while its session is opened or closed: see the kernel log"
_IN_USE: Final = "a call to NVML hangs: the session cannot be given back before it returns"
# `aie_gpu_up{reason}` of every GPU while there is no session.
_RELEASED, _CLOSED, _HUNG = "released", "closed", "hung"

# The batch has all series of these: one that is not in it is not current any more.
_WHOLE: Final = ("aie_gpu_up", "aie_gpu_info")


class NvmlSource:
    """Reads every GPU on threads of its own. `load` gives the binding (by default nvidia-ml-py)."""

    name = "nvml"

    def __init__(
        self,
        config: GpuSection,
        host_memory: Callable[[], Memory | None],
        xids: Xids | None = None,
        processes: GpuProcesses | None = None,
        load: Callable[[], Any] | None = None,
    ) -> None:
        self.period_s = float(config.period)
        self.entries: list[Entry] = []
        """The GPUs as the last collection found them."""
        self._config = config
        self._joined = processes
        exists = processes.exists if processes else lambda: None
        self._session = Session(host_memory, load, exists, config.gpm, self.period_s)
        self._lanes = Lanes("nvml")
        self._apart = Lanes("nvml-slow")
        self._apart_task: asyncio.Task[None] | None = None
        self._roster = Roster(config.expected)
        self._xids = xids
        self._on_gpus: dict[int, GpuContexts] = {}
        self._slow_every = max(round(config.slow_period / config.period), 1)
        self._cycle = 0
        self._watched: list[Device] = []
        self._took_s: dict[int, float] = {}
        self._next_try_s = 0.0
        self._next_revival_s = 0.0
        self._in_vain = 0
        self._next_apart_s = 0.0
        self._must_reopen = False
        self._released_until_s: float | None = None
        self._is_held = False
        """It was to be given back, and a thread is inside it."""

    def release(self) -> None:
        """Gives NVML back at the next collection, so that the driver or MIG can be changed, for `released_for`; or, when it is
        given back, takes it again."""
        if self._released_until_s is None:
            self._released_until_s = time.monotonic() + self._config.released_for
        else:
            self._released_until_s, self._next_try_s = None, 0.0

    async def collect(self, now_s: float) -> Batch:
        """Reads all GPUs. Raises SourceError while NVML cannot be used; a GPU that does not answer is a point in the batch."""
        await self._be_open(now_s)
        await self._read_all()
        batch = Batch(self.name, now_s, whole=_WHOLE)
        self.entries = self._roster.update(self._outcomes(batch.points), self._session.may_be_lost)
        batch.points += points(self.entries, self._roster.expected, self._session.driver, self._session.is_simulated)
        if self._xids is not None:
            self._add_xids(batch, self._xids)
        if self._joined is not None:
            batch.points += await self._joined.collect(list(self._on_gpus.values()), now_s)
        if self._is_held:
            raise SourceError(_IN_USE, batch)
        return batch

    def processes(self, gpu: int) -> tuple[GpuProcess, ...]:
        """The processes on a GPU as of the last collection."""
        return () if self._joined is None else self._joined.rows(gpu)

    def engine_note(self, engine: str) -> str | None:
        """What of an engine's GPU memory is not exact."""
        return None if self._joined is None else self._joined.engine_note(engine)

    def faults(self, gpu: int) -> tuple[GpuFault, ...]:
        """What is wrong with a GPU that is no number."""
        note = None if self._joined is None else self._joined.note
        return () if note is None else (GpuFault(cause="gpu_pid_namespace", text=note),)

    async def close(self) -> None:
        """Ends the session, unless a call hangs: then the process's end does."""
        if not await self._end_session():
            log.warning("NVML is left open: a call to it does not return; it is closed when the process ends")
        self._lanes.close()
        self._apart.close()

    def tell_xid(self, device: str, code: int, text: str, now_s: float) -> None:
        """The driver's tracepoint told of an error, as probes saw it."""
        report = from_tracepoint(device, code, text, now_s)
        if report is not None and self._xids is not None:
            self._xids.tell(report)

    def counts(self) -> Iterable[Count]:
        """What the calls cost, and which failed."""
        door = self._session.door
        if door is not None:
            for call, seconds in door.seconds().items():
                yield "aie_agent_nvml_seconds_total", (call,), seconds
            for (call, code), number in door.errors().items():
                yield "aie_agent_nvml_errors_total", (call, code), float(number)

    # The session

    async def _be_open(self, now_s: float) -> None:
        """Raises SourceError where there is no session to read with."""
        if _SESSION in self._lanes.away():
            raise self._closed(now_s, _HANGS, _HUNG)
        await self._be_released(now_s)
        if self._session.is_open and not await self._is_outdated():
            return
        if time.monotonic() < self._next_try_s and not self._session.is_open:
            raise self._closed(now_s, self._session.error or "NVML is closed")
        await self._reopen(now_s)

    async def _be_released(self, now_s: float) -> None:
        until_s, self._is_held = self._released_until_s, False
        if until_s is None:
            return
        if time.monotonic() >= until_s:
            self._released_until_s, self._next_try_s = None, 0.0
            return
        self._is_held = not await self._let_go(now_s)
        if self._is_held:
            return  # what still answers is read on
        text = f"NVML is given back for {self._config.released_for:g} s (SIGUSR1; again to take it at once)"
        raise self._closed(now_s, text, _RELEASED)

    async def _is_outdated(self) -> bool:
        if not self._must_reopen and self._cycle % self._slow_every == 0 and not self._lanes.away():
            outdated: list[bool] = []
            await self._lanes.run([Job(_SESSION, lambda: outdated.append(self._session.is_outdated()))], _FIRST_PATIENCE_S)
            self._must_reopen = any(outdated)
        door = self._session.door
        if door is not None and door.session_over is not None:
            self._must_reopen = True
        # A GPU that hangs keeps the session open, and what always fails must not open it again and again.
        return self._must_reopen and time.monotonic() >= self._next_try_s and not self._lanes.away() and not self._apart.away()

    async def _reopen(self, now_s: float) -> None:
        self._next_try_s = time.monotonic() + self._config.retry
        if not await self._let_go(now_s):
            return  # what still answers is read on; at the next `retry` it is tried again
        self._must_reopen = False
        await self._lanes.run([Job(_SESSION, self._session.open)], _OPEN_PATIENCE_S)
        if _SESSION in self._lanes.away():
            raise self._closed(now_s, _HANGS, _HUNG)
        if not self._session.is_open:
            raise self._closed(now_s, self._session.error or "NVML is closed")
        self._cycle = self._in_vain = 0
        self._took_s.clear()
        self._on_gpus.clear()

    async def _let_go(self, now_s: float) -> bool:
        """As `_end_session`. Raises SourceError where closing itself hangs: nothing may be asked then."""
        is_closed = await self._end_session()
        if _SESSION in self._lanes.away():
            raise self._closed(now_s, _HANGS, _HUNG)
        return is_closed

    async def _end_session(self) -> bool:
        """Closes the session if there is one. False while a thread is inside NVML: what it works on must not be taken away."""
        await self._end_apart()
        self._watched = []  # where the session stays, events are waited for anew: that is ended in any case
        if self._session.is_open and not self._lanes.away() and not self._apart.away():
            await self._lanes.run([Job(_SESSION, self._close_session)], _CLOSE_PATIENCE_S)
        return not self._session.is_open and not self._lanes.away() and not self._apart.away()

    def _close_session(self) -> None:
        if self._xids is None or self._xids.unwatch():
            self._session.close()

    def _closed(self, now_s: float, text: str, reason: str = _CLOSED) -> SourceError:
        """What is known without a session: which GPUs there should be. None of them is up."""
        batch = Batch(self.name, now_s, whole=_WHOLE)
        self.entries = self._roster.down(reason)
        if self._roster.expected:
            batch.points += points(self.entries, self._roster.expected, self._session.driver, self._session.is_simulated)
        if self._xids is not None:
            self._add_xids(batch, self._xids)
        return SourceError(text, batch)

    # The GPUs

    async def _read_all(self) -> None:
        gpus, is_first = self._session.gpus, self._cycle == 0
        self._revive()
        # The quick ones first: who waits for a slow one is only who is slow as well.
        jobs = [
            Job(gpu.index, partial(gpu.read, (self._cycle + gpu.index) % self._slow_every == 0))
            for gpu in sorted(gpus, key=lambda gpu: self._took_s.get(gpu.index, 0.0))
        ]
        await self._lanes.run(jobs, _FIRST_PATIENCE_S if is_first else _PATIENCE_S)
        self._cycle += 1
        await self._watch(gpus)
        self._begin_apart()

    def _revive(self) -> None:
        """Asks GPUs that are gone again, now and then."""
        gone = [gpu for gpu in self._session.gpus if gpu.device is not None and gpu.device.gone is not None]
        nobody_answers = bool(self.entries) and all(entry.reason is not None for entry in self.entries)
        if not (gone or nobody_answers) or time.monotonic() < self._next_revival_s or self._lanes.away():
            return
        self._next_revival_s = time.monotonic() + self._config.retry
        self._in_vain = self._in_vain + 1 if nobody_answers else 0
        self._must_reopen |= self._in_vain >= _REOPEN_EVERY
        for gpu in gone:
            gpu.revive()

    def _outcomes(self, into: list[Point]) -> Iterable[Entry]:
        away = self._lanes.away()
        for gpu in self._session.gpus:
            reading, gpu.reading = gpu.reading, None
            reason: str | None = None
            if reading is not None and gpu.index not in away:
                self._took_s[gpu.index] = reading.took_s
                reason = reading.reason
                self._note_processes(gpu, reading)
                if time.monotonic() - reading.at_s < 2 * self.period_s + _FIRST_PATIENCE_S:
                    into += reading.points
                    into += gpu.apart()
            elif gpu.index not in away:
                reason = "error"  # our own: it stands in the log
            elif away[gpu.index] >= self._config.hung_after:
                reason = "hung"
            yield Entry(gpu.index, gpu.identity, reason)

    def _note_processes(self, gpu: GpuReader, reading: Reading) -> None:
        """What is on a GPU stays known while it is slow to answer, and is not while it is down."""
        self._on_gpus.pop(gpu.index, None)
        if reading.reason is None and gpu.identity is not None:
            name = GpuName(gpu.index, gpu.identity.uuid, gpu.identity.name, gpu.identity.minor)
            self._on_gpus[gpu.index] = GpuContexts(name, reading.contexts, reading.used_bytes)

    def _begin_apart(self) -> None:
        """The calls that take their time, one GPU after the other, while everything else goes on."""
        if time.monotonic() < self._next_apart_s or (self._apart_task is not None and not self._apart_task.done()):
            return
        self._next_apart_s = time.monotonic() + _APART_PERIOD_S
        jobs = [Job(gpu.index, gpu.read_apart) for gpu in self._session.gpus if gpu.has_apart()]
        if jobs:
            self._apart_task = asyncio.create_task(self._apart.run(jobs, _FIRST_PATIENCE_S), name="nvml-slow")

    async def _end_apart(self) -> None:
        if self._apart_task is not None:
            await asyncio.wait([self._apart_task])
            self._apart_task = None

    # XIDs

    async def _watch(self, gpus: Iterable[GpuReader]) -> None:
        """Waits for events of all GPUs: anew when one has come back, for its events go to the handle that it has now."""
        if self._xids is None or self._session.door is None:
            return
        devices = _devices_by_bus(gpus)
        if all(any(device is known for known in self._watched) for device in devices.values()):
            return
        began: list[bool] = []
        watch = partial(self._xids.watch, self._session.door, devices)
        await self._lanes.run([Job(_SESSION, lambda: began.append(watch()))], _FIRST_PATIENCE_S)
        if any(began):
            self._watched = list(devices.values())

    def _add_xids(self, batch: Batch, xids: Xids) -> None:
        names = {
            bus: str(entry.index)
            for entry in self.entries
            if entry.identity is not None and (bus := bus_id(entry.identity.pci_bus_id)) is not None
        }
        there = {bus for name in on_host() if (bus := bus_id(name)) is not None}
        xids.expect(there | names.keys())
        # One GPU that never said who it is, and one place on the bus that is nobody's: they belong together.
        nameless = [entry for entry in self.entries if entry.identity is None]
        unclaimed = there - names.keys()
        if len(nameless) == len(unclaimed) == 1:
            names[unclaimed.pop()] = str(nameless[0].index)
        found = xids.collect(names)
        batch.points += found.points
        batch.events += found.events


def _devices_by_bus(gpus: Iterable[GpuReader]) -> dict[str, Device]:
    """Those that are there: what is gone is not passed on."""
    found = {}
    for gpu in gpus:
        bus = None if gpu.identity is None else bus_id(gpu.identity.pci_bus_id)
        if bus is not None and gpu.device is not None and gpu.device.gone is None:
            found[bus] = gpu.device
    return found
