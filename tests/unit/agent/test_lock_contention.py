"""When threads that wait for each other are a finding, and all that looks like it and is none."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from aie_agent.analysis.causes import ENGINE_CAUSES, WITH_STACKS
from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.findings import EngineCause, Limits, Stacks, View
from aie_agent.analysis.lock_contention import _GIL, _LOCK, contended, episode, gil_contention, lock_contention
from aie_agent.samples import Batch, Point
from aie_agent.series import Series
from aie_agent.store import Store
from aie_telemetry.api import Finding, Lock
from aie_telemetry.catalogue import CATALOGUE, Kind

START_S = 1000.0
Second = dict[str, float]
"""Thread-seconds waited within one second, by reason."""


class World:
    """An engine whose probes report once a second, as increases, and only what increased."""

    def __init__(self) -> None:
        self.store = Store(max_series=1000, retention_s=300.0)
        self.state = "up"
        self.stacks: Stacks | None = Stacks()
        self.locks: Sequence[Lock] = ()
        self.now_s = START_S
        self.view = View(
            store=self.store,
            engines=["e"],
            state=lambda _: self.state,
            processes=lambda _: [],
            unanswered_since_s=lambda _: None,
            limits=Limits(),
            stacks=lambda engine, cause: self.stacks,
            locks=lambda engine: self.locks,
        )

    def second(self, **waited: float) -> None:
        """One second passes, in which threads waited so long."""
        self.now_s += 1.0
        points = [
            Point("aie_process_wait_seconds_total", Kind.COUNTER, (("engine", "e"), ("reason", reason)), value, delta=True)
            for reason, value in waited.items()
        ]
        points += [
            Point("aie_process_lock_waits_total", Kind.COUNTER, (("engine", "e"), ("kind", reason)), 20 * value, delta=True)
            for reason, value in waited.items()
        ]
        self.store.apply(Batch("bpf", self.now_s, points))

    def seconds(self, count: int, cause: EngineCause = lock_contention, **waited: float) -> list[Finding | None]:
        """So many such seconds, and what was found at the end of each."""
        found = []
        for _ in range(count):
            self.second(**waited)
            found.append(cause(self.view, "e", self.now_s))
        return found


def first_found(found: Sequence[Finding | None]) -> int | None:
    return next((index for index, each in enumerate(found) if each is not None), None)


def test_threads_that_wait_for_a_lock_are_found_within_the_window() -> None:
    world = World()
    world.seconds(20, lock=0.0)
    found = world.seconds(20, lock=3.0)
    at = first_found(found)
    assert at is not None
    assert at <= 4, "with three threads that wait all the time, three of five seconds are enough"
    finding = found[-1]
    assert finding is not None
    assert (finding.cause, finding.subject, finding.severity) == ("lock_contention", "e", "warning")
    assert finding.since_s == START_S + 20 + at + 1
    waited, waits = finding.evidence
    assert "3.00 s a second in total over the last 5 s (limit 0.5)" in waited.text
    assert "60 such waits a second" in waits.text
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()
    assert "aie-agent stacks --engine e" in finding.advice


@pytest.mark.parametrize(("waited", "is_found"), [(0.49, False), (0.51, True)])
def test_the_threshold_of_locks(waited: float, is_found: bool) -> None:
    world = World()
    assert (first_found(world.seconds(60, lock=waited)) is not None) == is_found


@pytest.mark.parametrize(("waited", "is_found"), [(0.99, False), (1.01, True)])
def test_the_threshold_of_the_gil(waited: float, is_found: bool) -> None:
    world = World()
    found = world.seconds(60, gil_contention, gil=waited)
    assert (first_found(found) is not None) == is_found
    if is_found:
        assert found[-1] is not None
        assert found[-1].cause == "gil_contention"
        assert "over the last 10 s (limit 1)" in found[-1].evidence[0].text


def test_threads_that_just_reach_the_threshold_of_the_gil_are_found_without_waiting_for_the_window() -> None:
    world = World()
    world.stacks = None
    world.seconds(30, gil_contention, gil=0.1)
    at = first_found(world.seconds(20, gil_contention, gil=1.05))
    assert at is not None
    assert at + 1 <= 7, "and the first look at the stacks is not waited for"


@pytest.mark.parametrize("waited", [1.0, 1.7, 3.0])
def test_bursts_of_five_seconds_at_the_gil_are_none(waited: float) -> None:
    """Four, where so many wait that half of ten seconds would be enough."""
    world = World()
    for second in range(300):
        world.second(gil=waited if second % 30 in range(10, 15 if waited < 1.8 else 14) else 0.1)
        assert gil_contention(world.view, "e", world.now_s) is None


@pytest.mark.parametrize(("mean", "spread", "alike"), [(0.6, 0.2, 0.5), (0.7, 0.2, 0.5), (0.7, 0.3, 0.0), (0.8, 0.2, 0.0)])
def test_what_waits_less_than_the_threshold_of_the_gil_is_none_however_uneven(mean: float, spread: float, alike: float) -> None:
    """Twenty minutes of a seeded noise in which a second is like the one before by the part `alike`."""
    rng = random.Random(1)
    series = Series("aie_process_wait_seconds_total", Kind.COUNTER, (), "bpf", 30)
    state = total = 0.0
    for second in range(1200):
        state = alike * state + (1.0 - alike**2) ** 0.5 * rng.gauss(0.0, 1.0)
        total += max(0.0, mean + spread * state)
        series.append(float(second), total)
        assert episode(series, _GIL.threads, _GIL.threads / 2, _GIL.window_s, None, _GIL.unbroken) is None


@pytest.mark.parametrize("mean", [0.7, 0.8, 1.0])
@pytest.mark.parametrize(("spread", "alike"), [(0.2, 0.5), (0.3, 0.5), (0.2, 0.9)])
def test_what_waits_about_as_much_as_the_limit_of_the_gil_is_one_finding_in_ten_minutes(
    mean: float, spread: float, alike: float
) -> None:
    """Twenty minutes as the diagnosis shows them, which goes on longer than the store remembers."""
    world, rng, state = World(), random.Random(3), 0.0
    diagnosis = Diagnosis(engine_causes=(gil_contention,), subject_causes=())
    begun, before = [], False
    for _ in range(1200):
        state = alike * state + (1.0 - alike**2) ** 0.5 * rng.gauss(0.0, 1.0)
        world.second(gil=max(0.0, mean + spread * state))
        now = bool(diagnosis.update(world.view, world.now_s))
        begun += [world.now_s] if now and not before else []
        before = now
    assert all(later - earlier >= 600.0 for earlier, later in pairwise(begun))


def test_a_fight_for_the_gil_that_is_over_ends_within_the_minute() -> None:
    world = World()
    diagnosis = Diagnosis(engine_causes=(gil_contention,), subject_causes=())
    shown = []
    for second in range(180):
        world.second(gil=2.0 if 30 <= second < 60 else 0.1)
        shown.append(bool(diagnosis.update(world.view, world.now_s)))
    assert shown[:30] == [False] * 30
    assert all(shown[40:60])
    assert not any(shown[60 + 70 :])


def test_it_ends_below_half_the_threshold_and_not_before() -> None:
    world = World()
    begun = world.seconds(20, lock=2.0)[-1]
    assert begun is not None
    held = world.seconds(60, lock=0.3)
    assert all(held), "between half the threshold and the threshold it goes on"
    assert {each.since_s for each in held if each is not None} == {begun.since_s}
    assert world.seconds(20, lock=0.2)[-1] is None
    assert world.seconds(60, lock=0.3)[-1] is None, "and does not begin there"


@pytest.mark.parametrize(
    ("reason", "cause", "rule", "keeps"),
    [("lock", lock_contention, _LOCK, "0.25 over 5 s"), ("gil", gil_contention, _GIL, "0.25 over 60 s")],
)
def test_what_goes_on_below_its_limit_says_what_keeps_it(reason: str, cause: EngineCause, rule: Any, keeps: str) -> None:
    """In every second, until it ends: what waits is at least the limit that stands beside it, or what it ends below is told."""
    world, begins = World(), f"(limit {rule.threads:g})"
    diagnosis = Diagnosis(engine_causes=(cause,), subject_causes=())
    texts = []
    for second in range(200):
        world.second(**{reason: 2.0 if second < 30 else 0.3 if second < 150 else 0.0})
        texts += [each.evidence[0].text for each in diagnosis.update(world.view, world.now_s)]
    told = [(float(text.split(" s a second")[0].split()[-1]), text) for text in texts]
    assert {mean >= rule.threads for mean, _ in told} == {True, False}
    for mean, text in told:
        assert text.endswith(begins if mean >= rule.threads else f"(limit {rule.threads:g}; once begun, it ends below {keeps})"), (
            mean
        )
        assert mean >= 0.25


NORMAL: dict[str, Callable[[int], Second]] = {
    "an idle pool of 64 workers": lambda second: {"idle": 64.0, "lock": 0.0, "gil": 0.0},
    "one thread that uses the GIL": lambda second: {"gil": 0.0, "lock": 0.0, "sleep": 20.0},
    "a burst of 32 threads at one lock for a second": lambda second: {"lock": 32.0 if second % 60 == 30 else 0.0, "gil": 0.0},
    "a burst of two seconds": lambda second: {"lock": 8.0 if second % 60 in (30, 31) else 0.0, "gil": 0.0},
    "a burst at the GIL for four seconds": lambda second: {"gil": 3.0 if second % 60 in range(30, 34) else 0.0, "lock": 0.0},
    "a little all the time": lambda second: {"lock": 0.2 + 0.2 * (second % 2), "gil": 0.9},
    "threads that wait for the disk, the GPU and a CPU": lambda second: {"disk": 4.0, "gpu_sync": 2.0, "page_fault": 3.0},
    "nothing at all": lambda second: {},
}


@pytest.mark.parametrize("name", NORMAL)
@pytest.mark.parametrize("cause", [lock_contention, gil_contention])
def test_what_is_normal_is_no_finding(name: str, cause: EngineCause) -> None:
    world = World()
    for second in range(300):
        world.second(**NORMAL[name](second))
        assert cause(world.view, "e", world.now_s) is None


def test_an_engine_that_is_down_or_not_seen_any_more_waits_for_nothing() -> None:
    world = World()
    assert world.seconds(20, lock=2.0)[-1] is not None
    world.state = "down"
    assert lock_contention(world.view, "e", world.now_s) is None
    world.state = "up"
    assert lock_contention(world.view, "e", world.now_s + 30) is None, "the probes are gone"


def test_a_pause_of_the_probes_is_no_time_waited() -> None:
    world = World()
    world.seconds(20, lock=0.0)
    world.now_s += 60
    assert first_found(world.seconds(2, lock=2.0)) is None


def test_locks_and_stacks_are_evidence() -> None:
    world = World()
    lock = Lock(
        tgid=10, address="0x7f00", kind="lock", waiting_threads=2.5, waits_per_second=40.0, longest_seconds=0.25, waiters=3,
        line="lock.py:20 (work)",
    )  # fmt: skip
    world.locks = (lock, Lock(**{**{name: getattr(lock, name) for name in lock.__struct_fields__}, "kind": "gil", "line": None}))
    world.stacks = Stacks(hang=("not this",), locks=("4 threads wait at lock.py:20 (work)",), gil=("x held it",), problems=("no",))
    finding = world.seconds(20, lock=3.0)[-1]
    assert finding is not None
    texts = [each.text for each in finding.evidence]
    assert texts[2].startswith("lock 0x7f00, lock.py:20 (work) of process 10: 2.50 threads waited on average, 40 waits a second")
    assert "the longest 0.250 s, 3 threads wait now" in texts[2]
    assert texts[3:] == ["4 threads wait at lock.py:20 (work)"]
    assert finding.not_visible == ("no",)
    finding = world.seconds(20, gil_contention, gil=3.0)[-1]
    assert finding is not None
    assert [each.text for each in finding.evidence][3:] == ["x held it"]
    assert "the interpreter lock of process 10" in finding.evidence[2].text


def lock_at(address: str, waiting_threads: float) -> Lock:
    return Lock(
        tgid=10, address=address, kind="lock", waiting_threads=waiting_threads, waits_per_second=1.0, longest_seconds=1.0, waiters=1
    )


def test_a_busy_pool_of_the_standard_library_is_none() -> None:
    """To the kernel its idle workers fight for the queue's lock; their stacks tell what they do."""
    world = World()
    world.locks = (lock_at("0x7f00", 29.0), lock_at("0x8000", 0.1))
    world.stacks = Stacks(idle=frozenset({(10, 0x7F00)}))
    assert world.seconds(60, lock=29.1) == [None] * 60
    assert contended(world.view, "e", world.now_s) == ("lock_contention",), "which is why the stacks are looked at"
    world.stacks = Stacks(idle=frozenset({(11, 0x7F00)}))
    assert lock_contention(world.view, "e", world.now_s) is not None, "of another process"


def test_a_fight_beside_a_busy_pool_is_found_without_the_pool() -> None:
    world = World()
    world.locks = (lock_at("0x7f00", 27.0), lock_at("0x8000", 3.0))
    world.stacks = Stacks(idle=frozenset({(10, 0x7F00)}))
    finding = world.seconds(60, lock=30.0)[-1]
    assert finding is not None
    assert "3.00 s a second" in finding.evidence[0].text
    assert [text for each in finding.evidence if (text := each.text).startswith("lock ")] == [
        "lock 0x8000 of process 10: 3.00 threads waited on average, 1 waits a second, the longest 1.000 s, 1 threads wait now"
    ]


def test_the_first_look_at_the_stacks_is_waited_for_and_not_for_long() -> None:
    world = World()
    world.stacks = None
    found = world.seconds(30, lock=3.0)
    since_s = next(world.now_s - 29 + index for index, each in enumerate(found) if each is not None)
    finding = found[-1]
    assert finding is not None
    assert since_s - finding.since_s == 3.0


def test_the_causes_are_in_the_table() -> None:
    assert {lock_contention, gil_contention} <= set(ENGINE_CAUSES)
    assert {"lock_contention", "gil_contention", "engine_hung"} == WITH_STACKS


def test_an_episode_before_there_is_a_window_is_none() -> None:
    series = Series("aie_process_wait_seconds_total", Kind.COUNTER, (), "bpf", 100)
    for second in range(5):
        series.append(float(second), 3.0 * second)
    assert episode(series, 0.5, 0.25, 5.0) is None
    series.append(5.0, 15.0)
    found = episode(series, 0.5, 0.25, 5.0)
    assert found is not None
    assert (found.since_s, found.mean, found.window_s) == (5.0, 3.0, 5.0)


def test_an_episode_is_not_carried_over_a_counter_that_began_anew() -> None:
    series = Series("aie_process_wait_seconds_total", Kind.COUNTER, (), "bpf", 100)
    for second in range(20):
        series.append(float(second), 1e6 if second < 10 else 0.0)
    assert episode(series, 0.5, 0.25, 5.0) is None


def test_native_code_that_waits_is_evidence_of_its_lock() -> None:
    """After the lock's own sentence; of the interpreter lock nothing is told so."""
    world = World()
    lock = Lock(
        tgid=3, address="0x7f00", kind="lock", waiting_threads=2.0, waits_per_second=40.0, longest_seconds=0.1, waiters=2,
        native=("4 threads wait in pthread_mutex_lock, called by libfoo.so (work+0x1c)",),
    )  # fmt: skip
    world.locks = (lock,)
    (finding,) = world.seconds(10, lock=2.0)[-1:]
    assert finding is not None
    texts = [each.text for each in finding.evidence]
    at = next(at for at, text in enumerate(texts) if text.startswith("lock 0x7f00 of process 3"))
    assert texts[at + 1] == "at lock 0x7f00 4 threads wait in pthread_mutex_lock, called by libfoo.so (work+0x1c)"
    world.stacks = Stacks(idle=frozenset({(3, 0x7F00)}))
    world.locks = (lock, msgspec.structs.replace(lock, tgid=4, native=()))
    found = lock_contention(world.view, "e", world.now_s)
    assert found is not None
    assert not any("libfoo" in each.text for each in found.evidence), "idle workers wait there"


@pytest.mark.parametrize("reason", ["lock", "gil"])
def test_what_goes_on_above_half_the_threshold_is_one_finding_however_long(reason: str) -> None:
    """Ten minutes, twice what the store remembers, at three quarters of the threshold after it began, and once more above it: a
    user sees one finding that begins once, and ends soon after the waiting does."""
    world, cause, threshold = World(), {"lock": lock_contention, "gil": gil_contention}[reason], {"lock": 0.5, "gil": 1.0}[reason]
    diagnosis = Diagnosis(engine_causes=(cause,), subject_causes=())
    shown: list[float | None] = []
    for second in range(800):
        high = 20 <= second < 40 or 400 <= second < 420
        waited = 0.0 if second < 20 or second >= 700 else threshold * (2.0 if high else 0.75)
        world.second(**{reason: waited})
        found = diagnosis.update(world.view, world.now_s)
        shown.append(found[0].since_s if found else None)
    begun = shown.index(next(each for each in shown if each is not None))
    assert begun < 40
    assert set(shown[begun:700]) == {shown[begun]}
    assert set(shown[780:]) == {None}


def test_what_ended_is_not_held_by_what_it_was() -> None:
    """It begins and ends again and again, for longer than the store remembers: between, at less than half, it is not found."""
    world = World()
    diagnosis = Diagnosis(engine_causes=(lock_contention,), subject_causes=())
    shown = []
    for second in range(900):
        world.second(lock=1.0 if second % 60 < 20 else 0.2)
        shown.append(bool(diagnosis.update(world.view, world.now_s)))
    assert all(shown[minute * 60 + 15] for minute in range(1, 15))
    assert not any(shown[minute * 60 + 50] for minute in range(1, 15))
