"""Drives simulated GPUs: writes the mapped state file that the stand-in library reads.

A change is made on a private copy and put into the file as a whole, so that no reader sees half of it. Several controllers, in
several processes, may drive one file: each change takes the file's lock.
"""

import ctypes
import fcntl
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from aie_agent.simulate.futex import wake_all
from aie_agent.simulate.layout import CONSTANTS, COUNTERS, FUNCTIONS, READINGS, STRUCTURES, State
from aie_agent.simulate.profiles import MIB, PROFILES
from aie_agent.simulate.scenery import describe_gpu

MAX_GPUS: Final = CONSTANTS["AIE_MAX_GPUS"]
NOT_AVAILABLE: Final = 2**64 - 1
"""What the driver says for a memory size it does not know."""
NO_INSTANCE: Final = 2**32 - 1
FOLLOWS_LOAD: Final = CONSTANTS["AIE_FOLLOWS_LOAD"]
COMPUTE: Final = CONSTANTS["AIE_COMPUTE"]
GRAPHICS: Final = CONSTANTS["AIE_GRAPHICS"]
MPS: Final = CONSTANTS["AIE_MPS"]
XID_EVENT: Final = 0x8
INIT_FUNCTIONS: Final = ("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags")

_FUNCTION_ROWS: Final = {function.name: row for row, function in enumerate(FUNCTIONS)}
_READING_ROWS: Final = {name: row for row, name in enumerate(READINGS)}
_COUNTER_ROWS: Final = {name: row for row, name in enumerate(COUNTERS)}
_CONFIG_OFFSET: Final[int] = State.config.offset
_CONFIG_SIZE: Final[int] = State.config.size
_CHANGE_OFFSET: Final[int] = State.sequence.offset + (4 if sys.byteorder == "big" else 0)
"""Of the half of the sequence that every change changes: who waits for events sleeps on it."""


class Process(NamedTuple):
    """A process that holds memory on a GPU. Percentages follow the GPU's load unless they are given."""

    pid: int
    used_bytes: int
    kinds: int = COMPUTE
    growth_bytes_per_s: float = 0.0
    sm_percent: int = FOLLOWS_LOAD
    memory_percent: int = FOLLOWS_LOAD
    encoder_percent: int = 0
    decoder_percent: int = 0
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE
    sample_age_us: int = 0
    """Its utilisation samples are this old: a driver may hand out stale ones."""


class MigInstance(NamedTuple):
    """A part of a GPU: what ``1g.10gb`` and the like stand for."""

    profile: str
    gpu_instance: int
    memory_total_bytes: int
    multiprocessors: int
    gpu_slices: int = 1
    compute_slices: int = 1
    compute_instance: int = 0
    memory_reserved_bytes: int = 0
    load_ratio: float = 0.0
    copy_engines: int = 1
    decoders: int = 0


class Controller:
    """One state file, and everything that can happen on the host it describes. GPUs are counted from 0 as the file has them."""

    def __init__(self, path: Path, *, temporary: bool = False) -> None:
        """Drives an existing state file; a temporary one is removed by ``close``.

        Raises:
            OSError: the file cannot be opened.
            ValueError: it is no state file of this version.
        """
        self.path = path
        self._temporary = temporary
        self._lock = threading.RLock()
        self._fence = threading.Lock()
        self._fence.acquire()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(self._descriptor).st_size < ctypes.sizeof(State):
                raise ValueError(f"{path} is no state file of simulated GPUs")
            self._map = mmap.mmap(self._descriptor, ctypes.sizeof(State))
        except BaseException:
            os.close(self._descriptor)
            raise
        self._state: Any = State.from_buffer(self._map)
        if (self._state.magic, self._state.version, self._state.size) != _identity():
            self.close()
            raise ValueError(f"{path} is no state file of simulated GPUs, or another version's")

    @classmethod
    def create(cls, path: Path | None = None, gpus: int = 8, profile: str = "H100") -> Self:
        """Makes a state file for so many GPUs of one product, idle and with time running. Without a path it is a temporary one.

        Raises:
            ValueError: not 1 to 16 GPUs, or an unknown product.
            OSError: the file cannot be written.
        """
        if not 1 <= gpus <= MAX_GPUS:
            raise ValueError(f"{gpus} simulated GPUs: 1 to {MAX_GPUS} are possible")
        if profile not in PROFILES:
            raise ValueError(f"no simulated GPU is called {profile!r}: there are {', '.join(PROFILES)}")
        state = State()
        state.magic, state.version, state.size = _identity()
        _describe_host(state.config, gpus)
        for number in range(gpus):
            describe_gpu(state.config.gpus[number], number, PROFILES[profile])
        target = path or _new_temporary_file()
        target.write_bytes(bytes(state))
        return cls(target, temporary=path is None)

    def close(self) -> None:
        """Lets go of the file. Who has mapped it keeps reading it, also when it was a temporary one and is removed."""
        del self._state
        self._map.close()
        os.close(self._descriptor)
        if self._temporary:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- changes ---------------------------------------------------------------------------------------------------------------

    @contextmanager
    def edit(self) -> Iterator[Any]:
        """Gives a copy of ``struct aie_config`` to change; readers see all of the change, or none."""
        with self._lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                address = ctypes.addressof(self._state) + _CONFIG_OFFSET
                draft = STRUCTURES["aie_config"]()
                ctypes.memmove(ctypes.addressof(draft), address, _CONFIG_SIZE)
                yield draft
                self._publish(address, draft)
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _publish(self, address: int, draft: Any) -> None:
        # An odd number left by a writer that was killed becomes even again here.
        self._state.sequence = self._state.sequence | 1
        self._order_stores()
        ctypes.memmove(address, ctypes.addressof(draft), _CONFIG_SIZE)
        self._order_stores()
        self._state.sequence += 1
        wake_all(ctypes.addressof(self._state) + _CHANGE_OFFSET)

    def _order_stores(self) -> None:
        # Releasing a lock orders what was stored before it, taking it what is stored after: together a fence, on any processor.
        self._fence.release()
        self._fence.acquire()

    def set(self, gpu: int, **members: int | float | str) -> None:
        """Sets members of ``struct aie_gpu`` by name.

        Raises:
            AttributeError: there is no such member.
        """
        with self.edit() as config:
            for name, value in members.items():
                getattr(config.gpus[gpu], name)
                setattr(config.gpus[gpu], name, value.encode() if isinstance(value, str) else value)

    def set_load(self, gpu: int, ratio: float, swing_ratio: float = 0.0, period_s: float = 20.0) -> None:
        """Kernels run this share of the time, give or take ``swing_ratio`` over ``period_s``."""
        self.set(gpu, load_ratio=ratio, load_swing_ratio=swing_ratio, load_period_s=period_s)

    def fix(self, gpu: int, reading: str, value: int) -> None:
        """Makes one reading (``readings.def``) stand still at a value, which may be garbage or a sentinel."""
        with self.edit() as config:
            row = config.gpus[gpu].readings[_READING_ROWS[reading]]
            row.value, row.fixed = value, 1

    def unfix(self, gpu: int, reading: str) -> None:
        """Lets a reading follow the model again."""
        with self.edit() as config:
            config.gpus[gpu].readings[_READING_ROWS[reading]].fixed = 0

    def set_processes(self, gpu: int, processes: Sequence[Process]) -> None:
        """Replaces the processes on a GPU.

        Raises:
            ValueError: more than the file has room for (256).
        """
        if len(processes) > CONSTANTS["AIE_MAX_PROCESSES"]:
            raise ValueError(f"{len(processes)} processes on one simulated GPU: {CONSTANTS['AIE_MAX_PROCESSES']} are possible")
        with self.edit() as config:
            now_ns = _now_ns(config)
            for row, process in enumerate(processes):
                entry = config.processes[gpu].entries[row]
                for name, value in process._asdict().items():
                    setattr(entry, name, value)
                entry.since_ns = now_ns
            config.gpus[gpu].process_count = len(processes)

    def throttle(self, gpu: int, reasons: int) -> None:
        """Holds clocks down for these reasons (NVML's bits); 0 lets them up again."""
        self.set(gpu, clock_reasons=reasons)

    def set_link(self, gpu: int, *, width: int | None = None, generation: int | None = None) -> None:
        """Negotiates another PCIe link: fewer lanes or an older generation than the card could."""
        wanted = {"pcie_width": width, "pcie_generation": generation}
        self.set(gpu, **{name: value for name, value in wanted.items() if value is not None})

    def lose(self, gpu: int, lost: bool = True) -> None:
        """The GPU falls off the bus: every call on it says GPU_IS_LOST. ``lost=False`` brings it back."""
        self.set(gpu, lost=int(lost))

    def remove(self, gpu: int, removed: bool = True) -> None:
        """The GPU is not counted at the next nvmlInit, and those after it move up. ``removed=False`` plugs it in again."""
        self.set(gpu, present=int(not removed))

    def set_mig(self, gpu: int, instances: Sequence[MigInstance]) -> None:
        """Cuts a GPU into instances; none turns MIG off."""
        with self.edit() as config:
            target = config.gpus[gpu]
            target.mig_mode = target.mig_pending_mode = int(bool(instances))
            for row in range(CONSTANTS["AIE_MAX_MIG"]):
                target.mig[row].present = 0
            for row, instance in enumerate(instances):
                for name, value in instance._asdict().items():
                    setattr(target.mig[row], name, value.encode() if isinstance(value, str) else value)
                target.mig[row].uuid = f"MIG-51a1a7ed-{gpu:04x}-5000-8000-{instance.gpu_instance:012x}".encode()
                target.mig[row].present = 1

    def push_event(self, gpu: int, kind: int, data: int = 0, gpu_instance: int = NO_INSTANCE) -> None:
        """An NVML event: waiters that registered for this type on this GPU get it. The last 64 are kept."""
        with self.edit() as config:
            entry = config.events[config.events_pushed % CONSTANTS["AIE_MAX_EVENTS"]]
            entry.type, entry.data, entry.slot = kind, data, gpu
            entry.gpu_instance, entry.compute_instance = gpu_instance, NO_INSTANCE
            config.events_pushed += 1

    def push_xid(self, gpu: int, xid: int) -> None:
        """A critical error of that number, as an NVML event."""
        self.push_event(gpu, XID_EVENT, xid)

    # -- faults ----------------------------------------------------------------------------------------------------------------

    def fail(self, function: str, error: int, gpu: int | None = None) -> None:
        """This function returns this error from now on: on one GPU, or always. 0 heals it."""
        with self.edit() as config:
            row = config.functions[_FUNCTION_ROWS[function]]
            if gpu is None:
                row.error = error
            else:
                row.gpu_error[gpu] = error

    def fail_init(self, error: int) -> None:
        """Every way to start a session returns this error: 9 no driver, 18 library and driver differ. 0 heals it."""
        for function in INIT_FUNCTIONS:
            self.fail(function, error)

    def delay(self, function: str, seconds: float, gpu: int | None = None) -> None:
        """This function takes this long: on one GPU, or always. A call that is waiting returns as soon as the delay is lowered."""
        with self.edit() as config:
            row = config.functions[_FUNCTION_ROWS[function]]
            row.delay_us = round(seconds * 1e6)
            row.delay_gpus = 0 if gpu is None else 1 << gpu

    def fail_field(self, field: int, error: int, gpu: int | None = None) -> None:
        """One field of nvmlDeviceGetFieldValues returns this error: on one GPU, or always. 0 heals it.

        Raises:
            ValueError: 16 fields fail already.
        """
        gpus = 0 if gpu is None else 1 << gpu
        with self.edit() as config:
            rows = [(row.field, row.error, row.gpus) for row in config.field_faults[: config.field_fault_count]]
            rows = [row for row in rows if (row[0], row[2]) != (field, gpus)]
            if error:
                rows.append((field, error, gpus))
            if len(rows) > CONSTANTS["AIE_MAX_FIELD_FAULTS"]:
                raise ValueError("no more fields can be made to fail")
            for target, row in zip(config.field_faults, rows, strict=False):
                target.field, target.error, target.gpus = row
            config.field_fault_count = len(rows)

    def fail_gpm(self, metric: int, error: int, gpu: int | None = None) -> None:
        """One metric of nvmlGpmMetricsGet returns this error; see ``fail_field``."""
        self.fail_field(CONSTANTS["AIE_GPM_FAULT"] + metric, error, gpu)

    # -- time and what was read ------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Simulated time stands still: the same question gets the same answer."""
        self._set_clock(frozen=True, scale=1.0, advance_s=0.0)

    def advance(self, seconds: float) -> None:
        """Moves frozen time on."""
        self._set_clock(frozen=True, scale=1.0, advance_s=seconds)

    def run(self, scale: float = 1.0) -> None:
        """Lets time run, so many times as fast as the clock."""
        self._set_clock(frozen=False, scale=scale, advance_s=0.0)

    def _set_clock(self, *, frozen: bool, scale: float, advance_s: float) -> None:
        with self.edit() as config:
            config.origin_simulated_ns = _now_ns(config) + round(advance_s * 1e9)
            config.origin_monotonic_ns = time.monotonic_ns()
            config.frozen, config.time_scale = int(frozen), scale

    def calls(self, function: str) -> int:
        """How often this function was called, by every process that reads this file."""
        return int(self._state.live.calls[_FUNCTION_ROWS[function]])

    def call_counts(self) -> dict[str, int]:
        """Every function that was called, and how often."""
        return {name: int(self._state.live.calls[row]) for name, row in _FUNCTION_ROWS.items() if self._state.live.calls[row]}

    def counter(self, gpu: int, name: str) -> int:
        """A counter (``counters.def``) as it stood when it was last read."""
        return int(self._state.live.gpus[gpu].counters[_COUNTER_ROWS[name]])


def _identity() -> tuple[int, int, int]:
    return CONSTANTS["AIE_STATE_MAGIC"], CONSTANTS["AIE_STATE_VERSION"], ctypes.sizeof(State)


def _new_temporary_file() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="aie-simulated-gpus-")
    os.close(descriptor)
    return Path(name)


def _now_ns(config: Any) -> int:
    if config.frozen:
        return int(config.origin_simulated_ns)
    return int(config.origin_simulated_ns + max(0, time.monotonic_ns() - config.origin_monotonic_ns) * config.time_scale)


def _describe_host(config: Any, gpus: int) -> None:
    config.driver_version = b"580.95.05"
    config.nvml_version = b"13.580.95.05"
    config.cuda_version = 13000
    config.gpu_count = gpus
    config.process_info_bytes = 24
    config.time_scale = 1.0
    config.origin_monotonic_ns = time.monotonic_ns()
    config.epoch_us = time.time_ns() // 1000
    # The real call samples for about 20 ms, each direction apart: whoever calls it in a loop shall feel it here too.
    config.functions[_FUNCTION_ROWS["nvmlDeviceGetPcieThroughput"]].delay_us = 20_000


__all__ = ["COMPUTE", "GRAPHICS", "MIB", "MPS", "NOT_AVAILABLE", "Controller", "MigInstance", "Process"]
