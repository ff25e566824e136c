"""NVML's session: opened once and kept, given back when something is to be done to the driver."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from aie_agent.sources.nvml import shared_object
from aie_agent.sources.nvml.devices import simulated
from aie_agent.sources.nvml.door import Absent, Door
from aie_agent.sources.nvml.gpu import GpuReader, Options
from aie_agent.sources.nvml.memory import Memory
from aie_agent.sources.nvml.unreached import GPU_FOLDERS, may_be_lost
from aie_telemetry.extras import install

MAX_GPUS: Final = 64

_NO_BINDING: Final = f"nvidia-ml-py is not installed: {install('agent')}"
_REASONS: Final = {
    "library_not_found": "no NVIDIA driver: there is no libnvidia-ml.so.1 (in a container: start it with the NVIDIA runtime)",
    "driver_not_loaded": "the NVIDIA driver is not loaded: load it with modprobe nvidia, or install it",
    "lib_rm_version_mismatch": "driver and library are of different versions, after an update under a running host: reload the"
    " kernel modules (sudo rmmod nvidia_uvm nvidia, then modprobe nvidia) or reboot",
    "no_permission": "no permission to talk to the NVIDIA driver: /dev/nvidiactl must be readable and writable for this user",
    "not_supported": "this libnvidia-ml.so.1 has no nvmlInit: it is too old, or not NVIDIA's",
}
_MISMATCH: Final = "lib_rm_version_mismatch"
_STILL_LOADED: Final = "; something else in this process holds the library of old: restart the agent after that"
_GPU_FOLDERS: Final = GPU_FOLDERS


class SessionError(Exception):
    """NVML cannot be used now: one line that says why, and what to do."""


class Session:
    """All of its methods but `door` and `gpus` call NVML: they run on a thread of `lanes.py`.

    `load` imports the binding; another may be given. The rest is of `Options`, `exists` asked for at every `open`.
    """

    def __init__(
        self,
        host_memory: Callable[[], Memory | None],
        load: Callable[[], Any] | None = None,
        exists: Callable[[], Callable[[int], bool] | None] = lambda: None,
        gpm: bool = True,
        period_s: float = 1.0,
    ) -> None:
        self.door: Door | None = None
        self.gpus: list[GpuReader] = []
        self.is_open = False
        self.driver = ""
        self.is_simulated = False
        self.error: str | None = None
        """Why the last `open` failed."""
        self.may_be_lost: dict[str, str] = {}
        """Models by bus id of GPUs that the driver serves and we may use: NVML counts fewer GPUs than there are. Those that it does
        have are among them, since who they are is found out later."""
        self._load = load or _import
        self._options: Callable[[], Options] = lambda: Options(host_memory, exists(), gpm, period_s)
        self._seen: tuple[str, ...] = ()

    def open(self) -> None:
        """Opens the session and counts the GPUs; `error` says why it could not."""
        try:
            self._open()
            self.error = None
        except SessionError as error:
            self.error = str(error)
            self._unload()

    def _open(self) -> None:
        if self.door is None:
            try:
                self.door = Door(self._load())
            except ImportError as error:
                raise SessionError(_NO_BINDING) from error
        door = self.door
        door.session_over = None
        was_loaded = shared_object.is_loaded()
        started = door.query("nvmlInit", None)
        if isinstance(started, Absent):
            reason = _REASONS.get(started.reason, f"NVML does not start: {started.reason}")
            raise SessionError(reason + _STILL_LOADED if started.reason == _MISMATCH and was_loaded else reason)
        self.is_open = True
        count = door.query("nvmlDeviceGetCount", None)
        if isinstance(count, Absent):
            self.close()
            raise SessionError(f"NVML does not count its GPUs: {count.reason}")
        version = door.query("nvmlSystemGetDriverVersion", None)
        self.driver = "" if isinstance(version, Absent) else version
        self.is_simulated = simulated(door.nvml)
        options = self._options()
        self.gpus = [GpuReader(door, index, options) for index in range(min(count, MAX_GPUS))]
        self._seen = on_host()
        has_fewer = len(self._seen) > len(self.gpus) and not self.is_simulated
        self.may_be_lost = may_be_lost(_GPU_FOLDERS, self._seen) if has_fewer else {}

    def is_outdated(self) -> bool:
        """Whether the host has other GPUs than when the session was opened, or the session ended by itself."""
        assert self.door is not None
        if self.door.session_over is not None:
            return True
        count = self.door.query("nvmlDeviceGetCount", None)
        return (not isinstance(count, Absent) and min(count, MAX_GPUS) != len(self.gpus)) or on_host() != self._seen

    def close(self) -> None:
        """Gives everything back, the library too, so that the driver can be changed. No other thread may be inside NVML."""
        if self.door is None or not self.is_open:
            return
        for gpu in self.gpus:
            gpu.close()
        self.gpus = []
        self.door.query("nvmlShutdown", None)
        self.is_open = False
        self._unload()

    def _unload(self) -> None:
        if self.door is not None:
            shared_object.unload(self.door.nvml)


def _import() -> Any:
    return importlib.import_module("pynvml")


def on_host() -> tuple[str, ...]:
    """GPUs that the driver serves, by the name of their folder in /proc: also those that NVML does not reach."""
    try:
        return tuple(sorted(path.name for path in _GPU_FOLDERS.iterdir()))
    except OSError:
        return ()
