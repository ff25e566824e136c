"""On the agent's word, tells memory that leaks from memory that is retained: gives back what can be, and tells what came of it.

    probe = MemoryProbe(emitter, read=held, idle=lambda: not running)
    probe.look()        # every second or so, on a thread that may wait: where you call AllocatorHook.report

Off unless you make one, and the agent asks only if its configuration says so. An agent that suspects a leak writes a file beside
its socket; there is one thing that it can ask for. Then gc.collect() is called, torch.cuda.empty_cache() while the engine is idle,
and malloc_trim(0) where malloc is glibc's; memory is read before and after each, several times, since requests take and give back
all the while: the least counts. One event tells the agent.

It is asked at most once in `every_s`, whatever the file says, and each request is answered once. The file counts only if nobody but
root, this user or the owner of its directory can have written it.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aie_hooks.emitter import Emitter
from aie_hooks.endpoint import UnixEndpoint
from aie_hooks.process_memory import malloc_trim, physical_bytes
from aie_hooks.reentrant import Turn
from aie_telemetry.memory_probe import (
    EVENT_KIND,
    LEFT_OUT,
    MAX_REQUESTS_BYTES,
    NUMBERS,
    REQUESTS_NAME,
    STEPS,
    ProbeRequest,
    decode_requests,
)

if TYPE_CHECKING:
    from aie_hooks.allocator import AllocatorStats
    from aie_telemetry.api import Event

EVERY_S: Final = 600.0
"""The least time between two probes."""

PATIENCE_S: Final = 60.0
"""For so long an engine that is asked may be busy; then it is done while it works, without `empty_cache`."""

WINDOW_S: Final = 0.2
"""Memory is read over so long, before and after each step: some steps of a model."""

_READINGS: Final = 8
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH

_log = logging.getLogger(__name__)


class _Numbers(NamedTuple):
    """Bytes; None is what is not known."""

    physical: int | None
    allocated: int | None
    reserved: int | None


class _Step(NamedTuple):
    """One step: what it took and left, or why it was not done. `objects` is what the collector found."""

    name: str
    left_out: str | None = None
    seconds: float = 0.0
    after: _Numbers | None = None
    objects: int | None = None


class MemoryProbe:
    """One a process. `look` from one thread at a time: whoever comes while another looks returns at once."""

    def __init__(
        self,
        emitter: Emitter,
        read: Callable[[], AllocatorStats] | None = None,
        *,
        idle: Callable[[], bool] | None = None,
        path: Path | None = None,
        every_s: float = EVERY_S,
        patience_s: float = PATIENCE_S,
        window_s: float = WINDOW_S,
        cuda: Any = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`read` is that of `AllocatorHook`. `idle` tells whether no request runs; without it `empty_cache` is not called,
        and nothing waits. `path` is the agent's file; None means beside the emitter's Unix socket. `window_s` is how long each
        number is read for, 0: once. `cuda` is `torch.cuda` unless told otherwise; torch is not imported for this.

        Raises ValueError for an emitter that sends by UDP and no `path`, and for an `every_s` that is not positive.
        """
        if not every_s > 0:
            raise ValueError(f"every_s must be above 0, not {every_s!r}")
        self._emitter = emitter
        self._read = read
        self._idle = idle
        self._path = _beside_socket(emitter) if path is None else path
        self._every_s = every_s
        self._patience_s = patience_s
        self._window_s = window_s
        self._cuda = cuda
        self._clock = clock
        self._wall_clock = wall_clock
        self._token = secrets.token_hex(4)
        self._turn = Turn()
        self._answered: str | None = None
        self._asked: tuple[str, float] | None = None
        self._next_s = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._requests: list[ProbeRequest] = []
        self._refused = ""  # why the file was passed over, which is said once

    def look(self) -> bool:
        """Whether the agent asked, and was answered now. Costs a `stat` where nobody asks; a probe holds the interpreter for as
        long as gc.collect() takes. Never raises."""
        if self._path is None or not self._turn.take():
            return False
        try:
            request = self._request(self._path)
            return request is not None and self._is_time(request) and self._answer(request)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not become the engine's, and it is logged
            self._emitter.failed("the memory probe", error)
            return False
        finally:
            self._turn.leave()

    def _request(self, path: Path) -> ProbeRequest | None:
        """What is asked of this engine now, and was not answered."""
        try:
            identity = _identity(path)
            if identity != self._seen:
                self._seen = identity
                self._requests = decode_requests(_content(path))
        except FileNotFoundError:
            self._seen, self._requests = None, []
            return None
        except (OSError, ValueError) as error:
            self._requests = []
            if str(error) != self._refused:
                _log.warning("memory probe: %s is passed over: %s", path, error)
            self._refused = str(error)
            return None
        now_s = self._wall_clock()
        mine = (each for each in self._requests if each.engine == self._emitter.engine and each.expires_s > now_s)
        return next((each for each in mine if each.id != self._answered), None)

    def _is_time(self, request: ProbeRequest) -> bool:
        """Not sooner than `every_s` after the last one; at an idle moment, which is waited for within reason: what requests hold
        and give back is none of what is asked for."""
        now_s = self._clock()
        if now_s < self._next_s:
            return False
        if self._asked is None or self._asked[0] != request.id:
            self._asked = (request.id, now_s)
        is_patient = self._idle is not None and now_s - self._asked[1] < self._patience_s
        return not is_patient or self._is_idle()

    def _answer(self, request: ProbeRequest) -> bool:
        self._next_s = self._clock() + self._every_s
        device, before = self._numbers()
        steps = [self._done(name) for name in STEPS]
        _log.info("memory probe, as the agent asked: %s", _summary(before, steps))
        is_sent = self._emitter.event(self._event(request, device, before, steps))
        if is_sent:  # else the next time that it may
            self._answered = request.id
        return is_sent

    def _done(self, name: str) -> _Step:
        """Does one step; how long it took is how long the engine was held up by it, at most."""
        reason = self._reason_against(name)
        if reason is not None:
            return _Step(name, left_out=reason)
        began_s = time.perf_counter()
        try:
            objects = self._do(name)
        except Exception as error:  # noqa: BLE001 - what an engine's finalizers or CUDA raise; told, and the next step is worth having
            self._emitter.failed(f"the memory probe's {name}", error)
            return _Step(name, left_out="failed")
        seconds = time.perf_counter() - began_s
        if name == "malloc_trim" and objects is None:
            return _Step(name, left_out="absent")
        return _Step(name, None, seconds, self._numbers()[1], objects if name == "gc_collect" else None)

    def _do(self, name: str) -> int | None:
        if name == "gc_collect":
            return gc.collect()
        if name == "empty_cache":
            self._usable_cuda().empty_cache()
            return None
        return malloc_trim()

    def _reason_against(self, name: str) -> str | None:
        if name != "empty_cache":
            return None
        rules = (
            (self._usable_cuda() is None, "absent"),
            (self._idle is None, "not_allowed"),
            (not self._is_idle(), "busy"),
        )
        return next((reason for applies, reason in rules if applies), None)

    def _is_idle(self) -> bool:
        return self._idle is not None and self._idle()

    def _usable_cuda(self) -> Any:
        """`torch.cuda` where it is in use; nothing is imported or initialised to find out."""
        cuda = self._cuda if self._cuda is not None else getattr(sys.modules.get("torch"), "cuda", None)
        return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None

    def _numbers(self) -> tuple[str | None, _Numbers]:
        """The device whose allocator tells, and the least of several readings of each number."""
        readings = [self._reading()]
        for _ in range(_READINGS - 1 if self._window_s > 0 else 0):
            time.sleep(self._window_s / (_READINGS - 1))
            readings.append(self._reading())
        least = (
            min((each for each in column if each is not None), default=None)
            for column in zip(*(n for _, n in readings), strict=True)
        )
        return readings[-1][0], _Numbers(*least)

    def _reading(self) -> tuple[str | None, _Numbers]:
        stats = None if self._read is None else self._stats(self._read)
        if stats is None:
            return None, _Numbers(physical_bytes(), None, None)
        return stats.device, _Numbers(physical_bytes(), stats.allocated_bytes, stats.reserved_bytes)

    def _stats(self, read: Callable[[], AllocatorStats]) -> AllocatorStats | None:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - the engine's reader may raise anything; physical memory is worth telling
            self._emitter.failed("the memory probe's look at the allocator", error)
            return None

    def _event(self, request: ProbeRequest, device: str | None, before: _Numbers, steps: list[_Step]) -> Event:
        from aie_telemetry.api import Event  # here, because it is needed when the agent asks and not before

        facts: dict[str, float | str | None] = {"id": request.id, "process": f"{os.getpid()}.{self._token}", "device": device}
        facts |= _as_details("", before)
        for step in steps:
            if step.left_out is not None:
                facts[step.name] = step.left_out
                continue
            facts[f"{step.name}_seconds"] = round(step.seconds, 6)
            facts[f"{step.name}_objects"] = step.objects
            facts |= _as_details(f"{step.name}_", step.after)
        details = {key: value for key, value in facts.items() if value is not None}
        return Event(
            time_s=self._wall_clock(),
            kind=EVENT_KIND,
            engine=self._emitter.engine,
            summary=_summary(before, steps),
            details=details,
        )


def _beside_socket(emitter: Emitter) -> Path | None:
    """The agent's file; None for an emitter that is off: there is no agent then."""
    if emitter.endpoint is None:
        return None
    if not isinstance(emitter.endpoint, UnixEndpoint):
        raise ValueError(f"a memory probe needs the path of the agent's file: {emitter.endpoint} is no socket that it lies beside")
    return Path(emitter.endpoint.path).with_name(REQUESTS_NAME)


def _identity(path: Path) -> tuple[int, int, int]:
    status = os.stat(path, follow_symlinks=False)
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _content(path: Path) -> bytes:
    """The file's bytes. Raises OSError, and ValueError for a file that somebody else may have written."""
    directory = os.stat(path.parent)
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no file")
        if status.st_uid not in (0, os.geteuid(), directory.st_uid) or status.st_mode & _WRITABLE_BY_OTHERS:
            raise ValueError("others than the agent may have written it")
        if status.st_size > MAX_REQUESTS_BYTES:
            raise ValueError(f"{status.st_size} bytes, at most {MAX_REQUESTS_BYTES}")
        return os.read(file, MAX_REQUESTS_BYTES)
    finally:
        os.close(file)


def _as_details(prefix: str, numbers: _Numbers | None) -> dict[str, float | str | None]:
    return {} if numbers is None else {f"{prefix}{name}_bytes": getattr(numbers, name) for name in NUMBERS}


def _summary(before: _Numbers, steps: list[_Step]) -> str:
    """For people, in MB of physical memory."""
    told, last = [], before
    for step in steps:
        if step.left_out is not None:
            if step.left_out != "absent":
                told.append(f"{step.name} was left out: {LEFT_OUT[step.left_out]}")
        elif step.after is not None:
            given = None if last.physical is None or step.after.physical is None else last.physical - step.after.physical
            megabytes = "" if given is None else f" gave back {given / 1e6:.0f} MB"
            told.append(f"{step.name}{megabytes} in {step.seconds:.3f} s")
            last = step.after
    return "asked to give back what memory it retains: " + "; ".join(told)
