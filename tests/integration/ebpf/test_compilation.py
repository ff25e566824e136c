"""Modules that are compiled in a thread of their own, by the real compiler."""

from __future__ import annotations

import threading

import pytest

from aie_ebpf.compilation import Compilation
from aie_ebpf.door import Bcc, BpfError, ProgramType


def test_what_does_not_compile_says_so_to_all_who_wait(bcc: Bcc) -> None:
    """Without the text that declares the map of watched processes no program is one."""
    compilation = Compilation(bcc, ("common.h", "gc"))
    for _ in range(2):
        list(compilation.wait())
        with pytest.raises(BpfError, match="does not compile"):
            compilation.result()


def test_steps_are_given_back_while_it_compiles(bcc: Bcc) -> None:
    compilation = Compilation(bcc, ("common.h", "block_io"))
    with pytest.raises(BpfError, match="without a word"):
        compilation.result()
    names: set[str] = set()
    for _ in compilation.wait():
        names |= {thread.name for thread in threading.enumerate()}
    assert "compile" in names
    module = compilation.result()
    try:
        assert module.program("tracepoint__block__block_rq_issue", ProgramType.TRACEPOINT) > 0
    finally:
        module.close()
