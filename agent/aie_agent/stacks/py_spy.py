"""Runs py-spy once, the one way that does not stop the process it looks at (`--nonblocking`), and says why it cannot.

Nothing but functions, files and lines is asked for: the values of variables could be prompts.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from aie_agent.sources.procfs import Procfs
from aie_agent.stacks.model import MOST_FRAMES, MOST_THREADS, Dump, Frame, Thread, clean
from aie_agent.stacks.thread_states import KernelThread, owner_of, thread_states

TIME_LIMIT_S: Final = 20.0
"""A host that has no CPU to spare is where stacks are asked for, and py-spy waits for one as well."""
MOST_OUTPUT_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 64 << 10
_TRIES: Final = 3
_PAUSE_S: Final = 0.05

Reason = Literal["not_installed", "gone", "no_privilege", "not_python", "version", "too_long", "too_large", "failed"]
"""Why stacks cannot be read, for programs. Only after "failed" another try makes sense."""


class StacksError(Exception):
    """The stacks of a process cannot be read: one line that says why and what to do."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class _JsonFrame(msgspec.Struct):
    name: str = "?"
    filename: str = "?"
    short_filename: str | None = None
    line: int = 0


class _JsonThread(msgspec.Struct):
    thread_name: str | None = None
    thread_id: int | None = None
    os_thread_id: int | None = None
    owns_gil: bool = False
    frames: list[_JsonFrame] = []


class _Refusal(NamedTuple):
    """What py-spy says in this case, and what that means. `{tgid}` and `{found}` (what the pattern held) are filled in."""

    pattern: re.Pattern[str]
    reason: Reason
    text: str


_REFUSALS: Final = (
    _Refusal(
        re.compile(r"Unsupported version of Python: ([\w.+-]{1,20})"),
        "version",
        "process {tgid} runs Python {found}, which this py-spy does not know: install a newer one (pip install --upgrade py-spy)",
    ),
    _Refusal(re.compile(r"Failed to find python version()"), "not_python", "process {tgid} is no Python process"),
    _Refusal(
        re.compile(r"(?i:(permission denied|os error 1\b|operation not permitted))"),
        "no_privilege",
        "the memory of process {tgid} may not be read: run as root (in a container: with CAP_SYS_PTRACE, and the host's pids)",
    ),
)

_decoder = msgspec.json.Decoder(list[_JsonThread])


def find() -> Path | None:
    """Where py-spy is: beside this Python, or in PATH. None where it is in neither."""
    found = shutil.which("py-spy", path=Path(sys.executable).parent) or shutil.which("py-spy")
    return None if found is None else Path(found)


def dump(tgid: int, now_s: float, time_limit_s: float = TIME_LIMIT_S, program: Path | None = None) -> Dump:
    """The stacks of a process, which runs on meanwhile; `now_s` dates them. Takes 20 ms for a small process, and blocks for
    `time_limit_s` at most. `program` is py-spy, by default the one that `find` finds. Raises StacksError."""
    procfs = Procfs()
    program = program or find()
    if program is None:
        raise StacksError("not_installed", "py-spy is not installed: pip install py-spy")
    start_ticks = procfs.start_ticks(tgid)
    if start_ticks is None:
        raise StacksError("gone", f"process {tgid} is not there")
    try:
        threads = _threads([str(program), "dump", "--nonblocking", "--json", "--pid", str(tgid)], tgid, time_limit_s)
    except StacksError as error:
        # What it was is no matter then, and py-spy's words for it are misleading.
        if procfs.start_ticks(tgid) != start_ticks:
            raise _ended(tgid) from error
        raise
    if procfs.start_ticks(tgid) != start_ticks:
        raise _ended(tgid)
    return Dump(tgid, now_s, threads, start_ticks)


def _ended(tgid: int) -> StacksError:
    return StacksError("gone", f"process {tgid} ended while it was looked at")


def _threads(command: list[str], tgid: int, time_limit_s: float) -> tuple[Thread, ...]:
    """What is read while a process changes it may make no sense at first, so that it is tried again."""
    deadline_s = time.monotonic() + time_limit_s
    for _ in range(_TRIES - 1):
        try:
            return _looked_at(_run(command, tgid, deadline_s), tgid)
        except StacksError as error:
            if error.reason != "failed":
                raise
        time.sleep(_PAUSE_S)
    return _looked_at(_run(command, tgid, deadline_s), tgid)


def _looked_at(output: bytes, tgid: int) -> tuple[Thread, ...]:
    states = thread_states(tgid)
    return parse(output, states, next((each for each in states.values() if each.tid == tgid), None))


def _run(command: list[str], tgid: int, deadline_s: float) -> bytes:
    """What the command writes, bounded in time and size. Raises StacksError, also where it does not exit with 0."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"RUST_BACKTRACE": "0", "LC_ALL": "C"},
        )
    except OSError as error:
        raise StacksError("failed", f"{command[0]} cannot be run: {error.strerror}") from error
    with process:
        try:
            output, errors = _read(process, tgid, deadline_s)
            status = process.wait(max(deadline_s - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired as error:
            raise _took_too_long(tgid) from error
        finally:
            process.kill()  # does nothing to one that was waited for
    if status != 0:
        raise refusal(tgid, errors.decode("utf-8", "replace"))
    return output


def _read(process: subprocess.Popen[bytes], tgid: int, deadline_s: float) -> tuple[bytes, bytes]:
    """Both outputs to their end. Raises StacksError."""
    assert process.stdout is not None
    assert process.stderr is not None
    read = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    output, errors = read.values()
    with selectors.DefaultSelector() as selector:
        for descriptor in read:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise _took_too_long(tgid)
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fd)
                read[key.fd] += chunk
                if len(output) + len(errors) > MOST_OUTPUT_BYTES:
                    raise StacksError("too_large", f"the stacks of process {tgid} are larger than {MOST_OUTPUT_BYTES >> 20} MiB")
    return bytes(output), bytes(errors)


def _took_too_long(tgid: int) -> StacksError:
    return StacksError("too_long", f"py-spy took too long over process {tgid}, and was ended")


def refusal(tgid: int, errors: str) -> StacksError:
    """What py-spy's standard error means."""
    for row in _REFUSALS:
        match = row.pattern.search(errors)
        if match is not None:
            return StacksError(row.reason, row.text.format(tgid=tgid, found=match[1]))
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return StacksError("failed", f"py-spy cannot read process {tgid}: {clean('; '.join(lines)) or 'it says nothing'}")


def parse(output: bytes, states: Mapping[int, KernelThread], main: KernelThread | None = None) -> tuple[Thread, ...]:
    """py-spy's JSON, with what the kernel says of each thread by the tid that the process knows it by, and of its main thread.
    Names are made safe to show. Raises StacksError."""
    try:
        found = _decoder.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StacksError("failed", f"what py-spy says is not understood: {clean(str(error))}") from error
    return tuple(_thread(thread, _kernels(thread, states, main)) for thread in found[:MOST_THREADS])


def _kernels(thread: _JsonThread, states: Mapping[int, KernelThread], main: KernelThread | None) -> KernelThread | None:
    """The kernel's side of a thread. Before CPython 3.11 nobody says which it is, and it has to be found."""
    if thread.os_thread_id is not None:
        return states.get(thread.os_thread_id)
    return main if thread.thread_name == "MainThread" else owner_of(thread.thread_id or 0, states.values())


def _thread(thread: _JsonThread, kernel: KernelThread | None) -> Thread:
    name = clean(thread.thread_name or f"thread {thread.os_thread_id or thread.thread_id or '?'}")
    frames = tuple(_frame(frame) for frame in thread.frames[:MOST_FRAMES])
    if kernel is None:
        return Thread(None, name, frames, holds_gil=thread.owns_gil)
    return Thread(kernel.tid, name, frames, kernel.state, kernel.futex, thread.owns_gil)


def _frame(frame: _JsonFrame) -> Frame:
    return Frame(clean(frame.name), clean(frame.short_filename or frame.filename), clean(frame.filename, 4096), frame.line)
