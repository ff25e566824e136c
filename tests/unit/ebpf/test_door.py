"""The door to BCC: what can be told without it."""

from __future__ import annotations

from aie_ebpf.door import _compiler_code

_MAPS = """\
7f0000000000-7f0000100000 r--p 00000000 fe:00 11 /usr/lib/x86_64-linux-gnu/libLLVM-14.so.1
7f0000100000-7f0000400000 r-xp 00100000 fe:00 11 /usr/lib/x86_64-linux-gnu/libLLVM-14.so.1
7f0000400000-7f0000500000 rw-p 00400000 fe:00 11 /usr/lib/x86_64-linux-gnu/libLLVM-14.so.1
7f0000600000-7f0000601000 r-xp 00000000 fe:00 12 /usr/lib/x86_64-linux-gnu/libclang-cpp.so.14
7f0000700000-7f0000701000 r-xp 00000000 fe:00 13 /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000800000-7f0000801000 r-xp 00000000 00:00 0
7f0000900000-7f0000901000 r-xp 00000000 fe:00 14 /opt/a b/libLLVM with spaces.so
"""


def test_only_code_of_the_compiler_is_given_back() -> None:
    """Never data: what was written to it would be lost."""
    assert list(_compiler_code(_MAPS)) == [(0x7F0000100000, 0x300000), (0x7F0000600000, 0x1000), (0x7F0000900000, 0x1000)]
