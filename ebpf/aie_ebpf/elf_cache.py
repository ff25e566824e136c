"""Answers about ELF files, kept: the same library is mapped by many processes, and is asked the same things again and again."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from aie_ebpf.elf import Elf, ElfError

_MOST_FILES: Final = 1024

T = TypeVar("T")


class _Identity(NamedTuple):
    """A file, and that nobody has written to it since."""

    device: int
    inode: int
    size: int
    changed_ns: int


class ElfCache:
    """The last answers of up to 1024 files, errors too, unless it was the system that refused: the process by which the file is
    reached may have ended, and others have it. One thread uses it."""

    def __init__(self) -> None:
        self._answers: OrderedDict[_Identity, dict[Hashable, Any]] = OrderedDict()

    def ask(self, path: Path, question: Hashable, answer: Callable[[Elf], T]) -> T:
        """`answer(elf)` of the file at `path`, or what it was when `question` was last asked of it. Raises ElfError, again where it
        did."""
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            raise ElfError(f"cannot be opened: {getattr(error, 'strerror', error)}") from error
        known = self._of(_Identity(status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns))
        if question not in known:
            known[question] = _answer(path, answer)
        found = known[question]
        if isinstance(found, ElfError):
            raise ElfError(str(found))
        return found  # type: ignore[no-any-return]

    def _of(self, identity: _Identity) -> dict[Hashable, Any]:
        known = self._answers.setdefault(identity, {})
        self._answers.move_to_end(identity)
        if len(self._answers) > _MOST_FILES:
            self._answers.popitem(last=False)
        return known


def _answer(path: Path, answer: Callable[[Elf], T]) -> T | ElfError:
    try:
        with Elf.open(path) as elf:
            return answer(elf)
    except ElfError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return error
