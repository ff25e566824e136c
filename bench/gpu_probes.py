"""Would probes on CUDA's exported functions see the calls? Who asks `cuGetProcAddress` instead of the linker may get other code.

torch and every CUDA runtime since 11.3 ask it. A uprobe sits on code, so it fires if what they got is the code that is exported.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from aie_ebpf.cuda_probes import CUDA_UPROBES
from gpu_driver import LIBRARY, Driver
from gpu_elf import Library
from gpu_report import Context

ROWS: Final[dict[str, tuple[str, ...]]] = {row.symbols[0]: row.symbols for row in CUDA_UPROBES if LIBRARY.startswith(row.soname)}
"""Each function of the driver that the agent probes, by its first name: all names at which its calls are seen. Asked for is the
first, without the version at its end."""

_FLAGS: Final = {"default": 0, "legacy_stream": 1, "per_thread_stream": 2}
_FIRST_BYTES: Final = 16
_FOUND: Final = 0


class Given(NamedTuple):
    """What the driver gives for a name, as asked by a program of that CUDA version."""

    cuda: int
    flags: str
    address: int


class Mapping(NamedTuple):
    """A file in this process, and by how much its addresses were moved."""

    shared_object: Library
    bias: int

    def names(self, address: int) -> list[str]:
        """What is exported at an address of this process."""
        return sorted(symbol.full_name for symbol in self.shared_object.by_address.get(address - self.bias, ()))


def probes(context: Context) -> None:
    """For each function that we probe: is what is given what is exported, under a name that is probed, where in the file."""
    context.need_cuda()
    driver = Driver(context.device_index)
    mapping = mapped(driver.shared_object, "cuInit", LIBRARY)
    versions = sorted({11030, 12000, driver.version, *_version_of_torch()})
    rows = {first: _row(driver.shared_object, mapping, names, versions) for first, names in ROWS.items()}
    report = context.report
    report.fact("library", {"path": str(mapping.shared_object.path), "functions": len(mapping.shared_object.symbols)})
    report.fact("asked_as_cuda", versions)
    report.fact("functions", rows)
    exported = {name: row for name, row in rows.items() if row["exported"]}
    report.fact("not_exported", sorted(rows.keys() - exported.keys()))
    unknown = sorted(name for name, row in exported.items() if not row["given"])
    outside = sorted(name for name, row in rows.items() if row["outside"])
    unprobed = {name: row["not_probed"] for name, row in exported.items() if row["not_probed"]}
    report.fact("not_probed", unprobed)
    report.check("cuGetProcAddress knows what is exported", not unknown, ", ".join(unknown) or f"all {len(exported)}")
    report.check(
        "cuGetProcAddress gives exported code", not outside, ", ".join(outside) or f"all that it gives for {len(rows)} names"
    )
    text = (
        "; ".join(f"{name}: {names}" for name, names in unprobed.items()) or f"a probe on each name of {len(rows)} sees each call"
    )
    report.check("what cuGetProcAddress gives is probed", not unprobed, text)


def mapped(loaded: ctypes.CDLL, symbol: str, name: str) -> Mapping:
    """The file behind a loaded library. Raises LookupError where it cannot be found among this process's mappings."""
    address = address_of(loaded, symbol)
    path = _file_at(address or 0)
    if path is None or address is None:
        raise LookupError(f"{name} is not among the files that this process has mapped")
    library = Library(Path(path))
    exported = {found.address for found in library.symbols if found.name == symbol}
    biases = {address - found for found in exported if (address - found) % 4096 == 0}
    if len(biases) != 1:
        raise LookupError(f"{symbol} of {path} lies at none of its exported addresses")
    return Mapping(library, biases.pop())


def address_of(loaded: ctypes.CDLL, symbol: str) -> int | None:
    """What the linker gives for a name; None where there is no such symbol."""
    function = getattr(loaded, symbol, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def _row(loaded: ctypes.CDLL, mapping: Mapping, names: Sequence[str], versions: Iterable[int]) -> dict[str, Any]:
    """`not_probed` is code that is given under exported names at none of which there is a probe, by who gets it."""
    there = {name: address for name in names if (address := address_of(loaded, name)) is not None}
    first = next(iter(there.values()), None)
    given = list(_given(loaded, re.sub(r"_v\d+$", "", names[0]), versions))
    unseen = [one for one in given if one.address not in there.values()]
    return {
        "exported": {name: _hex(mapping.shared_object.offset(address - mapping.bias)) for name, address in there.items()},
        "first_bytes": None if first is None else ctypes.string_at(first, _FIRST_BYTES).hex(),
        "given": {f"{one.cuda} {one.flags}": mapping.names(one.address) for one in given},
        "same": all(one.address == first for one in given),
        "not_probed": {f"{one.cuda} {one.flags}": mapping.names(one.address) for one in unseen if mapping.names(one.address)},
        "outside": {hex(one.address): _file_at(one.address) for one in unseen if not mapping.names(one.address)},
    }


def _hex(offset: int | None) -> str | None:
    return None if offset is None else hex(offset)


def _given(loaded: ctypes.CDLL, base: str, versions: Iterable[int]) -> Iterable[Given]:
    """Nothing for a version in which there was no such function."""
    for cuda in versions:
        for flags, number in _FLAGS.items():
            address, status = ctypes.c_void_p(), ctypes.c_int()
            arguments = (base.encode(), ctypes.byref(address), cuda, ctypes.c_uint64(number))
            if hasattr(loaded, "cuGetProcAddress_v2"):
                code = loaded.cuGetProcAddress_v2(*arguments, ctypes.byref(status))
            else:
                code = loaded.cuGetProcAddress(*arguments)
            if code == 0 and status.value == _FOUND and address.value:
                yield Given(cuda, flags, address.value)


def _file_at(address: int) -> str | None:
    """The file that is mapped there; None for memory of no file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *rest = line.split(maxsplit=5)
        begin, _, end = span.partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return rest[4] if len(rest) > 4 else None
    return None


def _version_of_torch() -> list[int]:
    """The CUDA that torch was built with, as 12040, without importing it; nothing where that is not known."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    found = re.search(r"^cuda\b[^=]*= '(\d+)\.(\d+)", (Path(spec.origin).parent / "version.py").read_text(), re.MULTILINE)
    return [int(found[1]) * 1000 + int(found[2]) * 10] if found else []
