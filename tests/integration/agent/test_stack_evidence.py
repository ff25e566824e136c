"""Two dumps of real processes, taken when something is found wrong with their engine, and kept."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from aie_agent.stacks.evidence import MOST_PROCESSES, StackEvidence
from aie_agent.stacks.model import Dump
from aie_agent.stacks.py_spy import StacksError, dump
from aie_agent.stacks.sentences import Pair
from aie_agent.stacks.shown import for_causes
from tests.fakes.stack_programs import line_of, running

RETENTION_S = 300.0
HUNG = ("engine_hung", "e")


class World:
    """The evidence, a clock that stands until it is set, and what is read, when, by how many at a time."""

    def __init__(self, apart_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.looks: list[int] = []
        self.together = 0
        self._inside = 0
        self._lock = threading.Lock()
        self.evidence = StackEvidence(RETENTION_S, lambda: self.now_s, self._take, apart_s=apart_s)

    def _take(self, tgid: int, now_s: float) -> Dump:
        with self._lock:
            self._inside += 1
            self.together = max(self.together, self._inside)
            self.looks.append(tgid)
        try:
            return dump(tgid, now_s)
        finally:
            with self._lock:
                self._inside -= 1

    def follow(self, *suspicions: tuple[str, str], tgids: tuple[int, ...] = ()) -> None:
        self.evidence.follow(suspicions, lambda _: tgids, self.now_s)


@asynccontextmanager
async def at_work(evidence: StackEvidence) -> AsyncIterator[None]:
    task = asyncio.create_task(evidence.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 -- what is waited for happens in other processes
            await asyncio.sleep(0.01)


@contextmanager
def engine(name: str) -> Iterator[int]:
    """The program `name`, which may be read; its tgid."""
    with running(name) as (process, _):
        try:
            dump(process.pid, 0.0)
        except StacksError as error:
            if error.reason == "no_privilege":
                pytest.skip(str(error))
            raise
        yield process.pid


async def test_what_hangs_is_told_by_its_line() -> None:
    world = World(apart_s=0.2)
    with running("hang") as (process, _):
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        await eventually(lambda: main_line(process.pid) == line_of("stuck"))
        async with at_work(world.evidence):
            world.follow(HUNG, tgids=(process.pid,))
            await eventually(lambda: taken(world))
        pair = world.evidence.of("e", "engine_hung")
        assert pair is not None
        sentences = for_causes(pair, ()).hang
        assert f"thread MainThread waits at stack_programs.py:{line_of('stuck')} (encode) in both dumps, 0 s apart" in sentences


def main_line(tgid: int) -> int | None:
    """Where the main thread of the hanging program is."""
    frames = next(thread.frames for thread in dump(tgid, 0.0).threads if thread.name == "MainThread")
    return next((frame.line for frame in frames if frame.function == "encode"), None)


async def test_who_fights_for_a_lock_is_told() -> None:
    world = World()
    with engine("fight") as tgid:
        async with at_work(world.evidence):
            while True:  # a dump may fall just between two holders
                world.now_s += 100
                world.follow()
                world.follow(("lock_contention", "e"), tgids=(tgid,))
                await eventually(lambda: (pair := world.evidence.of("e", "lock_contention")) is not None and pair.last)
                pair = world.evidence.of("e", "lock_contention")
                assert pair is not None
                locks = for_causes(pair, ()).locks
                if any("threads wait at" in text and "(critical)" in text for text in locks):
                    break
    (text,) = [text for text in locks if "(critical)" in text]
    assert f"threads wait at stack_programs.py:{line_of('wanted')} (work), thread worker-" in text
    at = f"at stack_programs.py:{line_of('critical')} (critical)"
    assert text.endswith((f"waits {at}", f"runs {at}")), "it sleeps there, unless it was looked at when it had just woken"


def taken(world: World, engine: str = "e") -> Pair | None:
    """The pair, once it is one: until then there are only first dumps."""
    pair = world.evidence.of(engine)
    return pair if pair is not None and (pair.last or not pair.first) else None


async def test_the_first_dumps_are_there_before_the_second_ones() -> None:
    world = World(apart_s=60.0)
    with engine("pool") as tgid:
        async with at_work(world.evidence):
            world.follow(("lock_contention", "e"), tgids=(tgid,))
            await eventually(lambda: world.evidence.of("e", "lock_contention"))
        pair = world.evidence.of("e", "lock_contention")
        assert pair is not None
        assert (len(pair.first), len(pair.last)) == (1, 0)
        stacks = for_causes(pair, ())
        assert (stacks.hang, stacks.locks) == ((), ()), "nothing is known of a second moment"
        assert len(stacks.idle) == 1, "the queue of the pool: eight workers wait there, and for no lock"


async def test_one_pair_a_minute_and_one_engine_at_a_time() -> None:
    world = World()
    with engine("spin") as first, engine("spin") as second:
        tgids = {"e": (first,), "f": (second,)}
        async with at_work(world.evidence):
            for _ in range(3):
                world.evidence.follow([HUNG, ("engine_hung", "f"), ("lock_contention", "e")], lambda name: tgids[name], world.now_s)
            await eventually(lambda: taken(world) and taken(world, "f"))
            assert sorted(world.looks) == sorted([first, first, second, second])
            assert world.together == 1
            for _ in range(59):
                world.now_s += 1
                world.follow()
                world.follow(HUNG, tgids=(first,))
                await asyncio.sleep(0)
            assert len(world.looks) == 4, "begun anew, but less than a minute after the last"
            world.now_s += 1
            world.follow(HUNG, tgids=(first,))
            await eventually(lambda: len(world.looks) == 6)


async def test_evidence_is_of_this_time_only() -> None:
    world = World()
    with engine("spin") as tgid:
        async with at_work(world.evidence):
            world.follow(HUNG, tgids=(tgid,))
            assert world.evidence.of("e", "engine_hung") is None, "not taken yet"
            await eventually(lambda: taken(world))
            assert world.evidence.of("e", "engine_hung") is not None
            assert world.evidence.of("e", "lock_contention") is None, "that was not found"
            world.now_s += 10 * RETENTION_S
            world.follow(HUNG, tgids=(tgid,))
            assert world.evidence.of("e", "engine_hung") is not None, "kept for as long as it holds"
            world.follow()
            assert world.evidence.of("e", "engine_hung") is None
            assert world.evidence.of("e") is not None, "to look at"
            world.now_s += RETENTION_S + 1
            world.follow()
            assert world.evidence.of("e") is None


async def test_why_there_is_none() -> None:
    world = World()
    async with at_work(world.evidence):
        world.follow(HUNG, tgids=(2**22 + 1,))
        await eventually(lambda: taken(world))
        pair = world.evidence.of("e", "engine_hung")
        assert pair is not None
        assert pair.dumps == ()
        assert for_causes(pair, ()).problems == (f"process {2**22 + 1} is not there",)
        world.now_s += 61
        world.follow(HUNG, tgids=(os.getpid(),))
        await eventually(lambda: len(world.looks) > 1)


async def test_what_ends_between_the_two_dumps_is_no_pair() -> None:
    world = World(apart_s=1.0)
    with running("spin") as (process, _), engine("spin") as other:
        async with at_work(world.evidence):
            world.follow(HUNG, tgids=(process.pid, other))
            await eventually(lambda: len(world.looks) == 2)
            process.kill()
            process.wait()
            await eventually(lambda: taken(world))
    pair = world.evidence.of("e")
    assert pair is not None
    assert [each.tgid for each in pair.first] == [each.tgid for each in pair.last] == [other]
    assert pair.problems == (f"process {process.pid} is not there",)


async def test_what_is_over_before_its_turn_is_not_looked_at() -> None:
    world = World()
    world.follow(HUNG, tgids=(os.getpid(),))
    world.follow()
    async with at_work(world.evidence):
        await asyncio.sleep(0.05)
    assert world.looks == []


async def test_an_engine_of_many_processes_is_looked_at_in_part() -> None:
    world = World()
    missing = tuple(range(2**22 + 1, 2**22 + 1 + 3 * MOST_PROCESSES))
    async with at_work(world.evidence):
        world.follow(HUNG, tgids=missing)
        await eventually(lambda: taken(world))
    assert world.looks == list(missing[:MOST_PROCESSES])


async def test_a_bug_ends_neither_the_agent_nor_the_others_dumps(caplog: pytest.LogCaptureFixture) -> None:
    def broken(tgid: int, now_s: float) -> Dump:
        if tgid == 1:
            raise ZeroDivisionError("a bug")
        return Dump(tgid, now_s, (), 7)

    evidence = StackEvidence(RETENTION_S, lambda: 1000.0, broken, apart_s=0.0)
    async with at_work(evidence):
        evidence.wanted("bad", (1,), 1000.0)
        evidence.wanted("good", (2,), 1000.0)
        await eventually(lambda: evidence.of("good"))
    assert evidence.of("bad") is None
    assert "stacks of engine bad could not be taken" in caplog.text
