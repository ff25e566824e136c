"""What the threads of watched processes wait for: the maps of locks, sched and faults."""

from __future__ import annotations

import functools
import operator
import struct
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from aie_ebpf.door import Module
from aie_ebpf.lock_kinds import GIL, IDLE, LOCK, LockKinds
from aie_ebpf.messages import Histogram, Lock, Waits
from aie_ebpf.readers.histograms import FIELDS, observed

# Rows of locks in a report: those that took the most time. The sums have all of them.
_ROWS: Final = 20
_NS: Final = 1e9

_TIMES_AFTER: Final = 5  # sleep, disk, page_fault, sync_run_queue, sync_off
_TIMES: Final = struct.Struct(f"{2 * FIELDS + _TIMES_AFTER}Q")
_NO_TIMES: Final = (0,) * (2 * FIELDS + _TIMES_AFTER)


class HostUse(NamedTuple):
    """Increases since the reading before, of one process. `sync_run_queue_s` is the part of CUDA synchronisations that was spent
    in the run queue, `sync_off_s` the part asleep."""

    waits: Waits
    locks: tuple[Lock, ...]
    run_queue: Histogram | None
    off_cpu: Histogram | None
    sync_run_queue_s: float
    sync_off_s: float


_by_wait: Final = operator.attrgetter("wait_s")

_Ongoing = tuple[int, int, int, int, int]
"""A wait that has not ended at a reading: since when, the process, the address, whether that is the GIL, and how much of it was
reported already, in ns. A plain tuple, and the next a plain class: there are hundreds of them a reading."""


class _Use:
    """Waits on one address since the reading before."""

    __slots__ = ("handoffs", "kind", "longest_ns", "wait_ns", "waiters", "waits")

    def __init__(self, kind: str, waits: int = 0, wait_ns: int = 0, longest_ns: int = 0, handoffs: int = 0) -> None:
        self.kind = kind
        self.waits = waits
        self.handoffs = handoffs
        self.wait_ns = wait_ns
        self.longest_ns = longest_ns
        self.waiters = 0


_Uses = dict[int, dict[int, _Use]]
"""By process and address."""


class WaitsReader:
    """Reads the module that is made of locks, sched and faults. Counts each second of a wait when it passes, not when it ends."""

    def __init__(self, module: Module, loaded: Collection[str]) -> None:
        """`loaded` are the sets that the module has. Raises BpfError."""
        self._times = module.table("times", "I", f"{_TIMES.size}s") if "sched" in loaded else None
        self._locks = module.table("locks", "QII", "7Q") if "locks" in loaded else None
        self._waiting = module.table("futex_waiting", "I", "4Q2I") if "locks" in loaded else None
        self._threads = module.table("threads", "I", "3QII") if "sched" in loaded else None
        self._in_sync = module.table("in_sync", "I", "Q") if "sched" in loaded else None
        self._kinds = LockKinds()
        self._read_ns = 0
        self._ongoing: dict[int, _Ongoing] = {}
        # By process: all its counters as one long number. They only grow, so that one subtraction is that of each.
        self._last_times: dict[int, int] = {}
        # How much of a sleep in a synchronisation that goes on was reported before `times` has it.
        self._ahead_ns: dict[int, int] = {}

    def watch(self, tgid: int) -> None:
        """Makes room for a process. Raises BpfError (too many)."""
        if tgid not in self._last_times:
            if self._times is not None:
                self._times.put((tgid,), (bytes(_TIMES.size),))
            self._last_times[tgid] = 0

    def begin(self, name: str) -> None:
        """A set is about to be attached, perhaps again: what was under way when it was detached ended long ago. Raises BpfError."""
        if name == "locks" and self._waiting is not None and self._locks is not None:
            self._waiting.drain()
            self._locks.drain()
            self._ongoing.clear()
        elif name == "sched" and self._threads is not None:
            self._threads.drain()

    def forget(self, tgid: int) -> None:
        """Ends to count for a process."""
        if self._times is not None:
            self._times.delete(tgid)
        self._last_times.pop(tgid, None)
        self._ahead_ns.pop(tgid, None)
        self._kinds.forget(tgid)

    def read(
        self, now_ns: int, on: frozenset[str], off: Mapping[int, Collection[str]] = MappingProxyType({})
    ) -> dict[int, HostUse]:
        """The increases of every watched process. `now_ns` is the monotonic clock; `on` are the sets that are attached, `off` those
        that leave a process alone: of what they would see nothing is said. Raises BpfError."""
        locks = self._lock_uses(now_ns) if "locks" in on else {}
        times = self._gained_times()
        asleep_ns = self._asleep_in_sync(now_ns)
        silent = _silent(on)
        return {
            tgid: self._use(
                tgid,
                times.get(tgid, _NO_TIMES),
                asleep_ns.get(tgid, 0),
                locks.get(tgid),
                on.difference(off[tgid]) if off.get(tgid) else on,
            )
            if tgid in times or tgid in locks or tgid in asleep_ns or self._ahead_ns.get(tgid) or off.get(tgid)
            else silent
            for tgid in self._last_times
        }

    def _gained_times(self) -> dict[int, tuple[int, ...]]:
        """What the counters of each process in `times` gained; of most, most gained nothing."""
        found = {}
        for (tgid,), (counters,) in self._times.items() if self._times is not None else ():
            before = self._last_times.get(tgid)
            now = int.from_bytes(counters, sys.byteorder)
            if before is not None and now != before:
                found[tgid] = _TIMES.unpack((now - before).to_bytes(_TIMES.size, sys.byteorder))
                self._last_times[tgid] = now
        return found

    def _use(self, tgid: int, times: tuple[int, ...], asleep_ns: int, uses: dict[int, _Use] | None, on: frozenset[str]) -> HostUse:
        sleep_ns, disk_ns, fault_ns, sync_queue_ns, sync_off_ns = times[2 * FIELDS :]
        # A sleep that goes on counts with those that ended: one that ends between two readings is in neither, for a moment.
        before_ns = self._ahead_ns.get(tgid, 0)
        self._ahead_ns[tgid] = ahead_ns = max(asleep_ns, before_ns - sync_off_ns)
        sync_off_ns += ahead_ns - before_ns
        run_queue = observed(times[:FIELDS])
        seen, scheduled, faulted = "locks" in on, "sched" in on, "faults" in on
        rows = [_row(address, use) for address, use in uses.items()] if seen and uses else []
        waited = {LOCK: 0.0, GIL: 0.0, IDLE: 0.0}
        for row in rows:
            waited[row.kind] += row.wait_s
        rows.sort(key=_by_wait, reverse=True)
        return HostUse(
            waits=Waits(
                run_queue=(run_queue.total if run_queue else 0.0) if scheduled else None,
                lock=waited[LOCK] if seen else None,
                gil=waited[GIL] if seen else None,
                idle_futex=waited[IDLE] if seen else None,
                page_fault=fault_ns / _NS if scheduled and faulted else None,
                disk=disk_ns / _NS if scheduled else None,
                sleep=sleep_ns / _NS if scheduled else None,
            ),
            locks=tuple(rows[:_ROWS]),
            run_queue=run_queue,
            off_cpu=observed(times[FIELDS : 2 * FIELDS]),
            sync_run_queue_s=sync_queue_ns / _NS,
            sync_off_s=sync_off_ns / _NS,
        )

    def _asleep_in_sync(self, now_ns: int) -> dict[int, int]:
        """For how long, by process, threads have slept that are inside a CUDA synchronisation now, in ns: `times` has it when they
        wake up."""
        found: dict[int, int] = defaultdict(int)
        if self._in_sync is None or self._threads is None:
            return found
        for (tid,), _ in list(self._in_sync.items()):
            thread = self._threads.get(tid)
            if thread is not None and thread[0]:
                off_ns, ready_ns, _, tgid, _ = thread
                found[tgid] += max((ready_ns or now_ns) - off_ns, 0)
        return found

    def _lock_uses(self, now_ns: int) -> _Uses:
        # The waits that go on are read before those that ended: what ends in between is counted at the next reading.
        assert self._waiting is not None
        assert self._locks is not None
        ongoing = self._waiting.items()
        period_s, self._read_ns = (now_ns - self._read_ns) / _NS if self._read_ns else 0.0, now_ns
        uses: _Uses = defaultdict(dict)
        note = self._kinds.note
        for (address, tgid, is_gil), (waits, wait_ns, longest_ns, handoffs, timed, held_ns, contended) in self._locks.drain():
            kind = note((tgid, address), (waits, handoffs, timed, wait_ns / _NS, held_ns / _NS, period_s, contended))
            uses[tgid][address] = _Use(GIL if is_gil else kind, waits, wait_ns, longest_ns, handoffs)
        self._credit(ongoing, now_ns, uses)
        return uses

    def _credit(self, ongoing: Iterable[tuple[tuple[int], tuple[int, ...]]], now_ns: int, uses: _Uses) -> None:
        """Waits that go on count now for what they lasted since the reading before; what was counted of those that ended is
        taken from their total."""
        before, self._ongoing = self._ongoing, {}
        for (tid,), (start_ns, run_queue_ns, _flags, address, tgid, is_gil) in ongoing:
            credited_ns = 0
            earlier = before.get(tid)
            if earlier is not None and earlier[0] == start_ns:
                credited_ns = before.pop(tid)[-1]
            lasted_ns = max(now_ns - start_ns - run_queue_ns, credited_ns)
            use = uses[tgid].get(address) or self._use_at(uses[tgid], tgid, address, is_gil)
            use.wait_ns += lasted_ns - credited_ns
            use.longest_ns = max(use.longest_ns, lasted_ns)
            use.waiters += 1
            self._ongoing[tid] = start_ns, tgid, address, is_gil, lasted_ns
        for _, tgid, address, is_gil, credited_ns in before.values():  # they have ended, and their totals have them in full
            self._use_at(uses[tgid], tgid, address, is_gil).wait_ns -= credited_ns

    def _use_at(self, uses: dict[int, _Use], tgid: int, address: int, is_gil: int) -> _Use:
        use = uses.get(address)
        if use is None:
            use = uses[address] = _Use(GIL if is_gil else self._kinds.kind((tgid, address)))
        return use


@functools.cache
def _silent(on: frozenset[str]) -> HostUse:
    """Of a process that did nothing, as far as these sets see."""
    seen = 0.0 if "locks" in on else None
    scheduled = 0.0 if "sched" in on else None
    faulted = scheduled if "faults" in on else None
    waits = Waits(run_queue=scheduled, lock=seen, gil=seen, idle_futex=seen, page_fault=faulted, disk=scheduled, sleep=scheduled)
    return HostUse(waits=waits, locks=(), run_queue=None, off_cpu=None, sync_run_queue_s=0.0, sync_off_s=0.0)


def _row(address: int, use: _Use) -> Lock:
    return Lock(
        address=address,
        kind=use.kind,
        waits=use.waits,
        wait_s=max(use.wait_ns, 0) / _NS,
        longest_s=use.longest_ns / _NS,
        handoffs=use.handoffs,
        waiters=use.waiters,
    )
