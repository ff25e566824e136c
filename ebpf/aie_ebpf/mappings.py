"""What executable files a process has mapped, how to open each of them, and which one an address belongs to.

A path in /proc/PID/maps is the process's own: it may be in another mount namespace, and its file may have been deleted or replaced
while the process goes on with the old one. A file is therefore known by its device and inode, and opened only where these are the
same.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from aie_ebpf.elf_file import ElfError, Segment
from aie_ebpf.hostile import printable

PROC: Final = Path("/proc")
ANONYMOUS: Final = "[anonymous]"
GONE: Final = "?"

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_EXECUTABLE: Final = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+)[ \t]*(.*)$", re.MULTILINE
)
_DELETED: Final = " (deleted)"
_SHARED_MEMORY: Final = "/dev/zero (deleted)"  # the kernel's name for shared memory of no file


class MappedFile(NamedTuple):
    """A file that a process executes code of. `path` is as the process sees it, and may end in " (deleted)". `start`, `end` and
    `offset` are of the first executable mapping; `offset` is where in the file it begins."""

    tgid: int
    path: str
    device: int
    inode: int
    start: int
    end: int
    offset: int

    @property
    def name(self) -> str:
        """The file's name without folders, for people: printable and not long, whatever the file is called."""
        return printable(os.path.basename(self.path.removesuffix(_DELETED)))

    @property
    def is_deleted(self) -> bool:
        """Whether the kernel says that the path leads to it no more."""
        return self.path.endswith(_DELETED)


class _Range(NamedTuple):
    """An executable mapping; `file` is None for memory that belongs to no file."""

    start: int
    end: int
    file: MappedFile | None
    label: str


class AddressSpace:
    """The executable mappings of a process at one time. Made by `address_space`."""

    def __init__(self, ranges: tuple[_Range, ...]) -> None:
        """`ranges` are in the order of their addresses."""
        self._ranges = ranges

    @cached_property
    def files(self) -> tuple[MappedFile, ...]:
        """The files, each once, in the order of their addresses."""
        found: dict[tuple[int, int], MappedFile] = {}
        for each in self._ranges:
            if each.file is not None:
                found.setdefault((each.file.device, each.file.inode), each.file)
        return tuple(found.values())

    def module_at(self, address: int) -> str:
        """The name of the file whose code is at an address, to name a caller by. "[anonymous]" for code of no file, as a JIT makes;
        the kernel's name for its own, such as "[vdso]"; "?" where nothing is mapped now."""
        found = self._range_of(address)
        return GONE if found is None else found.label

    def file_at(self, address: int) -> MappedFile | None:
        """The file whose code is at an address. None for code of no file, and where nothing is mapped."""
        found = self._range_of(address)
        return None if found is None else found.file

    def is_code(self, address: int) -> bool:
        """Whether an address is in an executable mapping."""
        return self._range_of(address) is not None

    def _range_of(self, address: int) -> _Range | None:
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0 or address >= self._ranges[position].end:
            return None
        return self._ranges[position]

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return tuple(each.start for each in self._ranges)


def address_space(tgid: int, proc: Path = PROC) -> AddressSpace:
    """Reads /proc/PID/maps, once. Empty when the process is gone, is a kernel thread, or is not for us to look at."""
    try:
        with open(f"{proc}/{tgid}/maps", "rb", buffering=0) as file:
            maps = file.readall()
    except OSError:  # it ended, or it is not ours: nothing of it is mapped that we could use
        return AddressSpace(())
    return AddressSpace(tuple(_ranges(tgid, maps)))


def mapped_files(tgid: int, proc: Path = PROC) -> tuple[MappedFile, ...]:
    """The files that a process executes code of, each once. Empty when it is gone."""
    return address_space(tgid, proc).files


def access_path(file: MappedFile, proc: Path = PROC) -> Path | None:
    """A path that opens this very file: through the process's root where that leads to it, else through the mapping itself, which
    works for files that were deleted or replaced, and needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. None where neither does."""
    process = proc / str(file.tgid)
    through_mapping = process / "map_files" / f"{file.start:x}-{file.end:x}"
    mapped = _identity(through_mapping)
    if "\0" not in file.path and file.path.startswith("/"):
        through_root = process / "root" / file.path.lstrip("/")
        # Some file systems (btrfs, overlayfs) show another device to stat than in maps; stat of the mapping is what compares.
        if _identity(through_root) == (mapped or (file.device, file.inode)):
            return through_root
    return through_mapping if mapped is not None else None


def load_bias(file: MappedFile, segments: Sequence[Segment]) -> int:
    """What to add to an address in the file to get the one in memory. Raises ElfError when the mapping is of no segment: the file
    is not the one that was loaded."""
    for segment in segments:
        page_start = segment.offset - segment.offset % _PAGE
        if segment.is_executable and page_start <= file.offset < segment.offset + segment.file_size:
            return file.start - file.offset + segment.offset - segment.vaddr
    raise ElfError(f"its mapping at {file.start:#x} is of no segment")


def _ranges(tgid: int, maps: bytes) -> list[_Range]:
    found = []
    for start_hex, end_hex, offset, major, minor, inode, path in _EXECUTABLE.findall(maps):
        shown = path.decode("utf-8", "surrogateescape").replace("\\012", "\n")  # the one character that maps escapes
        start, end, file = int(start_hex, 16), int(end_hex, 16), None
        if inode != b"0" and shown != _SHARED_MEMORY:
            device = os.makedev(int(major, 16), int(minor, 16))
            file = MappedFile(tgid, shown, device, int(inode), start, end, int(offset, 16))
        label = file.name if file is not None else ANONYMOUS if shown in ("", _SHARED_MEMORY) else printable(shown)
        found.append(_Range(start, end, file, label))
    return found


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:  # absent, or not for us: it is no way to the file
        return None
    return status.st_dev, status.st_ino
