"""The one door to BCC: compile, attach, detach, read maps. Nothing else of ours knows how BCC is called.

BCC's Python layer is passed over where it is wrong or slow: it calls `bpf_attach_uprobe` without the seventh argument (bcc #5236),
attaches tracepoints as soon as it compiles, walks map entries one system call each, and keeps every object until the process ends.
One thread owns all of this.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import itertools
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from aie_ebpf import prerequisites

PROGRAMS: Final = Path(__file__).with_name("programs")
# Debian's headers make clang warn of attributes that mean nothing to BPF.
_CFLAGS: Final = ("-Wno-ignored-attributes", "-Wno-duplicate-decl-specifier", "-Wno-unknown-attributes")
_ENTRY, _RETURN = 0, 1
_COMPILER: Final = ("libLLVM", "libclang")
_MADV_DONTNEED: Final = 4


class BpfError(Exception):
    """The kernel or BCC refused: one line that says what."""


class ProgramType(IntEnum):
    """`enum bpf_prog_type` of uapi/linux/bpf.h, as far as we use it. Uprobes are of type KPROBE."""

    KPROBE = 2
    TRACEPOINT = 5
    PERF_EVENT = 7


class Probe(NamedTuple):
    """A program that is attached: what to give to `Module.detach`."""

    fds: tuple[int, ...]
    event: str


def _start(buffer: bytearray) -> Any:
    """Where a buffer begins, for C. Not `create_string_buffer`, which makes a type for each size."""
    return ctypes.byref(ctypes.c_char.from_buffer(buffer))


class Table:
    """A map of a module, read and written as bytes. `key` and `value` are struct formats; maps are not per CPU."""

    def __init__(self, library: Any, fd: int, key: str, value: str) -> None:
        self._library = library
        self._fd = fd
        self._key = struct.Struct(key)
        self._value = struct.Struct(value)
        # For how many entries a reading has room at first, by the one before: room for all of a large map costs more than reading.
        self._room = _LEAST_ROOM
        self._one_key, self._one_value = bytearray(self._key.size), bytearray(self._value.size)
        self._at_one = _start(self._one_key), _start(self._one_value)

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """All entries, as (key's fields, value's fields), by one system call where they are no more than the last time or few.
        Raises BpfError."""
        return self._batch(self._library.bpf_lookup_batch, "read")

    def drain(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """All entries, which are removed. A program that held one in this moment writes to what nobody reads any more: that
        one hit is not counted. Raises BpfError."""
        return self._batch(self._library.bpf_lookup_and_delete_batch, "drain")

    def get(self, *key: Any) -> tuple[Any, ...] | None:
        """One entry's fields, or None."""
        self._key.pack_into(self._one_key, 0, *key)
        if self._library.bpf_lookup_elem(self._fd, *self._at_one) != 0:
            return None
        return self._value.unpack(self._one_value)

    def put(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Sets an entry. Raises BpfError (the map is full)."""
        self._key.pack_into(self._one_key, 0, *key)
        self._value.pack_into(self._one_value, 0, *value)
        if self._library.bpf_update_elem(self._fd, *self._at_one, 0) != 0:
            raise BpfError(f"a map entry could not be set: {os.strerror(ctypes.get_errno())}")

    def delete(self, *key: Any) -> None:
        """Removes an entry, if it is there."""
        self._key.pack_into(self._one_key, 0, *key)
        self._library.bpf_delete_elem(self._fd, self._at_one[0])

    def _batch(self, call: Any, verb: str) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        # 64 bits, though typed as 32: the kernel writes a bucket number here, where it is to go on.
        position = ctypes.c_uint64(0)
        at = ctypes.cast(ctypes.byref(position), ctypes.POINTER(ctypes.c_uint32))
        found: list[tuple[memoryview, memoryview]] = []
        room, entries = self._room, 0
        is_more = True
        while is_more:
            keys, values = bytearray(self._key.size * room), bytearray(self._value.size * room)
            count = ctypes.c_uint32(room)
            result = call(self._fd, at if found else None, at, _start(keys), _start(values), ctypes.byref(count))
            if result != 0 and ctypes.get_errno() != _ENOENT:  # ENOENT: the end was reached
                raise BpfError(f"a map could not be {verb}: {os.strerror(ctypes.get_errno())}")
            size = count.value
            found.append((memoryview(keys)[: size * self._key.size], memoryview(values)[: size * self._value.size]))
            entries += size
            room = min(2 * room, _MOST_ROOM)
            is_more = result == 0
        self._room = min(max(_LEAST_ROOM, 1 << entries.bit_length()), _MOST_ROOM)
        return itertools.chain.from_iterable(
            zip(self._key.iter_unpack(some_keys), self._value.iter_unpack(some_values), strict=True)
            for some_keys, some_values in found
        )


_ENOENT: Final = 2
# The kernel refuses where one bucket of its hash table has more entries than this: it has as many buckets as there may be entries.
_LEAST_ROOM: Final = 16
_MOST_ROOM: Final = 16384


class Ring:
    """A ring buffer of a module: what programs put into it, since the last look."""

    def __init__(self, library: Any, fd: int) -> None:
        """Raises BpfError."""
        self._library = library
        self._records: list[bytes] = []
        # Kept, because the C side calls it for as long as the ring lives.
        self._callback = library.bpf_new_ringbuf.argtypes[1](self._take)
        self._manager = library.bpf_new_ringbuf(fd, self._callback, None)
        if not self._manager:
            raise BpfError(f"a ring buffer cannot be opened: {os.strerror(ctypes.get_errno())}")

    def records(self) -> list[bytes]:
        """All records since the last call."""
        self._library.bpf_consume_ringbuf(self._manager)
        taken, self._records = self._records, []
        return taken

    def _take(self, _context: Any, data: int, size: int) -> int:
        self._records.append(ctypes.string_at(data, size))
        return 0


class Module:
    """One compiled text: its programs, its maps, what of it is attached."""

    def __init__(self, bcc: Any, text: str, defines: Iterable[str] = ()) -> None:
        """Compiles. Raises BpfError; what clang says goes to stderr."""
        self._library = bcc.lib
        self._programs: dict[tuple[str, int], int] = {}
        flags = [*_CFLAGS, *(f"-D{define}" for define in defines)]
        try:
            self._bpf = _bpf_class(bcc)(text=text.encode(), cflags=flags)
        except Exception as error:  # BCC raises bare Exception
            raise BpfError(f"the program does not compile: {error}") from error
        # It registers itself to be cleaned up at exit, and so is never collected; the kernel cleans up after a process by itself.
        atexit.unregister(self._bpf.cleanup)

    def table(self, name: str, key: str, value: str) -> Table:
        """A map by its name in the text. Raises BpfError when it is not there or its sizes are others than the formats'."""
        module = self._bpf.module
        fd = self._library.bpf_table_fd(module, name.encode())
        if fd < 0:
            raise BpfError(f"there is no map {name}")
        sizes = self._library.bpf_table_key_size(module, name.encode()), self._library.bpf_table_leaf_size(module, name.encode())
        if sizes != (struct.calcsize(key), struct.calcsize(value)):
            raise BpfError(f"map {name} has keys and values of {sizes} bytes, not {struct.calcsize(key), struct.calcsize(value)}")
        return Table(self._library, fd, key, value)

    def has(self, name: str) -> bool:
        """Whether there is a map of that name in the text."""
        return bool(self._library.bpf_table_fd(self._bpf.module, name.encode()) >= 0)

    def ring(self, name: str) -> Ring:
        """A ring buffer by its name in the text. Raises BpfError."""
        return Ring(self._library, self._library.bpf_table_fd(self._bpf.module, name.encode()))

    def program(self, function: str, kind: ProgramType, attach_type: int | None = None) -> int:
        """The file descriptor of a program, loaded (and verified by the kernel) the first time. `attach_type` where the kernel
        wants to know of it in advance. Raises BpfError."""
        key = function, attach_type or 0
        if key not in self._programs:
            more = {} if attach_type is None else {"attach_type": attach_type}
            try:
                self._programs[key] = int(self._bpf.load_func(function.encode(), int(kind), **more).fd)
            except Exception as error:  # BCC raises bare Exception
                raise BpfError(f"{function}: {error}") from error
            # BCC keeps one a name, whatever it is loaded for: ours is kept here, and closed by us.
            self._bpf.funcs.pop(function.encode())
        return self._programs[key]

    def attach_tracepoint(self, tracepoint: str, function: str) -> Probe:
        """Attaches to `category:name`. Raises BpfError."""
        category, _, name = tracepoint.partition(":")
        program = self.program(function, ProgramType.TRACEPOINT)
        fd = self._library.bpf_attach_tracepoint(program, category.encode(), name.encode())
        if fd < 0:
            raise BpfError(f"{tracepoint} cannot be attached to: {os.strerror(ctypes.get_errno())}")
        return Probe((fd,), "")

    def attach_uprobe(
        self, path: str, offset: int, function: str, tgid: int, *, on_return: bool = False, semaphore_offset: int = 0
    ) -> Probe:
        """Attaches at an offset of a file, for one process with all its threads (-1: all who map the file, and each pays).
        `semaphore_offset` is where in the file a USDT probe's counter lies: the kernel raises it while we are attached.
        Raises BpfError."""
        program = self.program(function, ProgramType.KPROBE)
        # Unique in this process: BCC's name for the event, used only by kernels older than 4.17.
        event = f"aie_{'r' if on_return else 'p'}_{os.getpid()}_{tgid}_{offset:x}_{abs(hash(path)):x}"
        kind = _RETURN if on_return else _ENTRY
        ctypes.set_errno(0)
        fd = self._library.bpf_attach_uprobe(program, kind, event.encode(), os.fsencode(path), offset, tgid, semaphore_offset)
        if fd < 0:
            why = os.strerror(ctypes.get_errno() or _ENOENT)
            # What the kernel refuses as an event of its own BCC tries by tracefs, and leaves it there when that is refused, too.
            self._library.bpf_detach_uprobe(event.encode())
            raise BpfError(f"{path}+{offset:#x} cannot be probed: {why}")
        return Probe((fd,), event)

    def attach_perf_event(self, type_: int, config: int, function: str, period: int) -> Probe:
        """Attaches to a software event, on every CPU that is online. Raises BpfError."""
        program = self.program(function, ProgramType.PERF_EVENT)
        fds: list[int] = []
        for cpu in online_cpus():
            fd = self._library.bpf_attach_perf_event(program, type_, config, period, 0, -1, cpu, -1)
            if fd < 0:
                self.detach(Probe(tuple(fds), ""))
                raise BpfError(f"software event {config} cannot be attached to: {os.strerror(ctypes.get_errno())}")
            fds.append(fd)
        return Probe(tuple(fds), "")

    def detach(self, probe: Probe) -> None:
        """Detaches: 0.05 s to 0.1 s for a uprobe, in which the process that was probed runs on."""
        for fd in probe.fds:
            os.close(fd)

    def close(self) -> None:
        """Gives back programs and maps. What is attached stays so until it is detached."""
        for fd in self._programs.values():
            os.close(fd)
        self._programs.clear()
        with contextlib.suppress(Exception):  # BCC's own tidying must not hide why we close
            self._bpf.cleanup()


class Bcc:
    """BCC, imported."""

    def __init__(self) -> None:
        """Imports BCC, from Debian's packages if it is not among ours. Raises BpfError."""
        source = prerequisites.kernel_source()
        if source is not None:
            os.environ["BCC_KERNEL_SOURCE"] = str(source)  # one that was named and is not there would be taken by BCC all the same
        try:
            with _debian_packages():
                self._bcc = importlib.import_module("bcc")
        except (ImportError, OSError, AttributeError) as error:  # a libbcc of another version lacks symbols
            raise BpfError(f"BCC cannot be imported: {error}") from error
        library = self._bcc.lib
        # The C function has a seventh argument, which BCC does not pass: without it, it is whatever the register holds (bcc #5236).
        library.bpf_attach_uprobe.argtypes = [
            ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32,
        ]  # fmt: skip
        for name in ("bpf_table_key_size", "bpf_table_leaf_size"):
            getattr(library, name).restype = ctypes.c_size_t
            getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_char_p]

    @property
    def version(self) -> str:
        """BCC's version."""
        return str(getattr(self._bcc, "__version__", "unknown"))

    def compile(self, *programs: str, defines: Iterable[str] = ()) -> Module:
        """One module of files of `programs/`, as in `text`. Raises BpfError."""
        return self.compile_text(text(*programs), defines)

    def compile_text(self, text: str, defines: Iterable[str] = ()) -> Module:
        """A module from a text. Raises BpfError."""
        return Module(self._bcc, text, defines)

    def trim(self) -> None:
        """Gives back what compiling took: LLVM's heap, which stays with malloc otherwise, some 30 MB, and its code, which
        is not run again until the next program is compiled, some 40 MB. What is needed again comes from the file."""
        libc = ctypes.CDLL(None)
        libc.malloc_trim(0)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start, size in _compiler_code(Path("/proc/self/maps").read_text()):
            libc.madvise(start, size, _MADV_DONTNEED)


def text(*programs: str) -> str:
    """The text of a module: files of `programs/`, one after the other (`x` is x.bpf.c). BCC rewrites map calls in the text that it
    is given only, not in what that includes."""
    return "".join((PROGRAMS / (each if each.endswith(".h") else f"{each}.bpf.c")).read_text() for each in programs)


def online_cpus() -> list[int]:
    """The CPUs that are online, from /sys/devices/system/cpu/online ("0-3,5")."""
    cpus: list[int] = []
    for part in Path("/sys/devices/system/cpu/online").read_text().strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _compiler_code(maps: str) -> Iterator[tuple[int, int]]:
    """Address and size of the code of clang and LLVM in a process's maps: pages that are never written to."""
    for line in maps.splitlines():
        place, flags, *_rest, path = line.split(None, 5) if line.count(" ") >= 5 else ("", "", "")
        if flags == "r-xp" and Path(path).name.startswith(_COMPILER):
            start, _, end = place.partition("-")
            yield int(start, 16), int(end, 16) - int(start, 16)


@contextlib.contextmanager
def _debian_packages() -> Iterator[None]:
    """Debian's packages as the last place to import from, for this import only: they are of its own Python."""
    sys.path.append(str(prerequisites.DEBIAN_PACKAGES))
    try:
        yield
    finally:
        sys.path.remove(str(prerequisites.DEBIAN_PACKAGES))


@functools.cache
def _bpf_class(bcc: Any) -> Any:
    """BCC's class, without its attaching to every tracepoint as soon as it has compiled."""

    class _Bpf(bcc.BPF):  # type: ignore[misc]
        def _trace_autoload(self) -> None:
            pass

    return _Bpf
