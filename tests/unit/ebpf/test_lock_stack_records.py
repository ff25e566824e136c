"""Records of lock_stacks as bytes, and what is said where the kernel cannot do it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from aie_ebpf.lock_stacks import LAYOUTS, decode, refusal

PT_REGS = (
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
    "orig_ax", "ip", "cs", "flags", "sp", "ss",
)  # fmt: skip


def test_a_record_of_x86_64() -> None:
    """struct pt_regs (arch/x86/include/uapi/asm/ptrace.h): 21 words; numbers of the psABI, figure 3.36."""
    numbers = {"ax": 0, "dx": 1, "cx": 2, "bx": 3, "si": 4, "di": 5, "bp": 6, "sp": 7} | {
        f"r{number}": number for number in range(8, 16)
    }
    values = {name: 1000 + at for at, name in enumerate(PT_REGS)}
    record = struct.pack("<QIIQ", 0x7F10, 12, 13, 16) + struct.pack("<21Q", *values.values()) + bytes(range(16)) + b"older" * 10
    found = decode(record, "x86_64")
    assert (found.address, found.tgid, found.tid) == (0x7F10, 12, 13)
    assert (found.pc, found.sp) == (values["ip"], values["sp"])
    assert found.registers == {number: values[name] for name, number in numbers.items()}
    assert found.stack == bytes(range(16)), "what lies beyond was not copied now"


def test_a_record_of_aarch64() -> None:
    """struct user_pt_regs: x0 to x30, sp, pc, pstate; the stack pointer's number is 31."""
    record = struct.pack("<QIIQ", 0x7F10, 12, 13, 8) + struct.pack("<34Q", *range(100, 134)) + b"\1" * 8
    found = decode(record, "aarch64")
    assert (found.sp, found.pc) == (131, 132)
    assert found.registers == {number: 100 + number for number in range(32)}
    assert len(found.stack) == 8


@pytest.mark.parametrize("machine", LAYOUTS)
def test_layouts_name_each_register_once(machine: str) -> None:
    numbers = [number for number in LAYOUTS[machine].dwarf if number is not None]
    assert len(set(numbers)) == len(numbers)


def test_what_a_kernel_lacks_is_said(tmp_path: Path) -> None:
    assert "no BTF" in refusal(tmp_path)
    btf = tmp_path / "sys/kernel/btf"
    btf.mkdir(parents=True)
    (btf / "vmlinux").write_bytes(b"")
    assert "no tracepoint syscalls:sys_enter_futex" in refusal(tmp_path)
    event = tmp_path / "sys/kernel/tracing/events/syscalls/sys_enter_futex"
    event.mkdir(parents=True)
    (event / "format").write_text("name: sys_enter_futex\n")
    assert refusal(tmp_path) == ""
