"""The layout of the state file, read from the C header that describes it.

``csrc/state.h`` is the one description. Its grammar is small (see its head), so that ctypes classes can be made from it here, and
nothing has to be written twice. The lists of functions, readings and counters are read from their ``.def`` files in the same way.
"""

import ctypes
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

CSRC: Final = Path(__file__).with_name("csrc")

_SCALARS: Final[dict[str, Any]] = {
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
    "char": ctypes.c_char,
}
_DEFINE = re.compile(r"^#define (AIE_\w+) (\w+)\b", re.MULTILINE)
_STRUCT = re.compile(r"^struct (\w+) \{$(.*?)^\};$", re.MULTILINE | re.DOTALL)
_MEMBER = re.compile(r"^    (?:struct )?(\w+) (\w+)(?:\[(\w+)\])?;", re.MULTILINE)
_FUNCTION = re.compile(r"^FUNCTION\((\w+), (\d+), (\w+)\)$", re.MULTILINE)


class Function(NamedTuple):
    """A function of NVML that the stand-in has."""

    name: str
    since: int
    """The first driver branch that exports it."""
    scope: str
    """``SYSTEM``, ``GPU`` or ``ANY`` (a GPU or a MIG instance)."""


def _constants(header: str) -> dict[str, int]:
    return {name: int(value, 0) for name, value in _DEFINE.findall(header)}


def _structures(header: str, constants: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = dict(_SCALARS)
    for name, body in _STRUCT.findall(header):
        fields = []
        for kind, member, size in _MEMBER.findall(body):
            length = constants[size] if size in constants else int(size or "0", 0)
            fields.append((member, found[kind] * length if length else found[kind]))
        found[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return found


def _names(file: str, macro: str) -> tuple[str, ...]:
    return tuple(re.findall(rf"^{macro}\((\w+)", (CSRC / file).read_text(), re.MULTILINE))


_HEADER = (CSRC / "state.h").read_text()
CONSTANTS: Final = _constants(_HEADER)
"""Every ``AIE_`` number of the header."""
STRUCTURES: Final = _structures(_HEADER, CONSTANTS)
"""ctypes classes by the name of the C struct."""
State: Final[Any] = STRUCTURES["aie_state"]
FUNCTIONS: Final = tuple(
    Function(name, int(since), scope) for name, since, scope in _FUNCTION.findall((CSRC / "functions.def").read_text())
)
READINGS: Final = _names("readings.def", "READING")
COUNTERS: Final = _names("counters.def", "(?:COUNTER|VIOLATION)")
