"""Which CUDA a process uses: the libraries that it has mapped, by their names in /proc/PID/maps."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_RUNTIME: Final = re.compile(r"/libcudart\.so\.(\d+)(?:\.(\d+))?[^/]*$")
_DRIVER: Final = re.compile(r"/libcuda\.so\.(\d+(?:\.\d+)+)[^/]*$")
_DELETED: Final = " (deleted)"


class CudaLibraries(NamedTuple):
    """`runtime` is (major, minor) of libcudart, with minor None where its name does not tell; None where it is linked statically or
    not there. `driver` is the version in the name of libcuda. `is_compat` is CUDA's package for newer runtimes on older drivers,
    `is_deleted` that the file of libcuda was replaced while the process uses it.
    """

    runtime: tuple[int, int | None] | None = None
    driver: str | None = None
    is_compat: bool = False
    is_deleted: bool = False


def cuda_libraries(maps: bytes) -> CudaLibraries:
    """/proc/PID/maps: the libraries of CUDA that are mapped. The fullest name wins where a library is there under two."""
    runtime: tuple[int, int | None] | None = None
    driver, is_compat, is_deleted = None, False, False
    for path in _paths(maps):
        name = path.removesuffix(_DELETED)
        if (match := _RUNTIME.search(name)) and (runtime is None or runtime[1] is None):
            runtime = int(match[1]), int(match[2]) if match[2] else None
        elif match := _DRIVER.search(name):
            driver, is_compat, is_deleted = match[1], "/compat/" in name, path != name
    return CudaLibraries(runtime, driver, is_compat, is_deleted)


def _paths(maps: bytes) -> list[str]:
    """Each file once, in order. The sixth column is a path, and may hold spaces."""
    found: dict[str, None] = {}
    for line in maps.split(b"\n"):
        words = line.split(None, 5)
        if len(words) == 6 and b"/libcuda" in words[5]:
            found[words[5].decode("utf-8", "replace").rstrip()] = None
    return list(found)
