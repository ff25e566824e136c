"""The code of processes: which file an address is of, its tables, its functions. Files are opened as the processes have them
mapped, and are closed together at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

from aie_agent.stacks.native.cfa import Row
from aie_agent.stacks.native.eh_frame import row_at
from aie_ebpf.elf import Elf, ElfError
from aie_ebpf.elf_functions import Function, functions_at
from aie_ebpf.hostile import printable
from aie_ebpf.mappings import PROC, AddressSpace, MappedFile, access_path, address_space, load_bias

_MOST_FILES: Final = 256
_LONGEST_CALL: Final = 7
_MOST_SYMBOL_CHARS: Final = 512
"""Of a function: names of C++ are long, and one that is cut cannot be told to `c++filt`."""


class Place(NamedTuple):
    """Where an address is: the name of the file, the function, and how many bytes into it; where no function is known ("", as of a
    stripped file), how many bytes into the file as it is loaded. All names are safe to show."""

    module: str
    function: str
    offset: int

    def __str__(self) -> str:
        """As people are told it."""
        return f"{self.module} ({self.function}+{self.offset:#x})" if self.function else f"{self.module}+{self.offset:#x}"


class _Image(NamedTuple):
    """A file that is open, and what is known of it by address in it."""

    elf: Elf
    rows: dict[int, Row | None]
    functions: dict[int, Function | None]


class CodeFiles:
    """Files that are open. Use it in a `with`. Once `is_late` says so, no more functions are looked up: addresses stay numbers."""

    def __init__(self, is_late: Callable[[], bool] = lambda: False) -> None:
        self.is_late = is_late
        self._open: dict[tuple[int, int], _Image | ElfError] = {}
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def image(self, file: MappedFile, proc: Path) -> _Image:
        """A file, opened the first time. Raises ElfError, again where it did."""
        key = file.device, file.inode
        if key not in self._open:
            self._open[key] = self._opened(file, proc)
        found = self._open[key]
        if isinstance(found, ElfError):
            raise ElfError(str(found))
        return found

    def _opened(self, file: MappedFile, proc: Path) -> _Image | ElfError:
        if len(self._open) >= _MOST_FILES:
            return ElfError(f"more than {_MOST_FILES} files")
        path = access_path(file, proc)
        if path is None:
            return ElfError("no path leads to it")
        try:
            return _Image(self._exit.enter_context(Elf.open(path)), {}, {})
        except ElfError as error:
            return error


class ProcessCode:
    """What is executable in one process, as it was mapped when this was made: a `Code` for `unwind.walk`."""

    def __init__(self, tgid: int, files: CodeFiles, proc: Path = PROC, machine: str = os.uname().machine) -> None:
        self._space: AddressSpace = address_space(tgid, proc)
        self._files = files
        self._proc = proc
        self._is_call = CALLS[machine]

    @property
    def is_gone(self) -> bool:
        """Whether nothing of the process can be seen."""
        return not self._space.files

    def row(self, address: int) -> Row | None:
        """How to get to the caller's frame. Raises ElfError."""
        found = self._at(address)
        if found is None:
            return None
        image, vaddr = found
        if vaddr not in image.rows:
            image.rows[vaddr] = row_at(image.elf, vaddr)
        return image.rows[vaddr]

    def is_code(self, address: int) -> bool:
        """Whether an address is in executable memory."""
        return self._space.is_code(address)

    def is_after_call(self, address: int) -> bool:
        """Whether the instruction before an address is a call. False for code of no file, and where the file cannot be read."""
        try:
            found = self._at(address)
            if found is None:
                return False
            image, vaddr = found
            return self._is_call(image.elf.read_at(vaddr - _LONGEST_CALL, _LONGEST_CALL))
        except ElfError:
            return False

    def places(self, addresses: Collection[tuple[int, int]]) -> dict[tuple[int, int], Place]:
        """Where addresses are: of pairs of an address and one that is surely in its function (`unwind.Frame.within`).
        Each file's symbols are looked through once."""
        wanted: dict[tuple[int, int], tuple[MappedFile, list[int]]] = {}
        for _, within in addresses:
            file = self._space.file_at(within)
            if file is not None:
                wanted.setdefault((file.device, file.inode), (file, []))[1].append(within)
        for file, within_file in wanted.values():
            if self._files.is_late():
                break
            self._name(file, within_file)
        return {each: self._place(*each) for each in addresses}

    def _name(self, file: MappedFile, addresses: Collection[int]) -> None:
        """Looks up the functions of a file that are not known yet. Where it cannot be read they stay unknown."""
        try:
            image = self._files.image(file, self._proc)
            bias = load_bias(file, image.elf.segments)
            vaddrs = {address - bias for address in addresses} - image.functions.keys()
            image.functions.update(dict.fromkeys(vaddrs))
            if vaddrs:
                image.functions.update(functions_at(image.elf, vaddrs))
        except ElfError:
            return

    def _place(self, address: int, within: int) -> Place:
        label = self._space.module_at(within)
        try:
            found = self._at(within)
        except ElfError:
            found = None
        if found is None:
            file = self._space.file_at(within)
            return Place(label, "", address - file.start + file.offset if file is not None else address)
        image, vaddr = found
        function = image.functions.get(vaddr)
        if function is None:
            return Place(label, "", vaddr + address - within)
        return Place(label, printable(function.name, _MOST_SYMBOL_CHARS), vaddr + address - within - function.vaddr)

    def _at(self, address: int) -> tuple[_Image, int] | None:
        """The file that an address is of, and the address in it. None for code of no file. Raises ElfError."""
        file = self._space.file_at(address)
        if file is None:
            return None
        image = self._files.image(file, self._proc)
        return image, address - load_bias(file, image.elf.segments)


def _ends_in_call_x86(code: bytes) -> bool:
    """`call rel32`, or `call` by a register or memory (FF /2), whose length its second byte says."""
    if code[-5] == 0xE8:
        return True
    return any(
        code[-size] == 0xFF and code[1 - size] >> 3 & 7 == 2 and _call_bytes(code[1 - size :]) == size for size in (2, 3, 4, 6, 7)
    )


def _call_bytes(operand: bytes) -> int:
    """How long `FF /2` is, from its ModRM byte on."""
    mode, register = operand[0] >> 6, operand[0] & 7
    has_sib = mode != 3 and register == 4
    size = 2 + has_sib
    if mode == 0 and (register == 5 or (has_sib and len(operand) > 1 and operand[1] & 7 == 5)):
        return size + 4
    return size + {0: 0, 1: 1, 2: 4, 3: 0}[mode]


def _ends_in_call_arm(code: bytes) -> bool:
    """`bl`, or `blr` and its signed kin."""
    word = int.from_bytes(code[-4:], "little")
    return word & 0xFC000000 == 0x94000000 or word & 0xFEFFF000 == 0xD63F0000


CALLS: Final[dict[str, Callable[[bytes], bool]]] = {"x86_64": _ends_in_call_x86, "aarch64": _ends_in_call_arm}
"""Whether code ends in a call, by machine: of the last 7 bytes."""
