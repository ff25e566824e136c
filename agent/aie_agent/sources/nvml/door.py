"""The one door to NVML: every call goes through `Door.query`.

It filters what is no value (errors, NULL, sentinels), remembers what a GPU does not support, measures each call, and notes when a
GPU or the whole session is gone. It never raises for what NVML answers: an absent value is an `Absent` with its reason, and never
0.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aie_agent.sources.nvml.plain_calls import PlainCall

# NVML's return codes that are treated apart. The names of all are taken from the library's binding.
_NOT_SUPPORTED, _FUNCTION_NOT_FOUND = 3, 13
_FOR_GOOD: Final = frozenset({_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, 22, 26})  # and: ECC on a virtual GPU, deprecated
_GONE: Final = {15: "lost", 16: "reset_required", 28: "lost"}  # GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND
# What is an answer, and no failure: MIG instances are numbered with gaps, an idle GPU has no samples, a list has grown.
_NOT_FOUND, _INSUFFICIENT_SIZE = 6, 7
_NORMAL: Final = frozenset(
    {
        ("nvmlDeviceGetMigDeviceHandleByIndex", _NOT_FOUND),
        ("nvmlDeviceGetProcessUtilization", _NOT_FOUND),
        ("nvmlDeviceGetProcessesUtilizationInfo", _NOT_FOUND),
        *(
            (f"nvmlDeviceGet{kind}RunningProcesses{version}", _INSUFFICIENT_SIZE)
            for kind in ("Compute", "Graphics", "MPSCompute")
            for version in ("", "_v2", "_v3")
        ),
        ("nvmlDeviceGetProcessUtilization", _INSUFFICIENT_SIZE),
        ("nvmlDeviceGetProcessesUtilizationInfo", _INSUFFICIENT_SIZE),
    }
)
_DOWN: Final = {"gpu_is_lost": "lost", "gpu_not_found": "lost", "lost": "lost", "reset_required": "reset_required"}
_SESSION_OVER: Final = frozenset({1, 9, 18})  # uninitialized, driver not loaded, library and driver disagree

# What stands for "no value" among whole numbers: all bits set in 32 and 64 bits, -1, and DCGM's blanks, which some drivers pass on.
_SENTINELS: Final = frozenset(
    {-1, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, *range(0x7FFFFFF0, 0x7FFFFFF4), *range(0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF4)}
)
_FLOAT_SENTINEL_FROM: Final = 140737488355328.0  # 2**47: DCGM's blank among floating-point numbers


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no value, for this reason: not_supported, no_handle, lost, a code's name, implausible, ..."""

    reason: str

    @property
    def is_for_good(self) -> bool:
        """Whether asking again would give the same until the session is opened anew."""
        return self.reason == NOT_SUPPORTED.reason


NOT_SUPPORTED: Final = Absent("not_supported")
SENTINEL: Final = Absent("sentinel")
IMPLAUSIBLE: Final = Absent("implausible")
_NO_HANDLE: Final = Absent("no_handle")


@dataclass(slots=True, eq=False)
class Device:
    """A GPU, or a MIG instance of one, of the session that is open. `gone` is why it must not be asked any more."""

    index: int
    handle: Any
    gone: str | None = None
    unsupported: set[Hashable] = field(default_factory=set)


def error_names(nvml: Any) -> dict[int, str]:
    """NVML's codes by number, as `aie_agent_nvml_errors_total{code}` has them: GPU_IS_LOST becomes gpu_is_lost."""
    prefix = "NVML_ERROR_"
    return {getattr(nvml, name): name.removeprefix(prefix).lower() for name in dir(nvml) if name.startswith(prefix)}


def number(value: object) -> float | int | Absent:
    """A value as a number, or `Absent` where it stands for none."""
    if isinstance(value, (bool, int)):
        return SENTINEL if value in _SENTINELS else value
    if isinstance(value, float):
        return value if math.isfinite(value) and value < _FLOAT_SENTINEL_FROM else SENTINEL
    return SENTINEL


class Door:
    """Calls NVML's functions, by name, from whichever thread. `nvml` is the module `pynvml`, or one of its shape."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.session_over: str | None = None
        """The code's name once a call told that the session does not live any more: open it anew."""
        self._names = error_names(nvml)
        self._mismatch: tuple[type[Exception], ...] = tuple(filter(None, (getattr(nvml, "NVMLLibraryMismatchError", None),)))
        self._lock = threading.Lock()
        self._measures: dict[str, list[float]] = {}
        self._errors: Counter[tuple[str, str]] = Counter()

    def query(self, call: str, gpu: Device | None, *args: Any) -> Any:
        """What the function `call` returns for a GPU (None: it concerns none) and these arguments, or an `Absent`.

        A GPU that is gone, or that has no handle, is never passed on. Numbers inside what is returned still go through `number`.
        """
        if gpu is not None:
            refused = _refused(call, gpu, args)
            if refused is not None:
                return refused
            args = (gpu.handle, *args)
        return self._run(call, gpu, args, getattr(self.nvml, call, None))

    def query_raw(self, call: str, gpu: Device | None, *args: Any) -> Absent | None:
        """As `query`, for a function of the C library itself, which fills what is passed to it: None where it did."""
        refused = None if gpu is None else _refused(call, gpu, ())
        if refused is not None:
            return refused
        handle = () if gpu is None else (gpu.handle,)
        answer = self._run(call, gpu, (*handle, *args), getattr(self.nvml.nvmlLib, call, None))
        if isinstance(answer, Absent):
            return answer
        return None if answer == 0 else self._failed(call, gpu, handle, answer)

    def query_all(self, gpu: Device, calls: Sequence[PlainCall]) -> list[Any]:
        """As `query_raw` for one call after the other: the numbers that each filled in, or an `Absent`. After one that says that
        the GPU is gone no other is made. What the GPU is known to lack must not be among them."""
        answers: list[Any] = []
        times_s = [time.perf_counter()]
        for call in calls if gpu.handle else ():
            if gpu.gone is not None:
                break
            function = getattr(self.nvml.nvmlLib, call.name, None)
            code = _FUNCTION_NOT_FOUND if function is None else function(gpu.handle, *call.passed)
            answers.append(self.code(call.name, gpu, (call.name, call.args), code) if code else call.numbers())
            times_s.append(time.perf_counter())
        with self._lock:
            for call, (began_s, ended_s) in zip(calls, itertools.pairwise(times_s), strict=False):
                self._add(call.name, ended_s - began_s)
        missing = _NO_HANDLE if gpu.gone is None else Absent(gpu.gone)
        return answers + [missing] * (len(calls) - len(answers))

    def _run(self, call: str, gpu: Device | None, args: tuple[Any, ...], function: Any) -> Any:
        if function is None:
            return self._failed(call, gpu, args, _FUNCTION_NOT_FOUND)
        began_s = time.perf_counter()
        try:
            return function(*args)
        except self.nvml.NVMLError as error:
            return self._failed(call, gpu, args, error.value)
        except self._mismatch:  # the binding's own word for a symbol that this library does not have
            return self._failed(call, gpu, args, _FUNCTION_NOT_FOUND)
        except (UnicodeDecodeError, ValueError) as error:  # text that is none, arguments that this version of the binding refuses
            self.count_error(call, type(error).__name__)
            return Absent("bad_answer")
        finally:
            self._measured(call, time.perf_counter() - began_s)

    def code(self, call: str, gpu: Device, key: Hashable, code: int) -> Absent:
        """What a code means that came inside an answer, as field values and GPM have them; `key` is what is not asked again."""
        if code in _FOR_GOOD:
            gpu.unsupported.add(key)
            return NOT_SUPPORTED
        return self._judge(call, gpu, code)

    def implausible(self, call: str) -> Absent:
        """Notes that an answer cannot be true."""
        self.count_error(call, IMPLAUSIBLE.reason)
        return IMPLAUSIBLE

    def count_error(self, call: str, code: str) -> None:
        """One more in `aie_agent_nvml_errors_total`."""
        with self._lock:
            self._errors[call, code] += 1

    def seconds(self) -> dict[str, float]:
        """Time spent in each function, since the agent started."""
        with self._lock:
            return {call: seconds for call, (_, seconds) in self._measures.items()}

    def errors(self) -> dict[tuple[str, str], int]:
        """Calls that failed, by function and code's name, since the agent started."""
        with self._lock:
            return dict(self._errors)

    def calls(self) -> dict[str, int]:
        """Calls of each function, since the agent started."""
        with self._lock:
            return {call: int(calls) for call, (calls, _) in self._measures.items()}

    def name_of(self, code: int) -> str:
        """A code's name, such as gpu_is_lost."""
        return self._names.get(code, f"code_{code}")

    def _measured(self, call: str, seconds: float) -> None:
        with self._lock:
            self._add(call, seconds)

    def _add(self, call: str, seconds: float) -> None:
        measure = self._measures.get(call)
        if measure is None:
            measure = self._measures[call] = [0.0, 0.0]
        measure[0] += 1
        measure[1] += seconds

    def _failed(self, call: str, gpu: Device | None, args: tuple[Any, ...], code: int) -> Absent:
        if gpu is not None:
            return self.code(call, gpu, _key(call, args[1:]), code)
        return NOT_SUPPORTED if code in _FOR_GOOD else self._judge(call, None, code)

    def _judge(self, call: str, gpu: Device | None, code: int) -> Absent:
        name = self.name_of(code)
        if (call, code) in _NORMAL:
            return Absent(name)
        self.count_error(call, name)
        if gpu is not None and code in _GONE:
            gpu.gone = _GONE[code]
            return Absent(gpu.gone)
        if code in _SESSION_OVER:
            self.session_over = name
        return Absent(name)


def _refused(call: str, gpu: Device, args: tuple[Any, ...]) -> Absent | None:
    """Why this call is not made: nothing that is gone, NULL, or known not to work is passed on."""
    if gpu.gone is not None:
        return Absent(gpu.gone)
    if not gpu.handle:
        return _NO_HANDLE
    try:
        known = (call, args) in gpu.unsupported
    except TypeError:  # what the library fills has no hash
        known = _key(call, args) in gpu.unsupported
    return NOT_SUPPORTED if known else None


def _key(call: str, args: tuple[Any, ...]) -> Hashable:
    """What is remembered as not supported: the function with its numbers. Buffers and samples are other ones each time."""
    return call, tuple(arg for arg in args if isinstance(arg, int))


def down_reason(absent: Absent) -> str:
    """`aie_gpu_up{reason}` of a GPU of which this is all that could be learned."""
    return _DOWN.get(absent.reason, "error")


def is_gone(absent: Absent) -> bool:
    """Whether this answer says that the GPU is not there any more: its handle is of no use."""
    return absent.reason in _DOWN
