"""Who holds a context on a GPU, as NVML tells it: three lists, in the layouts that drivers have had, and how busy each is.

Runs on the thread that asks the GPU. Who these processes are is found out in `process_join.py`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from aie_agent.sources.nvml.door import Absent, Device, Door, number

_LISTS: Final = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
)
_PID_MAX: Final = 1 << 22  # the kernel's own limit
_MAX_INSTANCE: Final = 64
_NO_INSTANCE: Final = 0xFFFFFFFF
_LONGEST_ENTRY: Final = 32
_SLACK: Final = 32
MAX_PROCESSES: Final = 4096
"""Most processes of one GPU that are looked at."""

_OTHERS_EVERY_S: Final = 5.0
_UTILIZATION: Final = ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization")
_HOLD_US: Final = 2_000_000
_AHEAD_US: Final = 5_000_000
_MAX_PERCENT: Final = 100


class Layout(NamedTuple):
    """One form of an entry: the ending of the function's name, and the entry's C struct."""

    suffix: str
    entry: struct.Struct


# Drivers from 535.43 to 535.86 have the longer entry behind the name of the shorter one: nothing but its content tells.
LAYOUTS: Final = (
    Layout("_v3", struct.Struct("=IxxxxQII")),
    Layout("_v3", struct.Struct("=IxxxxQIIQ")),
    Layout("_v2", struct.Struct("=IxxxxQII")),
    Layout("", struct.Struct("=IxxxxQ")),
)


class Context(NamedTuple):
    """A process on a GPU. `pid` is the host's. `kind` is compute, mps or graphics, or several joined by "+".

    `memory_bytes` is None where the driver does not tell it, `sm_ratio` where there is no fresh sample.
    """

    pid: int
    kind: str
    memory_bytes: int | None
    sm_ratio: float | None


class Entry(NamedTuple):
    """One entry of one list, sentinels taken out."""

    pid: int
    memory_bytes: int | None
    instance: tuple[int, int] | None


def decode(layout: Layout, content: bytes, count: int) -> list[Entry]:
    """The first `count` entries of a buffer."""
    entries = []
    for place in range(count):
        pid, memory, *rest = layout.entry.unpack_from(content, place * layout.entry.size)
        plain = number(memory)
        instance = (rest[0], rest[1]) if len(rest) >= 2 and rest[0] != _NO_INSTANCE else None
        entries.append(Entry(pid, None if isinstance(plain, Absent) else int(plain), instance))
    return entries


def is_plausible(entries: Sequence[Entry], total_bytes: float | None) -> bool:
    """Whether this can be a list of processes: pids that a kernel gives, each once an instance, no more memory than there is."""
    keys = {(entry.pid, entry.instance) for entry in entries}
    return len(keys) == len(entries) and all(
        0 < entry.pid <= _PID_MAX
        and (entry.memory_bytes is None or total_bytes is None or entry.memory_bytes <= total_bytes)
        and (entry.instance is None or entry.instance[0] < _MAX_INSTANCE)
        for entry in entries
    )


class ProcessReader:
    """The processes of one GPU. `exists` says whether there is a process of this pid; None where that cannot be known (pids of
    another namespace). `read` is called by one thread at a time.
    """

    def __init__(self, door: Door, device: Device, exists: Callable[[int], bool] | None) -> None:
        self._door = door
        self._device = device
        self._exists = exists
        self._layouts: dict[str, Layout] = {}
        self._room = _SLACK
        self._others: list[list[Entry] | Absent] = []
        self._others_s = 0.0
        self._sign: tuple[float | None, list[Entry] | Absent] | None = None
        self._utilization = _Utilization(door, device)

    def read(self, total_bytes: float | None, wall_s: float, used_bytes: float | None = None) -> list[Context] | Absent:
        """All contexts, by pid; `Absent` where no list is told or none can be true. `total_bytes` is the memory of the GPU,
        `used_bytes` what is in use of it, if that is known."""
        kinds: dict[int, list[str]] = {}
        memory: dict[tuple[int, tuple[int, int] | None], int | None] = {}
        answers = self._lists(total_bytes, wall_s, used_bytes)
        if isinstance(answers[0], Absent) and all(isinstance(answer, Absent) for answer in answers):
            return answers[0]
        for (kind, _), answer in zip(_LISTS, answers, strict=True):
            for entry in () if isinstance(answer, Absent) else answer[:MAX_PROCESSES]:
                kinds.setdefault(entry.pid, []).append(kind)
                key = entry.pid, entry.instance
                known = memory.get(key)  # one process stands in two lists with the same memory
                memory[key] = entry.memory_bytes if known is None else max(known, entry.memory_bytes or 0)
        ratios = self._utilization.read(set(kinds), wall_s)
        held: dict[int, list[int | None]] = {}
        for (pid, _), value in memory.items():
            held.setdefault(pid, []).append(value)
        return [Context(pid, "+".join(dict.fromkeys(kinds[pid])), total_of(held[pid]), ratios.get(pid)) for pid in sorted(kinds)]

    def _lists(self, total_bytes: float | None, wall_s: float, used_bytes: float | None) -> list[list[Entry] | Absent]:
        """Every list. Those of MPS and graphics, mostly empty, are what they were while the GPU holds as much memory as it did, for
        the same processes that compute: no context comes or goes without memory. After some seconds they are asked for anyway."""
        (kind, call), *others = _LISTS
        computing = self._list(kind, call, total_bytes)
        sign = (used_bytes, computing)
        is_same = used_bytes is not None and sign == self._sign and 0 <= wall_s - self._others_s < _OTHERS_EVERY_S
        if not is_same or any(isinstance(answer, Absent) and not answer.is_for_good for answer in self._others):
            self._others = [self._list(kind, call, total_bytes) for kind, call in others]
            self._sign, self._others_s = sign, wall_s
        return [computing, *self._others]

    def _list(self, kind: str, call: str, total_bytes: float | None) -> list[Entry] | Absent:
        """One list, in the layout that was found to be true; else in the first that can be."""
        chosen = self._layouts.get(kind)
        refusal: Absent | None = None
        was_read = False
        doubted: list[list[Entry]] = []
        for layout in LAYOUTS if chosen is None else (chosen, *(other for other in LAYOUTS if other is not chosen)):
            entries = self._ask(call, layout)
            if isinstance(entries, Absent):
                if refusal is None or refusal.is_for_good:  # a layout that is never told says nothing of one that failed now
                    refusal = entries
                if self._device.gone is not None:
                    return entries
                continue
            was_read = True
            if not is_plausible(entries, total_bytes):
                continue
            if not entries or layout is chosen or self._are_there(entries):
                if entries:
                    self._layouts[kind] = layout
                return entries
            doubted.append(entries)
        if refusal is not None and not was_read:
            return refusal
        return _agreed(doubted) or self._door.implausible(call)

    def _are_there(self, entries: Sequence[Entry]) -> bool:
        """A driver that hangs on to the dead names some that are gone; one that is misread names hardly any that live."""
        if self._exists is None:
            return True
        return 2 * sum(self._exists(entry.pid) for entry in entries) >= len(entries)

    def _ask(self, call: str, layout: Layout) -> list[Entry] | Absent:
        """The function fills our buffer. It has room for the longest entries, whichever the driver writes."""
        name = call + layout.suffix
        failed: Absent | None = None
        for _ in range(4):  # new ones may come between two calls
            count = ctypes.c_uint(self._room)
            buffer = ctypes.create_string_buffer(self._room * _LONGEST_ENTRY)
            failed = self._door.query_raw(name, self._device, ctypes.byref(count), buffer)
            if failed is None:
                return decode(layout, buffer.raw, min(count.value, self._room))
            if failed.reason != "insufficient_size" or count.value > MAX_PROCESSES:
                return failed
            self._room = count.value + _SLACK
        return failed or self._door.implausible(name)


def _agreed(doubted: list[list[Entry]]) -> list[Entry] | None:
    """Where every layout that could be read names the same pids, they are right, and the processes are gone."""
    if not doubted or len({frozenset(entry.pid for entry in entries) for entries in doubted}) > 1:
        return None
    return doubted[0]


def total_of(values: Iterable[int | None]) -> int | None:
    """The sum, or None where one of them is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


class _Utilization:
    """Samples of the processes' SM use. The driver keeps some a second, and none of a process that did nothing."""

    def __init__(self, door: Door, device: Device) -> None:
        self._door = door
        self._device = device
        self._ways = list(_UTILIZATION)
        self._since_us = 0
        self._latest: dict[int, tuple[int, float]] = {}
        self._listed: set[int] = set()

    def read(self, pids: set[int], wall_s: float) -> dict[int, float]:
        """The SM ratio of these processes; what is not known is left out.

        One that was listed before and has no sample did nothing: 0. The last sample holds for 2 s, so that a look between two
        samples, or one that the driver refuses, shows no gap.
        """
        now_us = int(wall_s * 1e6)
        self._since_us = max(self._since_us, now_us - _HOLD_US) if self._since_us <= now_us + _AHEAD_US else now_us - _HOLD_US
        before, self._listed = self._listed, pids
        if not pids:
            return {}
        is_told = self._ask(now_us)
        self._latest = {pid: sample for pid, sample in self._latest.items() if pid in pids and sample[0] >= now_us - _HOLD_US}
        ratios = dict.fromkeys(pids & before, 0.0) if is_told else {}
        return ratios | {pid: ratio for pid, (_, ratio) in self._latest.items()}

    def _ask(self, now_us: int) -> bool:
        """Takes new samples. False when it cannot be told what the processes do."""
        while self._ways:
            answer = self._door.query(self._ways[0], self._device, self._since_us)
            if isinstance(answer, Absent) and answer.reason == "insufficient_size":
                # Processes came between the binding's two calls, the first of which asks how many there are.
                answer = self._door.query(self._ways[0], self._device, self._since_us)
            if isinstance(answer, Absent) and answer.is_for_good:
                del self._ways[0]
                continue
            if isinstance(answer, Absent):
                return answer.reason == "not_found"  # no new samples
            for sample in answer:
                self._take(sample.pid, sample.timeStamp, sample.smUtil, now_us)
            self._since_us = max([self._since_us, *(time_us for time_us, _ in self._latest.values())])
            return True
        return False

    def _take(self, pid: int, time_us: int, percent: int, now_us: int) -> None:
        """Garbage is dropped: 37100 %, times from the past or the future."""
        if percent > _MAX_PERCENT:
            self._door.implausible(self._ways[0])
        elif self._since_us < time_us <= now_us + _AHEAD_US and time_us >= self._latest.get(pid, (0, 0.0))[0]:
            self._latest[pid] = (time_us, percent / 100)
