"""Which CUDA a process has loaded: the driver's library, which every runtime calls and which is what we probe, and the runtimes.

A runtime that is linked statically is the rule outside Python packages (nvcc's default). It hides nothing from probes on the
driver; it is said, so that nobody looks for calls of libcudart that cannot be there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aie_ebpf.elf import Elf, ElfError
from aie_ebpf.elf_cache import ElfCache
from aie_ebpf.mappings import PROC, MappedFile, access_path, mapped_files

_DRIVER: Final = re.compile(r"libcuda\.so")
# As installed, and as packages bundle it with a hash in the name: libcudart-d0da41ae.so.11.0.
_RUNTIME: Final = re.compile(r"libcudart(-[0-9a-f]+)?\.so")
# Code for the GPU: such a file calls the runtime's registration when it is loaded.
_FATBIN_SECTIONS: Final = frozenset({".nv_fatbin", "__nv_relfatbin"})
_REGISTRATION: Final = "__cudaRegisterFatBinary"
_CALL: Final = "cudaMalloc"
# A process of PyTorch has some hundred.
_MOST_FILES: Final = 1000
_MOST_NAMES: Final = 4


class CudaLibraries(NamedTuple):
    """The files of one process. `driver` is libcuda.so.1, `runtimes` are libcudart of whatever version, `static_runtime_in` holds a
    runtime of its own. `files` are all that the process executes code of, `unread` those of them that could not be looked at."""

    files: tuple[MappedFile, ...] = ()
    driver: MappedFile | None = None
    runtimes: tuple[MappedFile, ...] = ()
    static_runtime_in: tuple[MappedFile, ...] = ()
    unread: tuple[str, ...] = ()

    def sentences(self) -> tuple[str, ...]:
        """What people should know of the CUDA in this process."""
        return tuple(_sentences(self))


def cuda_libraries(tgid: int, proc: Path = PROC, cache: ElfCache | None = None) -> CudaLibraries:
    """Looks at the files that a process has mapped; inside them only where the driver is among them, since others use no CUDA."""
    files = mapped_files(tgid, proc)
    driver = next((file for file in files if _DRIVER.match(file.name)), None)
    runtimes = tuple(file for file in files if _RUNTIME.match(file.name))
    if driver is None:
        return CudaLibraries(files, None, runtimes)
    cache = cache or ElfCache()
    others = [file for file in files if file != driver and file not in runtimes]
    static, unread = [], [file.name for file in others[_MOST_FILES:]]
    for file in others[:_MOST_FILES]:
        path = access_path(file, proc)
        try:
            if path is None:
                unread.append(file.name)
            elif cache.ask(path, "static runtime", _has_static_runtime):
                static.append(file)
        except ElfError:  # a memory file of a JIT, or another that is no library
            continue
    return CudaLibraries(files, driver, runtimes, tuple(static), tuple(unread))


def uses_cuda(tgid: int, proc: Path = PROC) -> bool:
    """Whether a process has loaded the driver's library: one read of its maps."""
    return any(_DRIVER.match(file.name) for file in mapped_files(tgid, proc))


def _has_static_runtime(elf: Elf) -> bool:
    """It defines a call of the runtime, or it has code for the GPU and asks nobody else to register it. A library that takes the
    runtime by dlopen is neither."""
    if elf.exported(_CALL) is not None:
        return True
    has_code = any(section.name in _FATBIN_SECTIONS for section in elf.sections)
    return has_code and not any(_RUNTIME.match(name) for name in elf.needed) and not elf.imports(_REGISTRATION)


def _sentences(libraries: CudaLibraries) -> Iterable[str]:
    if libraries.driver is None:
        yield "the process has not loaded CUDA's driver library (libcuda.so.1)"
        return
    if libraries.driver.is_deleted:
        yield f"{libraries.driver.name} was replaced on disk while the process uses it: the old one is probed"
    if libraries.static_runtime_in:
        names = _listed([file.name for file in libraries.static_runtime_in])
        yield f"CUDA's runtime is linked statically into {names}: its calls are seen where they reach the driver"
    if libraries.unread:
        yield f"whether a runtime is linked statically into {_listed(libraries.unread)} is not known: not looked into"


def _listed(names: Sequence[str]) -> str:
    """Some names, and how many more."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
