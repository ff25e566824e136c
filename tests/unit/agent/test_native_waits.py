"""Stacks of threads as sentences: who is told as the caller, and who is passed over."""

from __future__ import annotations

import pytest

from aie_agent.stacks.native.code import Place
from aie_agent.stacks.native.unwind import By, End
from aie_agent.stacks.native.waits import NativeFrame, NativeStack, together

LOCK = 0x7F00


def stack(*calls: str, tid: int = 1, end: End = End.ROOT, address: int = LOCK) -> NativeStack:
    """Calls as `module:function`, the innermost first; a `?` before one says that it is a guess."""
    frames = []
    for at, call in enumerate(calls):
        module, _, function = call.removeprefix("?").partition(":")
        by = By.SCAN if call.startswith("?") else By.TABLE if at else By.LEAF
        frames.append(NativeFrame(Place(module, function, 0x10), by))
    return NativeStack(7, tid, address, tuple(frames), end)


C = ("libc.so.6:", "libc.so.6:pthread_mutex_lock")


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ((*C, "libfoo.so:work", "engine:run"), "in pthread_mutex_lock, called by libfoo.so (work+0x10), engine (run+0x10)"),
        (("libc.so.6:syscall", "librust.so:"), "in syscall, called by librust.so+0x10"),
        (("libc.so.6:", "a.so:f"), "in libc.so.6+0x10, called by a.so (f+0x10)"),
        (("libpthread-2.31.so:sem_wait", "a.so:f"), "in sem_wait, called by a.so (f+0x10)"),
        (("ld-linux-x86-64.so.2:_dl_open", "libc.so.6:dlopen", "a.so:f"), "in dlopen, called by a.so (f+0x10)"),
        (("static:futex_wait", "static:lock", "static:work"), "in futex_wait, called by static (lock+0x10), static (work+0x10)"),
        ((*C, "a:1", "b:2", "c:3", "d:4"), "in pthread_mutex_lock, called by a (1+0x10), b (2+0x10), c (3+0x10)"),
        ((*C, "?a:f"), "in pthread_mutex_lock, called by a (f+0x10) (in part a guess)"),
        ((*C, "a:1", "b:2", "c:3", "?d:4"), "in pthread_mutex_lock, called by a (1+0x10), b (2+0x10), c (3+0x10)"),
        (("libc-client.so.2007:", "a:f"), "in libc-client.so.2007+0x10, called by a (f+0x10)"),
        (("libc.musl-x86_64.so.1:pthread_mutex_lock", "a:f"), "in pthread_mutex_lock, called by a (f+0x10)"),
        (("libcrypto.so.3:CRYPTO_lock", "a:f"), "in CRYPTO_lock, called by a (f+0x10)"),
    ],
)  # fmt: skip
def test_sentences(calls: tuple[str, ...], text: str) -> None:
    (found,) = together([stack(*calls)])
    assert found.text == f"1 thread waits {text}"
    assert not found.by_python


@pytest.mark.parametrize(
    "calls",
    [
        (*C, "python3.11:PyThread_acquire_lock_timed", "python3.11:_PyEval_EvalFrameDefault", "python3.11:main"),
        (*C, "libpython3.12.so.1.0:", "libpython3.12.so.1.0:_PyEval_EvalFrameDefault", "ext.so:run"),
        (*C, "libpython3.11.so.1.0:"),
        (*C, "libpython3.11.so:PyThread_x", "_queue.cpython-311-x86_64-linux-gnu.so:get", "libpython3.11.so:_PyEval_x", "x.so:f"),
    ],
)
def test_python_code_that_waits_is_pythons(calls: tuple[str, ...]) -> None:
    """Its line is told by Python's own stacks; an extension further out called the interpreter, not the lock."""
    (found,) = together([stack(*calls)])
    assert found.by_python
    assert found.callers == ()
    assert found.text == "1 thread waits in pthread_mutex_lock, called by Python's interpreter"


def test_an_extension_that_waits_at_a_lock_of_the_interpreter() -> None:
    (found,) = together([stack(*C, "python3.11:PyThread_acquire_lock_timed", "ext.so:run", "python3.11:_PyEval_EvalFrameDefault")])
    assert not found.by_python
    assert found.text.endswith("called by ext.so (run+0x10), python3.11 (_PyEval_EvalFrameDefault+0x10)")


@pytest.mark.parametrize(
    ("end", "text"),
    [(End.CUT, "beyond what was copied"), (End.LOST, "could not be found"), (End.DEEP, "too deep"), (End.ROOT, "called by nobody")],
)
def test_a_caller_that_is_not_known(end: End, text: str) -> None:
    (found,) = together([stack(*C, end=end)])
    assert text in found.text


def test_threads_that_came_the_same_way_are_told_together() -> None:
    """A thread that was seen twice is one; the way that most came stands first, whatever the order."""
    way, other = (*C, "a.so:f"), (*C, "b.so:g")
    stacks = [stack(*other, tid=1)] + [stack(*way, tid=tid) for tid in (2, 3, 4, 4)] + [stack(*way, tid=9, address=0x8000)]
    found = together(stacks)
    assert [(each.threads, each.address, each.callers[0].function) for each in found] == [
        (3, LOCK, "f"), (1, LOCK, "g"), (1, 0x8000, "f"),
    ]  # fmt: skip
    assert found[0].text.startswith("3 threads wait in ")
    assert set(together(reversed(stacks))) == set(found)
    assert together([]) == ()


def test_a_thread_that_was_seen_in_two_ways_is_told_by_the_surer() -> None:
    """By /proc, which lacks registers, it is a guess; by probes it is certain: one wait, of one thread."""
    guess, sure = stack(*C, "?a.so:f", tid=1), stack(*C, "a.so:f", tid=1)
    for seen in ((guess, sure), (sure, guess)):
        (found,) = together(seen)
        assert found.text == "1 thread waits in pthread_mutex_lock, called by a.so (f+0x10)"
    (both,) = together([guess, stack(*C, "a.so:f", tid=2, end=End.CUT)])
    assert both.text == "2 threads wait in pthread_mutex_lock, called by a.so (f+0x10)"


@pytest.mark.parametrize(
    ("calls", "is_lock", "is_without_work"),
    [
        ((*C, "a.so:f"), True, False),
        (("libc.so.6:pthread_rwlock_wrlock", "a.so:f"), True, False),
        (("static:__lll_lock_wait", "static:f"), True, False),
        (("libc.so.6:pthread_cond_timedwait", "a.so:f"), False, True),
        (("libc.so.6:sem_wait", "a.so:f"), False, True),
        (("libc.so.6:pthread_join", "a.so:f"), False, True),
        (("libgomp-a34b3233.so.1:", "libgomp-a34b3233.so.1:"), False, True),
        (("libc.so.6:syscall", "libgomp.so.1:", "libgomp.so.1:"), False, True),
        (("libc.so.6:syscall", "libtorch_cpu.so:thread_main", "libc.so.6:"), False, True),
        (("libc.so.6:syscall", "a.so:lock"), False, False),
        (("libc.so.6:", "a.so:main_thread_main"), False, False),
    ],
)  # fmt: skip
def test_what_the_names_say_of_a_wait(calls: tuple[str, ...], is_lock: bool, is_without_work: bool) -> None:
    (found,) = together([stack(*calls)])
    assert (found.is_lock, found.is_without_work) == (is_lock, is_without_work)
