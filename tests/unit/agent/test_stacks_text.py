"""Dumps merged, folded and as sentences: where a thread waits, who waits for whom, what is hostile."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.commands import stacks_text
from aie_agent.commands.stacks_native import NativeLock, NativeSeen
from aie_agent.stacks.merge import folded, merge, tree
from aie_agent.stacks.model import MOST_FRAMES, Dump, Frame, Thread, clean
from aie_agent.stacks.py_spy import StacksError, parse, refusal
from aie_agent.stacks.sentences import Pair, gil_sentences, hang_sentences, lock_sentences
from aie_agent.stacks.shown import for_causes, page, with_lines
from aie_agent.stacks.thread_states import KernelThread, futex_address, owner_of
from aie_agent.stacks.waiting import idle_futexes, line_of, place, standing, waiters
from aie_telemetry import api

LIB = "/opt/python/lib/python3.11"
RUN = Frame("Thread.run", "threading.py", f"{LIB}/threading.py", 982)
WAIT = Frame("Condition.wait", "threading.py", f"{LIB}/threading.py", 327)
GET = Frame("Queue.get", "queue.py", f"{LIB}/queue.py", 171)
POOL = Frame("_worker", "concurrent/futures/thread.py", f"{LIB}/concurrent/futures/thread.py", 81)
WORK = Frame("work", "lock.py", "/srv/lock.py", 20)
WORK_INSIDE = Frame("work", "lock.py", "/srv/lock.py", 21)
CRITICAL = Frame("critical", "lock.py", "/srv/lock.py", 31)
ENCODE = Frame("encode", "tokenizer.py", "/srv/tokenizer.py", 12)
FUTEX = 0x7F00


def waiting(name: str, tid: int, *frames: Frame, futex: int | None = FUTEX, state: str = "S") -> Thread:
    return Thread(tid, name, frames, state, futex)


def dump(*threads: Thread, tgid: int = 10, time_s: float = 100.0) -> Dump:
    return Dump(tgid, time_s, threads)


def pair(first: Dump, last: Dump) -> Pair:
    return Pair("e", first.time_s, (first,), (last,))


FOUR = [waiting(f"worker-{number}", number, WORK, RUN) for number in range(4)]
HOLDER = waiting("worker-4", 4, CRITICAL, WORK_INSIDE, RUN, futex=None)
MAIN = waiting("MainThread", 10, WAIT, GET, ENCODE, futex=0x1)


@pytest.mark.parametrize(
    ("frames", "where"),
    [
        ((WORK, RUN), WORK),
        ((WAIT, GET, ENCODE, RUN), ENCODE),
        ((GET, POOL, RUN), None),
        ((), None),
        ((Frame("f", "queue.py", "/srv/queue.py", 1), WORK), Frame("f", "queue.py", "/srv/queue.py", 1)),
        (
            (Frame("g", "queue.py", f"{LIB}/site-packages/vendor/queue.py", 1), WORK),
            Frame("g", "queue.py", f"{LIB}/site-packages/vendor/queue.py", 1),
        ),
        ((Frame("select", "selectors.py", "/usr/lib/python3.13t/selectors.py", 468), WORK), WORK),
        ((Frame("_run_code", "<frozen runpy>", "<frozen runpy>", 88),), None),
        ((Frame("run_once", "asyncio/base_events.py", f"{LIB}/asyncio/base_events.py", 1894), WORK), WORK),
    ],
)
def test_where_a_thread_waits_is_the_programs_own_line(frames: tuple[Frame, ...], where: Frame | None) -> None:
    assert place(Thread(1, "t", frames)) == where


def test_who_waits_for_one_lock_and_who_is_inside() -> None:
    (group,) = waiters(dump(*FOUR, HOLDER, MAIN))
    assert group.threads == ("worker-0", "worker-1", "worker-2", "worker-3")
    assert (group.futex, group.place) == (FUTEX, WORK)
    assert group.inside == (HOLDER, CRITICAL)


def test_of_two_threads_inside_nobody_knows_which_holds_the_lock() -> None:
    other = waiting("worker-5", 5, CRITICAL, WORK_INSIDE, RUN, futex=None)
    assert waiters(dump(*FOUR, HOLDER, other))[0].inside is None


def test_an_idle_pool_on_one_futex_waits_for_no_lock() -> None:
    pool = [waiting(f"pool-{number}", number, POOL, RUN) for number in range(8)]
    assert waiters(dump(*pool)) == ()


def test_where_only_idle_workers_of_a_pool_wait() -> None:
    pool = [waiting(f"pool-{number}", number, POOL, RUN) for number in range(3)]
    elsewhere = waiting("pool-9", 9, POOL, RUN, futex=0x9)
    assert idle_futexes([dump(*pool, MAIN), dump(elsewhere)]) == {(10, FUTEX), (10, 0x9)}
    assert idle_futexes([dump(*pool), dump(FOUR[0])]) == {(10, FUTEX)}, "one that had just come back from its work"
    assert idle_futexes([dump(*pool), dump(*FOUR)]) == frozenset(), "a lock of the program"


def test_where_locks_are_known_only_they_count_and_one_waiter_is_enough() -> None:
    found = dump(*FOUR, MAIN)
    assert waiters(found, {(10, 0x99)}) == ()
    assert waiters(found, {(11, FUTEX)}) == (), "an address means nothing in another process"
    (group,) = waiters(found, {(10, 0x1)})
    assert group.threads == ("MainThread",)


def test_a_line_is_told_only_where_it_is_clear() -> None:
    """One that held the lock when its stack was read may wait when the kernel is asked; one that is taken at two lines has none."""
    elsewhere = [waiting(f"other-{number}", 20 + number, ENCODE, RUN) for number in range(len(FOUR))]
    assert line_of([dump(*FOUR), dump(HOLDER)], (10, FUTEX)) == WORK
    assert line_of([dump(*FOUR), dump(elsewhere[0])], (10, FUTEX)) == WORK
    assert line_of([dump(*FOUR), dump(*elsewhere)], (10, FUTEX)) is None
    assert line_of([dump(HOLDER)], (10, FUTEX)) is None
    assert line_of([dump(*FOUR)], (11, FUTEX)) is None


def test_what_stands_still_is_the_same_frame_by_frame() -> None:
    moved = waiting("worker-4", 4, WORK, RUN)
    found = list(standing(dump(HOLDER, MAIN), dump(moved, MAIN)))
    assert [(each.thread, each.place, each.states) for each in found] == [("MainThread", ENCODE, ("S", "S"))]


def test_the_sentences_of_a_hang() -> None:
    idle = waiting("pool-1", 5, POOL, RUN)
    spinning = waiting("loop", 6, ENCODE, futex=None, state="R")
    first, last = dump(spinning, idle, MAIN), dump(spinning, idle, MAIN, time_s=106.0)
    assert hang_sentences(pair(first, last)) == (
        "thread MainThread waits at tokenizer.py:12 (encode) in both dumps, 6 s apart",
        "thread loop runs at tokenizer.py:12 (encode) in both dumps, 6 s apart",
    )


def test_processes_that_stand_at_one_line_are_one_sentence() -> None:
    first = [dump(waiting("MainThread", tgid, ENCODE, futex=None), tgid=tgid) for tgid in (10, 11)]
    odd = dump(waiting("MainThread", 12, WORK, futex=None, state="D"), tgid=12)
    both = Pair("e", 100.0, (*first, odd), tuple(Dump(each.tgid, 106.0, each.threads) for each in (*first, odd)))
    assert hang_sentences(both) == (
        "thread MainThread of 2 processes (10, 11) waits at tokenizer.py:12 (encode) in both dumps, 6 s apart",
        "thread MainThread of process 12 waits in the kernel at lock.py:20 (work) in both dumps, 6 s apart",
    )


def test_many_threads_that_stand_still_are_counted() -> None:
    threads = [waiting(f"t{number}", number, Frame("f", "a.py", "/a.py", number), futex=None) for number in range(20)]
    sentences = hang_sentences(pair(dump(*threads), dump(*threads, time_s=106.0)))
    assert len(sentences) == 5
    assert sentences[-1] == "16 more threads are where they were"


def test_the_sentences_of_locks() -> None:
    both = pair(dump(*FOUR, HOLDER), dump(*FOUR, HOLDER, time_s=106.0))
    assert lock_sentences(both, None) == ("4 threads wait at lock.py:20 (work), thread worker-4 waits at lock.py:31 (critical)",)
    assert lock_sentences(pair(dump(HOLDER), dump(*FOUR, HOLDER)), None) == (), "at one moment only"


def test_the_sentences_of_the_gil() -> None:
    holder = Thread(1, "tokenise", (ENCODE, RUN), "R", None, holds_gil=True)
    both = pair(dump(holder, MAIN), dump(holder, MAIN))
    assert gil_sentences(both) == ("thread tokenise held the GIL at tokenizer.py:12 (encode)",)
    assert gil_sentences(pair(dump(MAIN), dump(MAIN))) == ()


def test_locks_get_their_lines_and_causes_their_sentences() -> None:
    rows = [
        api.Lock(
            tgid=10, address=hex(address), kind=kind, waiting_threads=1.0, waits_per_second=1.0, longest_seconds=1.0, waiters=1
        )
        for address, kind in ((FUTEX, "lock"), (FUTEX, "gil"), (0x99, "lock"))
    ]
    both = pair(dump(*FOUR, HOLDER, MAIN), dump(*FOUR, HOLDER, MAIN, time_s=106.0))
    assert [lock.line for lock in with_lines(rows, both)] == ["lock.py:20 (work)", None, None]
    assert with_lines(rows, None) == tuple(rows)
    stacks = for_causes(both, rows)
    assert stacks.locks[0].startswith("4 threads wait at lock.py:20 (work)")
    assert "MainThread" in stacks.hang[0]
    shown = page(both)
    assert [each.time_s for each in shown.dumps] == [100.0, 106.0]
    thread = shown.dumps[0].threads[0]
    assert (thread.name, thread.state, thread.futex, thread.place) == ("worker-0", "S", "0x7f00", "lock.py:20 (work)")
    assert [frame.function for frame in thread.frames] == ["work", "Thread.run"]
    assert msgspec.json.decode(msgspec.json.encode(shown), type=api.StacksPage) == shown


def test_dumps_are_merged_thread_by_thread() -> None:
    moved = waiting("worker-4", 4, WORK, RUN)
    merged = merge([dump(HOLDER, MAIN), dump(HOLDER), dump(moved)])
    assert [(each.name, each.tid, [count for _, count in each.stacks]) for each in merged] == [
        ("worker-4", 4, [2, 1]),
        ("MainThread", 10, [1]),
    ]
    assert list(folded(merged)) == [
        "process 10;worker-4;Thread.run (threading.py:982);work (lock.py:21);critical (lock.py:31) 2",
        "process 10;worker-4;Thread.run (threading.py:982);work (lock.py:20) 1",
        "process 10;MainThread;encode (tokenizer.py:12);Queue.get (queue.py:171);Condition.wait (threading.py:327) 1",
    ]
    assert list(tree(merged[0])) == [
        "3 Thread.run (threading.py:982)",
        "  2 work (lock.py:21)",
        "  2 critical (lock.py:31)",
        "  1 work (lock.py:20)",
    ]


NAMES = st.text(st.characters(), max_size=12) | st.sampled_from([";", "\n", "a;b\nc 7", "\x1b[2J", "\u202e", " ", ""])
FRAMES = st.builds(lambda name, file, line: Frame(clean(name), clean(file), clean(file), line), NAMES, NAMES, st.integers(0, 9))
THREADS = st.builds(lambda name, frames: Thread(1, clean(name), tuple(frames)), NAMES, st.lists(FRAMES, max_size=4))


@given(st.lists(st.lists(THREADS, max_size=3), max_size=3))
def test_folded_lines_can_be_read_back_whatever_names_are(threads: list[list[Thread]]) -> None:
    """As flame-graph programs do: the last blank ends the stack, `;` parts the frames."""
    dumps = [dump(*each) for each in threads]
    lines = list(folded(merge(dumps)))
    depths: Counter[int] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        assert line.isprintable()
        assert all(part.strip() for part in stack.split(";"))
        depths[len(stack.split(";"))] += int(count)
    assert depths == Counter(2 + len(thread.frames) for each in dumps for thread in each.threads)
    for thread in merge(dumps):
        assert all(line.isprintable() for line in tree(thread))


def test_py_spys_json_becomes_threads_with_the_kernels_view() -> None:
    output = msgspec.json.encode(
        [
            {"thread_name": "a\x1b[31m\n", "os_thread_id": 5, "owns_gil": True, "more": 1, "frames": [
                {"name": "f", "filename": "/srv/pkg/m.py", "short_filename": "pkg/m.py", "line": 3, "locals": None},
            ]},
            {"thread_name": None, "thread_id": 77, "os_thread_id": None, "frames": []},
        ]
    )  # fmt: skip
    first, second = parse(output, {5: KernelThread(1005, "S", 0x10)})
    assert first == Thread(1005, "a\ufffd[31m\ufffd", (Frame("f", "pkg/m.py", "/srv/pkg/m.py", 3),), "S", 0x10, True)
    assert (second.name, second.tid, second.state) == ("thread 77", None, "")


def test_deep_and_long_things_are_cut() -> None:
    frames = [{"name": "x" * 10_000, "filename": "f.py", "line": 1}] * 5000
    (thread,) = parse(msgspec.json.encode([{"frames": frames}]), {})
    assert len(thread.frames) == MOST_FRAMES
    assert len(thread.frames[0].function) == 200


def test_before_python_311_the_kernels_thread_is_found_by_its_stack() -> None:
    threads = {
        5: KernelThread(5, "S", 0x10, 0x7F0000100000 - 4096),
        6: KernelThread(6, "R"),
        7: KernelThread(7, "S", None, 0x7FFD00000000),
    }
    rows = [{"thread_name": name, "thread_id": number} for name, number in (
        ("worker", 0x7F0000100000), ("runs", 0x7F0000900000), ("MainThread", 0x7F00F0000000), ("none", None),
    )]  # fmt: skip
    found = parse(msgspec.json.encode(rows), threads, threads[7])
    assert [(each.tid, each.futex) for each in found] == [(5, 0x10), (None, None), (7, None), (None, None)]
    assert owner_of(100, [KernelThread(1, "S", None, 90), KernelThread(2, "S", None, 80)]) is None, "two of them: not clear"


@pytest.mark.parametrize("output", [b"", b"{}", b"[1]", b"\xff", b'[{"frames": [{"line": "x"}]}]', b"[" * 100_000])
def test_what_is_not_understood_is_one_line(output: bytes) -> None:
    with pytest.raises(StacksError) as caught:
        parse(output, {})
    assert caught.value.reason == "failed"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ("Permission Denied: Try running again with elevated permissions", "no_privilege"),
        ("Error: Failed\n\nCaused by:\n    0: Permission denied (os error 13)", "no_privilege"),
        ("Error: Operation not permitted (os error 1)", "no_privilege"),
        ("Error: Failed to find python version from target process", "not_python"),
        ("Error: Unsupported version of Python: 3.19.0a1+", "version"),
        ("Error: Failed to copy PyCodeObject\nCaused by: Bad address (os error 14)", "failed"),
    ],
)
def test_what_py_spy_complains_of(errors: str, reason: str) -> None:
    found = refusal(7, errors)
    assert found.reason == reason
    assert "7" in str(found)
    assert str(found).isprintable()


@pytest.mark.parametrize(
    ("line", "machine", "address"),
    [
        (b"202 0x56004808cc30 0x189 0x0 0x0 0x0 0xffffffff 0x7f66 0x7f67\n", "x86_64", 0x56004808CC30),
        (b"98 0x10 0x189 0x0 0x0 0x0 0x0 0x1 0x2\n", "aarch64", 0x10),
        (b"98 0x10 0x189 0x0 0x0 0x0 0x0 0x1 0x2\n", "x86_64", None),
        (b"230 0x1 0x1 0x7f 0x0 0x0 0x0 0x1 0x2\n", "x86_64", None),
        (b"running\n", "x86_64", None),
        (b"-1 0x7ffd 0x7f66\n", "x86_64", None),
        (b"", "riscv64", None),
    ],
)
def test_the_futex_that_a_thread_waits_on(line: bytes, machine: str, address: int | None) -> None:
    assert futex_address(line, machine) == address


def test_native_locks_stand_with_their_python_line_where_they_have_one() -> None:
    python = NativeLock(
        tgid=10, address=FUTEX, threads=("4 threads wait in sem_wait, called by Python's interpreter",), waiting_threads=3.0
    )
    other = NativeLock(tgid=10, address=0x99, threads=("2 threads wait in a, called by b", "1 thread waits in c, called by d"))
    seen = NativeSeen(locks=(python, other), idle=2, window_s=2.0, problems=("not \x1b[31mall",))
    assert list(stacks_text.native(seen, [dump(*FOUR)])) == [
        "threads that wait for locks, by native code:",
        f"    lock {FUTEX:#x} of process 10, at {WORK.place}: 3.00 threads wait on average",
        "        4 threads wait in sem_wait, called by Python's interpreter",
        "    lock 0x99 of process 10:",
        "        2 threads wait in a, called by b",
        "        1 thread waits in c, called by d",
        "    and 2 places where they wait for work, or one thread by itself",
        "    not seen: not \N{REPLACEMENT CHARACTER}[31mall",
    ]
    nothing = NativeSeen(locks=(), idle=0, window_s=2.0, problems=())
    assert list(stacks_text.native(nothing, [])) == ["threads that wait for locks, by native code: none were seen"]
