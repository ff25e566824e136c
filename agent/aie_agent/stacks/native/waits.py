"""Which native code waits for each lock, and who called it: many stacks of threads, put together by lock and by way of calls."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.stacks.native.code import CodeFiles, Place, ProcessCode
from aie_agent.stacks.native.unwind import MACHINES, By, Copy, End, walk
from aie_ebpf.mappings import PROC
from aie_ebpf.messages import LockStack

CALLERS_TOLD: Final = 3
_LOCKS: Final = re.compile(r"_*(?:pthread_(?:mutex|rwlock)_|mtx_(?:timed)?lock|lll_lock_wait)")
_WITHOUT_WORK: Final = re.compile(
    r"_*(?:pthread_(?:cond|join|timedjoin|clockjoin)|cnd_|thrd_join|sem_)"  # conditions, semaphores, the end of another thread
    r"|gomp_|libgomp\b"  # OpenMP's workers
    r"|thread_main$"  # pthreadpool's, which torch has
)
WITHIN_S: Final = 5.0
"""Most stacks take some hundredths of a second. Files made for it could take hours."""
_RUNTIME: Final = re.compile(r"(?:libc|libpthread|ld)(?:-\d[\d.]*)?\.so|ld-linux|ld-musl|libc\.musl|\[vdso\]")
_INTERPRETER: Final = re.compile(r"(?:lib)?python\d|_queue\.(?:cpython|abi3|so)")  # queues are Python's, whose workers idle there
_EVALUATES: Final = ("_PyEval_", "PyEval_")


class NativeFrame(NamedTuple):
    """A call, and what led to it."""

    place: Place
    by: By


class NativeStack(NamedTuple):
    """A thread that waits at a futex: its calls, the innermost first, and why they end."""

    tgid: int
    tid: int
    address: int
    frames: tuple[NativeFrame, ...]
    end: End


class NativeWait(NamedTuple):
    """Threads that wait at one futex and came there by the same calls. `leaf` is the C library's function that waits (the outermost
    of its frames); `callers` are the next ones, the nearest first, at most `CALLERS_TOLD`: none of the interpreter's, and none at
    all where it is Python code that waits (`by_python`) or the stack could not be followed (`end`). `by` is what led to them."""

    tgid: int
    address: int
    threads: int
    leaf: str
    callers: tuple[Place, ...]
    by_python: bool
    by: frozenset[By]
    end: End

    @property
    def is_lock(self) -> bool:
        """Whether it is a lock by the name alone of the function that waits."""
        return _LOCKS.match(self.leaf) is not None

    @property
    def is_without_work(self) -> bool:
        """Whether threads wait like this that have nothing to do, and no lock is known by it; or Python code does, whose own lines
        tell more."""
        names = (self.leaf, *(each.function or each.module for each in self.callers[:1]))
        return self.by_python or any(map(_WITHOUT_WORK.match, names))

    @property
    def text(self) -> str:
        """A sentence: `4 threads wait in pthread_mutex_lock, called by libfoo.so (work+0x1c)`."""
        who = f"{self.threads} threads wait" if self.threads > 1 else "1 thread waits"
        return f"{who} in {self.leaf}, {self._called}{self._caveat}"

    @property
    def _called(self) -> str:
        if self.callers:
            return f"called by {', '.join(map(str, self.callers))}"
        return "called by Python's interpreter" if self.by_python else _ENDS[self.end]

    @property
    def _caveat(self) -> str:
        return next((text for by, text in _CAVEATS.items() if by in self.by), "")


_ENDS: Final = {
    End.ROOT: "called by nobody",
    End.CUT: "whose caller lies beyond what was copied of the stack",
    End.LOST: "whose caller could not be found",
    End.DEEP: "whose caller lies too deep",
}
_CAVEATS: Final = {By.SCAN: " (in part a guess)", By.FRAME_POINTER: " (by frame pointers)"}


class Resolved(NamedTuple):
    """What was found of stacks, and why some could not be told."""

    waits: tuple[NativeWait, ...]
    problems: tuple[str, ...]


def resolve(
    stacks: Iterable[LockStack],
    proc: Path = PROC,
    machine: str = os.uname().machine,
    *,
    within_s: float = WITHIN_S,
    clock: Callable[[], float] = time.monotonic,
) -> Resolved:
    """The stacks of threads that wait, as sentences can be made of. Reads the processes' mappings and files, in some 20 ms for the
    first stacks of a process; one that has ended meanwhile is a problem, and so is what could not be told `within_s`."""
    found: list[NativeStack] = []
    problems: dict[str, None] = {}
    by_process: dict[int, list[LockStack]] = {}
    for each in stacks:
        by_process.setdefault(each.tgid, []).append(each)
    until_s = clock() + within_s
    with CodeFiles(lambda: clock() >= until_s) as files:
        for tgid, its in by_process.items():
            code = ProcessCode(tgid, files, proc, machine)
            if code.is_gone:
                problems[f"process {tgid} ended before its native stacks were told"] = None
            elif not files.is_late():
                found += _walked(its, code, machine, files.is_late)
        if files.is_late():
            problems[f"native stacks took longer than {within_s:g} s: the rest is not told"] = None
    return Resolved(together(found), tuple(problems))


def _walked(stacks: Sequence[LockStack], code: ProcessCode, machine: str, is_late: Callable[[], bool]) -> list[NativeStack]:
    told = itertools.takewhile(lambda _: not is_late(), stacks)
    walks = [(each, walk(MACHINES[machine], each.pc, each.registers, Copy(each.sp, each.stack), code)) for each in told]
    places = code.places({(frame.address, frame.within) for _, each in walks for frame in each.frames})
    return [
        NativeStack(
            stack.tgid,
            stack.tid,
            stack.address,
            tuple(NativeFrame(places[frame.address, frame.within], frame.by) for frame in each.frames),
            each.end,
        )
        for stack, each in walks
    ]


def together(stacks: Iterable[NativeStack]) -> tuple[NativeWait, ...]:
    """Stacks by lock and by how threads came there, those of most threads first. A thread that was seen twice is one, and of calls
    that were found in several ways the surest is told. Pure."""
    groups: dict[tuple[object, ...], dict[int, NativeWait]] = {}
    for each in stacks:
        wait = _wait(each)
        key = wait.tgid, wait.address, wait.leaf, wait.callers, wait.by_python
        its = groups.setdefault(key, {})
        its[each.tid] = min(wait, its.get(each.tid, wait), key=_doubt)
    counted = [min(its.values(), key=_doubt)._replace(threads=len(its)) for its in groups.values()]
    return tuple(sorted(counted, key=lambda wait: -wait.threads))


def _doubt(wait: NativeWait) -> tuple[bool, bool, bool, list[str]]:
    """Less is surer."""
    return By.SCAN in wait.by, By.FRAME_POINTER in wait.by, wait.end is not End.ROOT, [wait.end, *sorted(wait.by)]


def _wait(stack: NativeStack) -> NativeWait:
    """One thread's."""
    frames = stack.frames
    inside = next((at for at, each in enumerate(frames) if not _RUNTIME.match(each.place.module)), len(frames))
    leaf = frames[max(inside - 1, 0)].place
    outside = frames[max(inside, 1) :]
    passed = next((at for at, each in enumerate(outside) if not _INTERPRETER.match(each.place.module)), len(outside))
    # An extension that waits at a lock of the interpreter calls it directly; between Python code and its wait lies an evaluation.
    is_python = passed > 0 and (passed == len(outside) or _evaluates(outside[:passed]))
    told = () if is_python else outside[passed : passed + CALLERS_TOLD]
    return NativeWait(
        stack.tgid,
        stack.address,
        1,
        leaf.function or str(leaf),
        tuple(each.place for each in told),
        is_python,
        frozenset(each.by for each in frames[: max(inside, 1) + passed + len(told)]) - {By.LEAF},
        stack.end,
    )


def _evaluates(frames: Collection[NativeFrame]) -> bool:
    return any(each.place.function.startswith(_EVALUATES) for each in frames)
