"""Time blocked in CUDA's synchronisation, and calls that have not returned: the maps of cuda_sync."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from aie_ebpf.door import Module
from aie_ebpf.messages import CudaSync, Histogram
from aie_ebpf.readers.cuda_calls import CALLS
from aie_ebpf.readers.histograms import FIELDS, SLOTS, USED, gained

_NS: Final = 1e9
# A call that lasts longer is looked at: does its thread still live?
_LONG_NS: Final = 1_000_000_000
_NONE: Final = Histogram(slots=(0,) * USED, total=0.0)
_ZEROS: Final = (0,) * FIELDS


class _Inside(NamedTuple):
    """A call that has not returned: how long it has lasted at a reading."""

    tgid: int
    call: int
    start_ns: int
    lasted_ns: int


class SyncReader:
    """Reads the maps of cuda_sync."""

    def __init__(self, module: Module, proc: Path = Path("/proc")) -> None:
        """Raises BpfError."""
        self._syncs = module.table("syncs", "II", f"{FIELDS}Q")
        self._calls = module.table("sync_calls", "I", "3QII")
        self._in_sync = module.table("in_sync", "I", "Q")
        self._proc = proc
        self._last: dict[tuple[int, int], tuple[int, ...]] = {}
        self._inside: dict[int, _Inside] = {}

    def read(self, now_ns: int) -> dict[int, tuple[CudaSync, ...]]:
        """What each process's calls took since the reading before, and which have not returned; `now_ns` is the monotonic clock.
        Raises BpfError."""
        # Calls are read first: one that ends in between counts in both now, and less the next time.
        before, inside = self._inside, self._living(now_ns)
        self._inside = inside
        now = dict(self._syncs.items())
        blocked_ns: dict[tuple[int, ...], int] = defaultdict(int)
        waits: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for tid, each in inside.items():
            blocked_ns[each.tgid, each.call] += each.lasted_ns
            waits[each.tgid, each.call].append(each.lasted_ns)
            if tid in before and before[tid].start_ns == each.start_ns:
                blocked_ns[each.tgid, each.call] -= before.pop(tid).lasted_ns
        for each in before.values():  # they have ended, and the totals have them in full
            blocked_ns[each.tgid, each.call] -= each.lasted_ns
        found: dict[int, list[CudaSync]] = defaultdict(list)
        for key in now.keys() | blocked_ns.keys():
            tgid, call = key
            after, earlier = now.get(key, _ZEROS), self._last.get((tgid, call), _ZEROS)
            seconds = gained(after, earlier)
            self._last[tgid, call] = after
            if seconds is None and not waits[key]:
                continue
            found[tgid].append(
                CudaSync(
                    call=CALLS[call],
                    seconds=seconds or _NONE,
                    waiting=len(waits[key]),
                    longest_wait_s=max(waits[key], default=0) / _NS,
                    blocked_s=max(blocked_ns[key] + after[SLOTS] - earlier[SLOTS], 0) / _NS,
                )
            )
        return {tgid: tuple(rows) for tgid, rows in found.items()}

    def forget(self, tgid: int) -> None:
        """Drops all of a process. Raises BpfError."""
        for key in [key for key, _ in self._syncs.items() if key[0] == tgid]:
            self._syncs.delete(*key)
            self._last.pop((key[0], key[1]), None)
        for tid in [key[0] for key, value in self._calls.items() if value[3] == tgid]:
            self._leave(tid)

    def _living(self, now_ns: int) -> dict[int, _Inside]:
        """Calls that go on. A thread that ended inside one never returns: it is taken out."""
        inside = {}
        for (tid,), (start_ns, _, _, tgid, call) in list(self._calls.items()):
            lasted_ns = max(now_ns - start_ns, 0)
            if lasted_ns > _LONG_NS and not (self._proc / str(tgid) / "task" / str(tid)).exists():
                self._leave(tid)
            else:
                inside[tid] = _Inside(tgid, call, start_ns, lasted_ns)
        return inside

    def _leave(self, tid: int) -> None:
        self._calls.delete(tid)
        self._in_sync.delete(tid)
        self._inside.pop(tid, None)
