"""XIDs as events of NVML: one event set with all GPUs, and one thread that waits on it.

A lost GPU makes the wait fail for all. Then the set is made anew without the GPUs that are gone, and the thread goes on. A handle
that is gone is not asked again: a GPU that comes back has a new one, and whoever knows that makes a new object.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aie_agent.sources.nvml.bus_id import bus_id
from aie_agent.sources.nvml.door import Absent, Device, Door, down_reason, is_gone
from aie_agent.sources.nvml.xid import XidReport

log = logging.getLogger(__name__)

SOURCE: Final = "nvml_events"
_XID_EVENT: Final = 0x8
_TIMEOUT: Final = 10
_NOT_SUPPORTED, _FUNCTION_NOT_FOUND = 3, 13
_NEVER: Final = frozenset({_NOT_SUPPORTED, _FUNCTION_NOT_FOUND})  # asking again is of no use
_WAIT: Final = "nvmlEventSetWait_v2"
_REGISTER: Final = "nvmlDeviceRegisterEvents"
_HANGS: Final = "a call to NVML hangs"
_STUCK_AFTER_S: Final = 10.0
_RETRY_S: Final = 1.0
_REGISTER_AGAIN_S: Final = 10.0
_MOST_LEFT: Final = 256
# A wait in the library ends after `wait_ms`; so much longer, and the call hangs.
_STOP_PATIENCE_S: Final = 1.0


class XidEvents:
    """Waits for XIDs of the GPUs that `watch` names, until `stop`. `take` gives what came since the last time.

    One session of NVML, one object: whoever ends the session calls `stop` first, since the event set belongs to it.
    """

    def __init__(self, door: Door, devices: Mapping[str, Device], clock: Callable[[], float], wait_ms: int = 500) -> None:
        """`devices` by bus id. Starts the thread at once."""
        self._door = door
        self._devices = dict(devices)
        self._clock = clock
        self._wait_ms = wait_ms
        self._event = door.nvml.c_nvmlEventData_t()  # of the last wait; the thread's own
        self._came: deque[XidReport] = deque(maxlen=4096)
        self._buses = {_address(device.handle): bus for bus, device in devices.items()}
        self._stopping = threading.Event()
        self._is_stuck = False
        self._alive_s = time.monotonic()
        self._problem: str | None = "the first wait has not begun"
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why no events come, in a few words; None while they do."""
        if self._is_stuck and self._thread.is_alive():
            return _HANGS
        if not self._thread.is_alive():
            return self._problem or "the thread that waits has ended"
        if time.monotonic() - self._alive_s > _STUCK_AFTER_S + self._wait_ms / 1e3:
            return _HANGS
        return self._problem

    def take(self) -> list[XidReport]:
        """The reports since the last call, the oldest first."""
        return [self._came.popleft() for _ in range(len(self._came))]

    def stop(self, patience_s: float = _STOP_PATIENCE_S) -> bool:
        """Ends the thread, which then frees the event set. False while it does not end (a call hangs): then NVML must not be shut
        down. It is waited for only once; whoever asks later gets the answer at once."""
        self._stopping.set()
        self._thread.join(0.0 if self._is_stuck else patience_s + self._wait_ms / 1e3)
        self._is_stuck = self._thread.is_alive()
        return not self._is_stuck

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                again = self._one_set()
            except Exception as error:  # a bug here must be seen, and must not end the events for ever
                if self._problem is None or not self._problem.startswith("internal error"):
                    log.exception("waiting for events of NVML failed")
                self._problem, again = f"internal error: {type(error).__name__}: {error}", True
            self._alive_s = time.monotonic()
            if not again:
                return
            # What comes while there is no set is lost: one that was good until now is replaced at once.
            self._stopping.wait(max(_RETRY_S - (self._alive_s - began_s), 0.0))

    def _one_set(self) -> bool:
        """Makes an event set and waits on it until that fails. Returns whether to try again."""
        events = self._door.query("nvmlEventSetCreate", None)
        if isinstance(events, Absent):
            self._problem = f"no event set: {events.reason}"
            return not events.is_for_good
        try:
            return self._wait_on(events)
        finally:
            self._door.query("nvmlEventSetFree", None, events)

    def _wait_on(self, events: Any) -> bool:
        missing = self._register(self._devices, events)
        if len(missing) == len(self._devices):
            reasons = sorted({refusal.reason for refusal in missing.values()})
            self._problem = f"no GPU gives events: {', '.join(reasons) or 'there is none'}"
            return any(not refusal.is_for_good for refusal in missing.values())
        self._problem = None
        next_s = time.monotonic() + _REGISTER_AGAIN_S
        while not self._stopping.is_set():
            code = self._wait_once(events, self._wait_ms)
            self._alive_s = time.monotonic()
            if code not in (0, _TIMEOUT):
                self._door.count_error(_WAIT, self._door.name_of(code))
                self._problem = f"waiting failed: {self._door.name_of(code)}"
                return code not in _NEVER
            if missing and self._alive_s >= next_s:
                next_s = self._alive_s + _REGISTER_AGAIN_S
                missing = self._register([bus for bus, refusal in missing.items() if not refusal.is_for_good], events)
        self._take_the_rest(events)
        return False

    def _take_the_rest(self, events: Any) -> None:
        """What has come goes with its event set: a GPU that is lost ends the session, and its XID says why it was."""
        for _ in range(_MOST_LEFT):
            if self._wait_once(events, 0) != 0:
                return

    def _register(self, buses: Iterable[str], events: Any) -> dict[str, Absent]:
        """Registers these GPUs, and returns those that refused.

        Not as a question to the device: the door would remember a refusal for this event set, which is another each time.
        """
        refusals = {}
        for bus in buses:
            device = self._devices[bus]
            answer: Any = Absent(device.gone or "no_handle")
            if device.gone is None and device.handle:
                answer = self._door.query(_REGISTER, None, device.handle, _XID_EVENT, events)
            if isinstance(answer, Absent):
                refusals[bus] = answer
                if is_gone(answer):
                    device.gone = down_reason(answer)  # whoever reads it asks for a new handle, and comes with a new object
        return refusals

    def _wait_once(self, events: Any, wait_ms: int) -> int:
        """One wait, past the door: a wait that ends without an event is no error, and its time is not the agent's. And past the
        binding, which makes an exception of each such end.

        Returns NVML's code.
        """
        wait = getattr(self._door.nvml.nvmlLib, _WAIT, None)
        event = self._event
        code = _FUNCTION_NOT_FOUND if wait is None else int(wait(events, ctypes.byref(event), ctypes.c_uint(wait_ms)))
        if code == 0 and event.eventType & _XID_EVENT:
            bus = self._bus_of(event.device)
            if bus is not None:
                self._came.append(XidReport(bus, int(event.eventData), self._clock(), SOURCE))
        return code

    def _bus_of(self, handle: Any) -> str | None:
        """Looked up, not asked: after an XID 79 the GPU does not answer any more."""
        bus = self._buses.get(_address(handle))
        if bus is None:
            info = self._door.query("nvmlDeviceGetPciInfo", None, handle)
            if not isinstance(info, Absent):
                text = info.busId.decode("ascii", "replace") if isinstance(info.busId, bytes) else str(info.busId)
                bus = bus_id(text)
        if bus is None:
            self._door.count_error(_WAIT, "unknown_device")
        return bus


def _address(handle: Any) -> int | None:
    """A handle is a pointer: two objects of it are one GPU when they point to the same place."""
    return ctypes.cast(handle, ctypes.c_void_p).value if handle else None
