"""A module that is compiled in a thread of its own: it takes seconds, in which probes that are attached must be looked after."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final

from aie_ebpf.door import Bcc, BpfError, Module

_WAIT_S: Final = 0.02
# BCC was not made to compile two at once.
_one_at_a_time: Final = threading.Lock()


class Compilation:
    """Begins when it is waited for. Only this thread calls BCC's compiler meanwhile; what else BCC does are system calls."""

    def __init__(self, bcc: Bcc, programs: Sequence[str], defines: Sequence[str] = ()) -> None:
        """`programs` are files of `programs/`, `defines` are for the compiler."""
        self._bcc = bcc
        self._programs = programs
        self._defines = defines
        self._found: Module | BpfError | None = None
        # A daemon: the end of the process waits for nothing that nobody wants any more.
        self._thread = threading.Thread(target=self._run, name="compile", daemon=True)

    def wait(self) -> Iterator[None]:
        """Until it is done, a short while a step. Any number may wait."""
        if self._thread.ident is None:
            self._thread.start()
        while self._thread.is_alive():
            self._thread.join(_WAIT_S)
            yield

    def result(self) -> Module:
        """What came of it. Raises BpfError."""
        if isinstance(self._found, Module):
            return self._found
        raise self._found or BpfError("the compiler ended without a word")

    def _run(self) -> None:
        with _one_at_a_time:
            try:
                self._found = self._bcc.compile(*self._programs, defines=self._defines)
            except BpfError as error:
                self._found = error
