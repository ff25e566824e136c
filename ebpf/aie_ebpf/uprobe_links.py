"""The two ways to attach uprobes: each as a perf event, or many of one program as one BPF link (uprobe_multi, kernel 6.6).

A hit costs the same. Detaching does not: the kernel waits for its readers once an event, 0.1 s, and one event after the other;
but once a link, 0.05 s, and for several links at once. The 94 programs of the CUDA sets take 11 s as events, half a second as
links.

Kernels 6.6 to 6.9 that lack the fix of the pid filter see the main thread of a process only. So `choose` tries a link out, on this
process, before links are used.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from aie_ebpf.door import Bcc, BpfError, Module, Probe, ProgramType
from aie_ebpf.own_functions import place_of

UPROBE_MULTI: Final = 48
"""`BPF_TRACE_UPROBE_MULTI` of uapi/linux/bpf.h: the type of such a link, and what a program must be loaded for."""

_LINK_CREATE: Final = 28
_ON_RETURN: Final = 1
# prog_fd, target_fd, attach_type, flags; then of uprobe_multi: path, offsets, ref_ctr_offsets, cookies, cnt, flags, pid.
_ATTRIBUTES: Final = struct.Struct("=IIIIQQQQIII")
# What the kernel reads beyond that must be 0.
_ATTRIBUTES_BYTES: Final = 128
# Of the system call table of each architecture.
_SYS_BPF: Final = {"x86_64": 321, "aarch64": 280}

_TEXT: Final = """
#include <uapi/linux/ptrace.h>
BPF_ARRAY(hits, u64, 2);
static u64 (*attach_cookie)(void *ctx) = (void *)174;
static __always_inline int count(u32 at) {
    u64 *hit = hits.lookup(&at);
    if (hit) __sync_fetch_and_add(hit, 1);
    return 0;
}
int entered(struct pt_regs *ctx) { return count(attach_cookie(ctx)); }
int returned(struct pt_regs *ctx) { return count(attach_cookie(ctx)); }
"""


class Way(StrEnum):
    """How uprobes are attached."""

    LINKS = "links"
    EVENTS = "events"


class Choice(NamedTuple):
    """The way of this host, and why it is not the better one: one line, or ""."""

    way: Way
    reason: str = ""


class Spot(NamedTuple):
    """Where in a file; `semaphore_offset` is where in it the counter of a USDT probe lies, 0 where there is none. `cookie` is what
    the program is told of the place; by an event it is told nothing."""

    offset: int
    semaphore_offset: int = 0
    cookie: int = 0


def attach(
    module: Module, way: Way, path: str, spots: Sequence[Spot], function: str, tgid: int, *, on_return: bool = False
) -> Probe:
    """Attaches one program at all of these offsets of a file, for one process with all its threads. Where one of them is refused,
    none is attached. Raises BpfError."""
    if way is Way.LINKS:
        program = module.program(function, ProgramType.KPROBE, UPROBE_MULTI)
        return Probe((_link(program, path, spots, tgid, on_return),), "")
    fds: list[int] = []
    try:
        for offset, semaphore, _ in spots:
            fds += module.attach_uprobe(path, offset, function, tgid, on_return=on_return, semaphore_offset=semaphore).fds
    except BpfError:
        module.detach(Probe(tuple(fds), ""))
        raise
    return Probe(tuple(fds), "")


def choose(bcc: Bcc) -> Choice:
    """Tries a link on a function of libc that only this process sees, called by a thread that is not the main one. Raises BpfError
    when not even the program for that compiles."""
    module = bcc.compile_text(_TEXT)
    try:
        reason = _trial(module)
    finally:
        module.close()
    return Choice(Way.EVENTS, reason) if reason else Choice(Way.LINKS)


def _trial(module: Module) -> str:
    """What is wrong with links here, or ""."""
    function = ctypes.CDLL(None).labs
    path, offset = place_of(function)
    probes: list[Probe] = []
    try:
        for program, on_return in (("returned", True), ("entered", False)):
            spot = Spot(offset, cookie=int(on_return))
            probes.append(attach(module, Way.LINKS, path, [spot], program, os.getpid(), on_return=on_return))
        thread = threading.Thread(target=function, args=(7,))
        thread.start()
        thread.join()
        table = module.table("hits", "I", "Q")
        seen = tuple((table.get(each) or (0,))[0] for each in range(2))
    except BpfError as error:
        return str(error)
    finally:
        for probe in probes:
            module.detach(probe)
    # Nobody else here calls it meanwhile; more than one hit would be counted twice in all that follows, too.
    return "" if seen == (1, 1) else f"a call by another thread was seen {seen[0]} times, its return {seen[1]} times"


def _link(program: int, path: str, spots: Sequence[Spot], tgid: int, on_return: bool) -> int:
    """The file descriptor of a new link. Raises BpfError."""
    number = _SYS_BPF.get(os.uname().machine)
    if number is None:
        raise BpfError(f"the number of the bpf call is not known for {os.uname().machine}")
    many = ctypes.c_uint64 * len(spots)
    name = ctypes.create_string_buffer(os.fsencode(path))
    offsets, semaphores = many(*(spot.offset for spot in spots)), many(*(spot.semaphore_offset for spot in spots))
    cookies = many(*(spot.cookie for spot in spots))
    counted = ctypes.addressof(semaphores) if any(semaphores) else 0
    flags = _ON_RETURN if on_return else 0
    attributes = ctypes.create_string_buffer(
        _ATTRIBUTES.pack(
            program, 0, UPROBE_MULTI, 0,
            ctypes.addressof(name), ctypes.addressof(offsets), counted, ctypes.addressof(cookies), len(spots), flags, tgid,
        ),
        _ATTRIBUTES_BYTES,
    )  # fmt: skip
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(number, _LINK_CREATE, attributes, _ATTRIBUTES_BYTES))
    if fd < 0:
        where = f"{path}+{spots[0].offset:#x}" if len(spots) == 1 else f"{path} at {len(spots)} places"
        raise BpfError(f"{where} cannot be probed: {os.strerror(ctypes.get_errno())}")
    return fd
