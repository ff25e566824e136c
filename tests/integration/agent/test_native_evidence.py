"""Looks at native code on suspicion, of real threads: asked for when they fight, bounded, and kept; and the windows for them."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aie_agent.sources.bpf.build import NoProbes
from aie_agent.sources.bpf.child import ChildError
from aie_agent.sources.bpf.lock_windows import LockWindows, Looked
from aie_agent.stacks.native.evidence import NativeEvidence
from aie_agent.stacks.native.standing import waiting_now
from aie_agent.stacks.py_spy import StacksError, dump
from aie_agent.stacks.sentences import Pair
from aie_agent.stacks.shown import LinedProbes, for_causes
from aie_agent.stacks.shown import stuck as stuck_at
from aie_agent.stacks.waiting import Address
from aie_ebpf.messages import LockStack, OpenWindow, Report, WindowClosed
from aie_telemetry import api
from tests.fakes.lock_programs import build, running

NOT_NOW = "probes are switched off"


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A process and the lock that three of its threads wait for, for ever."""
    with running(build(tmp_path_factory.mktemp("waiting")), "stuck") as tgid:
        deadline_s = time.monotonic() + 60
        while len(found := waiting_now("chat", tgid).stacks) < 3:
            assert time.monotonic() < deadline_s, found
            time.sleep(0.01)
        yield tgid, found[0].address


async def until(reached: Callable[[], object]) -> None:
    """Lets others work until then, for 30 s at most."""
    for _ in range(3000):
        if reached():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def kill(tgid: int) -> None:
    """Ends a process, and waits until it has. Nobody needs to reap it for that."""
    fd = os.pidfd_open(tgid)
    os.kill(tgid, signal.SIGKILL)
    ended, _, _ = select.select([fd], [], [], 30)
    os.close(fd)
    assert ended


class World:
    """A `NativeEvidence` beside a clock that a test turns; what its windows were asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked: list[tuple[str, tuple[Address, ...]]] = []
        self.evidence = NativeEvidence(self._look, 300.0, lambda: self.now_s)

    async def _look(self, engine: str, locks: Sequence[Address], seconds: float) -> Looked:
        assert seconds == 2.0
        self.asked.append((engine, tuple(locks)))
        return Looked((), NOT_NOW)

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a story beside the evidence's work."""

        async def whole() -> None:
            work = asyncio.create_task(self.evidence.run())
            try:
                await story()
            finally:
                work.cancel()

        asyncio.run(whole())


def test_threads_that_wait_already_are_told_without_probes(stuck: Address) -> None:
    world = World()

    async def story() -> None:
        world.evidence.follow({"chat"}, lambda _: (stuck,), 0.0)
        await until(lambda: world.evidence.problems("chat"))

    world.run(story)
    assert world.asked == [("chat", (stuck,))]
    (text,) = world.evidence.sentences("chat", stuck)
    assert text.startswith("3 threads wait in pthread_mutex_lock, called by libworks.so (hold+")
    assert world.evidence.problems("chat") == (f"native stacks of waits that began later: {NOT_NOW}",)
    assert world.evidence.sentences("chat", (stuck[0], stuck[1] + 8)) == ()
    assert world.evidence.sentences("other", stuck) == ()


def test_a_process_that_ends_while_the_window_is_open_was_told_before(stuck: Address, tmp_path: Path) -> None:
    """What was seen of it is kept, beside that of the one that lives."""
    with running(build(tmp_path), "stuck") as tgid:
        deadline_s = time.monotonic() + 60
        while len(found := waiting_now("chat", tgid).stacks) < 3:
            assert time.monotonic() < deadline_s, found
            time.sleep(0.01)
        locks = (tgid, found[0].address), stuck

        async def ends(engine: str, locks: Sequence[Address], seconds: float) -> Looked:
            kill(tgid)
            return Looked((), NOT_NOW)

        async def story() -> NativeEvidence:
            evidence = NativeEvidence(ends, 300.0, lambda: 0.0)
            work = asyncio.create_task(evidence.run())
            evidence.follow({"chat"}, lambda _: locks, 0.0)
            await until(lambda: evidence.problems("chat"))
            work.cancel()
            return evidence

        evidence = asyncio.run(story())
    assert evidence.problems("chat")[0] == f"process {tgid} ended before its native stacks were told"
    for lock in locks:
        (text,) = evidence.sentences("chat", lock)
        assert text.startswith("3 threads wait in pthread_mutex_lock, called by libworks.so (hold+")


def test_it_is_bounded_and_forgets(stuck: Address) -> None:
    """Once where all is known; of a lock that nobody was seen at again after a minute; kept for five minutes after the fight."""
    world = World()
    unknown = stuck[0], stuck[1] + 8

    async def story() -> None:
        follow = world.evidence.follow
        follow({"chat"}, lambda _: (), 0.0)
        assert world.asked == []
        follow({"chat"}, lambda _: (stuck,), 1.0)
        await until(lambda: world.evidence.problems("chat"))
        for now_s in (2.0, 30.0, 90.0):
            follow({"chat"}, lambda _: (stuck,), now_s)
        follow({"chat"}, lambda _: (stuck, unknown), 91.0)
        await until(lambda: len(world.asked) == 2)
        follow({"chat"}, lambda _: (stuck, unknown), 120.0)
        world.now_s = 120.0
        follow((), lambda _: (stuck,), 121.0)
        assert world.evidence.sentences("chat", stuck)
        follow((), lambda _: (stuck,), 500.0)
        assert world.evidence.sentences("chat", stuck) == ()
        await asyncio.sleep(0)

    world.run(story)
    assert [locks for _, locks in world.asked] == [(stuck,), (stuck, unknown)]


def test_locks_are_shown_with_their_callers(stuck: Address) -> None:
    """The interpreter lock is Python's to tell, and so is a lock that nobody knows more of."""

    def lock(kind: str, address: int) -> api.Lock:
        return api.Lock(
            tgid=stuck[0], address=f"{address:#x}", kind="gil" if kind == "gil" else "lock", waiting_threads=1.0,
            waits_per_second=1.0, longest_seconds=1.0, waiters=1,
        )  # fmt: skip

    class Probes(NoProbes):
        def locks(self, engine: str) -> tuple[api.Lock, ...]:
            """Two locks, and the interpreter's."""
            return lock("lock", stuck[1]), lock("lock", 8), lock("gil", stuck[1])

    def native(_: str, address: Address) -> tuple[str, ...]:
        return ("told",) if address == stuck else ()

    shown = LinedProbes(Probes(), lambda _: None, native).locks("chat")
    assert [each.native for each in shown] == [("told",), (), ()]


def test_without_probes_there_is_a_reason() -> None:
    looked = asyncio.run(NoProbes("switched off").lock_stacks("chat", (), 2.0))
    assert looked == Looked((), "switched off")


STACK = LockStack(engine="chat", tgid=1, tid=2, address=3, pc=4, sp=5, registers={}, stack=b"")


def closed(engine: str = "chat", set_: str = "lock_stacks", reason: str = "") -> WindowClosed:
    return WindowClosed(set=set_, engine=engine, open_s=2.0, hits=3, stolen_s=0.0, reason=reason)


def test_a_window_has_the_stacks_of_its_engine_up_to_its_end() -> None:
    async def story() -> list[Looked]:
        windows, sent = LockWindows(), list[OpenWindow]()
        looks = [asyncio.create_task(windows.look(sent.append, engine, ((1, 3),), 2.0)) for engine in ("chat", "other", "chat")]
        await asyncio.sleep(0)
        assert [(each.set, each.engine, each.seconds, each.locks) for each in sent] == [
            ("lock_stacks", "chat", 2.0, ((1, 3),)), ("lock_stacks", "other", 2.0, ((1, 3),)),
        ]  # fmt: skip
        windows.take([Report(period_s=1.0, lock_stacks=(STACK,)), closed(set_="gc"), closed("nobody")])
        windows.take([Report(period_s=1.0, lock_stacks=(STACK,)), closed(), closed("other", reason="took too much")])
        windows.take([Report(period_s=1.0, lock_stacks=(STACK,)), closed()])
        return list(await asyncio.gather(*looks))

    first, other, second = asyncio.run(story())
    assert first == Looked((STACK, STACK))
    assert other == Looked((), "took too much")
    assert second == Looked((), "a window on its locks is open already")


def test_a_child_that_goes_takes_its_windows_with_it() -> None:
    def gone(_: OpenWindow) -> None:
        raise ChildError("the child is gone")

    async def story() -> tuple[Looked, Looked, Looked]:
        windows = LockWindows()
        refused = await windows.look(gone, "chat", (), 2.0)
        look = asyncio.create_task(windows.look(lambda _: None, "chat", (), 2.0))
        await asyncio.sleep(0)
        windows.fail("it ended")
        failed = await look
        again = asyncio.create_task(windows.look(lambda _: None, "chat", (), 2.0))
        await asyncio.sleep(0)
        windows.take([closed()])
        return refused, failed, await again

    assert asyncio.run(story()) == (Looked((), "the child is gone"), Looked((), "it ended"), Looked(()))


def test_what_is_odd_about_one_engine_ends_nothing(stuck: Address) -> None:
    """A look that fails in a way that nobody foresaw is logged, and the next engine has its own."""

    tried: list[str] = []

    async def fails(engine: str, locks: Sequence[Address], seconds: float) -> Looked:
        if engine == "odd":
            tried.append(engine)
            raise RuntimeError("unforeseen")
        return Looked((), "done")

    async def story() -> None:
        evidence = NativeEvidence(fails, 300.0, lambda: 0.0)
        work = asyncio.create_task(evidence.run())
        evidence.follow({"odd"}, lambda _: (stuck,), 0.0)
        await until(lambda: tried)
        evidence.follow({"odd", "chat"}, lambda _: (stuck,), 1.0)
        await until(lambda: evidence.problems("chat"))
        work.cancel()

    asyncio.run(story())


# A thread of Python that calls into a library, whose lock nobody gives back; and one that waits for a lock of Python's.
HANGS = """
import ctypes, sys, threading
library = ctypes.CDLL(sys.argv[1])
library.enter()
lock = threading.Lock()
lock.acquire()
def encode():
    library.work(0)
threading.Thread(target=encode, name="encoder", daemon=True).start()
threading.Thread(target=lock.acquire, name="taker", daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_python_thread_that_hangs_in_a_library_is_told_with_what_holds_it(tmp_path: Path) -> None:
    """Its Python line by py-spy, and below that the library's function and the lock; Python's own lock has its line alone."""
    build(tmp_path)
    command = [sys.executable, "-c", HANGS, tmp_path / "libworks.so"]
    world = World()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as python:
        assert python.stdout is not None
        python.stdout.readline()
        deadline_s = time.monotonic() + 60
        while len(waiting_now("chat", python.pid).stacks) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        try:
            pair = Pair("chat", 0.0, (dump(python.pid, 0.0),), (dump(python.pid, 6.0),))
        except StacksError as error:
            if error.reason == "no_privilege":
                pytest.skip(str(error))
            raise

        async def story() -> None:
            world.evidence.follow({"chat"}, lambda _: stuck_at(pair), 0.0)
            await until(lambda: world.evidence.problems("chat"))

        world.run(story)
        python.kill()
    assert {tgid for tgid, _ in stuck_at(pair)} == {python.pid}
    told = for_causes(pair, (), native_of=lambda lock: world.evidence.sentences("chat", lock)).hang
    assert any(each.startswith("thread encoder waits at <string>:8 (encode) in both dumps") for each in told), told
    native = [each for each in told if each.startswith("in native code")]
    assert len(native) == 1
    assert native[0].startswith("in native code, 1 thread waits in pthread_mutex_lock, called by libworks.so (hold+")
