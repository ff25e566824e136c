"""What the threads of watched processes wait for: the maps of locks, sched and faults."""

from __future__ import annotations

import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from aie_ebpf.door import Module
from aie_ebpf.lock_kinds import GIL, IDLE, LOCK, LockKinds, Seen
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


class _Ongoing(NamedTuple):
    """A wait that has not ended at a reading: how much of it was reported already."""

    start_ns: int
    address: tuple[int, int]
    is_gil: bool
    credited_ns: int


class _Use:
    """Waits on one address since the reading before."""

    def __init__(self, is_gil: bool) -> None:
        self.is_gil = is_gil
        self.waits = 0
        self.handoffs = 0
        self.wait_ns = 0
        self.longest_ns = 0
        self.waiters = 0


_UseAt = Callable[[tuple[int, int], bool], _Use]


class WaitsReader:
    """Reads the module that is made of locks, sched and faults. Counts each second of a wait when it passes, not when it ends."""

    def __init__(self, module: Module, loaded: Collection[str]) -> None:
        """`loaded` are the sets that the module has. Raises BpfError."""
        self._times = module.table("times", "I", f"{_TIMES.size}s") if "sched" in loaded else None
        self._locks = module.table("locks", "QII", "6Q") if "locks" in loaded else None
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
        return {
            tgid: self._use(
                tgid,
                times.get(tgid, _NO_TIMES),
                asleep_ns.get(tgid, 0),
                locks.get(tgid),
                on.difference(off[tgid]) if off.get(tgid) else on,
            )
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
        rows = [self._row(tgid, address, use) for address, use in uses.items()] if seen and uses else []
        waited = {LOCK: 0.0, GIL: 0.0, IDLE: 0.0}
        for row in rows:
            waited[row.kind] += row.wait_s
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
            locks=tuple(sorted(rows, key=lambda row: -row.wait_s)[:_ROWS]),
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

    def _row(self, tgid: int, address: int, use: _Use) -> Lock:
        return Lock(
            address=address,
            kind=GIL if use.is_gil else self._kinds.kind((tgid, address)),
            waits=use.waits,
            wait_s=max(use.wait_ns, 0) / _NS,
            longest_s=use.longest_ns / _NS,
            handoffs=use.handoffs,
            waiters=use.waiters,
        )

    def _lock_uses(self, now_ns: int) -> dict[int, dict[int, _Use]]:
        uses: dict[int, dict[int, _Use]] = defaultdict(dict)

        def use_at(address: tuple[int, int], is_gil: bool) -> _Use:
            tgid, place = address
            return uses[tgid].setdefault(place, _Use(is_gil))

        # The waits that go on are read before those that ended: what ends in between is counted at the next reading.
        assert self._waiting is not None
        assert self._locks is not None
        ongoing = {key[0]: value for key, value in self._waiting.items()}
        period_s, self._read_ns = (now_ns - self._read_ns) / _NS if self._read_ns else 0.0, now_ns
        for (address, tgid, is_gil), (waits, wait_ns, longest_ns, handoffs, held_ns, contended) in self._locks.drain():
            use = use_at((tgid, address), bool(is_gil))
            use.waits, use.wait_ns, use.longest_ns, use.handoffs = waits, wait_ns, longest_ns, handoffs
            self._kinds.note((tgid, address), Seen(waits, handoffs, wait_ns / _NS, held_ns / _NS, period_s, contended))
        self._credit(ongoing, now_ns, use_at)
        return uses

    def _credit(self, ongoing: dict[int, tuple[int, ...]], now_ns: int, use_at: _UseAt) -> None:
        """Waits that go on count now for what they lasted since the reading before; what was counted of those that ended is
        taken from their total."""
        before, self._ongoing = self._ongoing, {}
        for tid, last in before.items():
            entry = ongoing.get(tid)
            if entry is None or entry[0] != last.start_ns:
                use_at(last.address, last.is_gil).wait_ns -= last.credited_ns
        for tid, (start_ns, run_queue_ns, _contended, address, tgid, is_gil) in ongoing.items():
            place = (tgid, address)
            earlier = before.get(tid)
            credited = earlier.credited_ns if earlier is not None and earlier.start_ns == start_ns else 0
            lasted = max(now_ns - start_ns - run_queue_ns, credited)
            use = use_at(place, bool(is_gil))
            use.wait_ns += lasted - credited
            use.longest_ns = max(use.longest_ns, lasted)
            use.waiters += 1
            self._ongoing[tid] = _Ongoing(start_ns, place, bool(is_gil), lasted)
