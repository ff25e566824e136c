"""What others take of the host: from ticks to CPUs, and which ticks are ours."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import pytest

from aie_agent.analysis.causes import STEADINESS
from aie_agent.analysis.host_causes import cpu
from aie_agent.analysis.sustained import rising
from aie_agent.series import Series
from aie_telemetry.catalogue import Kind
from tests.faultlab import host_load
from tests.faultlab.host_load import HostLoad, Load, Sample, Used, between, family_ticks, lately, read
from tests.faultlab.judge import BUSY_CPUS, STARVED, STEAL, Key, ambient

MINUTE_S: Final = 60
HZ = os.sysconf("SC_CLK_TCK")
CPUS = 2
BURNS = "import time\nwhile time.process_time() < 0.2: pass\n"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURNS!r}])\nprint(flush=True)\ninput()\n"


def samples(*steps: tuple[float, float, float, float]) -> list[Sample]:
    """One a second: for so many seconds the others used so many CPUs, ours so many, and so many were stolen."""
    found = [Sample(0.0, 0, 0, 0, 0)]
    for seconds, others, ours, stolen in steps:
        for _ in range(round(seconds)):
            at_s, busy, used, lost, total = found[-1]
            ticks = (round((others + ours) * HZ), round(ours * HZ), round(stolen * HZ))
            found.append(Sample(at_s + 1.0, busy + ticks[0], used + ticks[1], lost + ticks[2], total + CPUS * HZ))
    return found


def test_others_are_all_but_ours_and_whoever_gets_stolen_cpus() -> None:
    ends = samples((10.0, 0.4, 1.2, 0.0))
    assert between(ends[0], ends[-1]) == pytest.approx(Load(0.4, 0.0))
    stolen = samples((10.0, 0.1, 1.2, 0.3))
    assert between(stolen[0], stolen[-1]) == pytest.approx(Load(0.4, 0.15))
    counted_late = samples((10.0, -0.1, 1.2, 0.0))
    assert between(counted_late[0], counted_late[-1]) == Load(0.0, 0.0)


def test_what_others_took_counts_for_as_long_as_the_agent_may_tell_of_it() -> None:
    busy = (10.0, 0.5, 1.0, 0.0)
    assert lately(samples(busy)).others_cpus == pytest.approx(0.5)
    assert lately(samples(busy, (20.0, 0.0, 1.0, 0.0))).others_cpus == pytest.approx(0.5), "it may be told still"
    assert lately(samples(busy, (30.0, 0.0, 1.0, 0.0))).others_cpus == pytest.approx(0.0)
    assert lately(samples((290.0, 0.0, 1.0, 0.0), busy)).others_cpus == pytest.approx(0.5), "however quiet it was before"
    assert lately(samples((4.0, 2.0, 0.0, 0.0))) == Load(), "nobody knows yet"


def told_at(cause: str, per_second: Sequence[float], limit: float, window_s: float) -> list[int]:
    """The seconds in which the agent's own rule tells of what rises so much in each second, and in which it lingers."""
    counter = Series("aie_process_run_queue_seconds_total", Kind.COUNTER, (), "proc", len(per_second) + 1)
    total, told, held_at = 0.0, [], -1e9
    for second, gained in enumerate(per_second):
        total += gained
        counter.append(float(second), total)
        counter.valid_until_s = second + 2.0
        if rising([counter], limit, window_s, float(second), None) is not None:
            held_at = second
        if second - held_at < STEADINESS[cause].lingers_s:
            told.append(second)
    return told


def not_excused(key: Key, told: Sequence[int], others: float, stolen: float) -> list[int]:
    """Those of these seconds in which the lab's look, a second old, does not say that others are for it: they take so many CPUs in
    the minute after the first."""
    taken = samples((MINUTE_S, 0.0, 1.0, 0.0), (MINUTE_S, others, 1.0, stolen), (MINUTE_S, 0.0, 1.0, 0.0))
    return [second for second in told if key not in ambient(lately(taken[:second]))]


def for_a_minute(value: float, else_: float) -> list[float]:
    """For a minute, after another one and before a third."""
    return [value if MINUTE_S < second <= 2 * MINUTE_S else else_ for second in range(3 * MINUTE_S)]


@pytest.mark.parametrize(
    ("others", "waiting"), [(0.35, 0.6), (0.4, 0.6), (0.5, 0.6), (0.5, 1.2), (0.7, 1.5), (1.0, 2.0), (2.0, 8.0)]
)
def test_starved_by_others_is_excused_from_the_first_second_that_the_agent_tells_of_it_to_the_last(
    others: float, waiting: float
) -> None:
    told = told_at("cpu_starved", for_a_minute(waiting, 0.05), cpu.STARVED_THREADS, cpu.WINDOW_S)
    assert len(told) >= MINUTE_S
    assert not_excused(STARVED, told, others, 0.0) == []
    assert not_excused(STARVED, told, BUSY_CPUS - 0.05, 0.0) == told, "others that take less are not for it"


@pytest.mark.parametrize("share", [0.11, 0.15, 0.3, 0.9])
def test_true_steal_is_excused_as_long(share: float) -> None:
    told = told_at("cpu_steal", for_a_minute(share, 0.0), cpu.STEAL_SHARE, cpu.STEAL_WINDOW_S)
    assert len(told) >= MINUTE_S
    assert not_excused(STEAL, told, 0.0, share * CPUS) == []
    assert not_excused(STEAL, told, 0.0, 0.03 * CPUS) == told


def test_a_burst_of_others_within_a_second_excuses_nothing() -> None:
    burst = samples((20.0, 0.0, 1.0, 0.0), (1.0, 1.0, 1.0, 0.0), (10.0, 0.0, 1.0, 0.0))
    assert all(STARVED not in ambient(lately(burst[:end])) for end in range(1, len(burst)))


def test_all_that_descends_from_the_lab_is_ours() -> None:
    there = {1: Used(0, 7), 10: Used(1, 5), 11: Used(10, 3), 12: Used(11, 2), 20: Used(1, 900)}
    assert family_ticks(10, there) == 10
    assert family_ticks(99, there) == 0


def test_what_a_child_used_is_ours_while_it_runs_and_after_it_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used = read(process.pid)
        assert used.ours >= 0.15 * HZ, "of a child's child that is gone"
        ours = read(os.getpid())
        assert ours.ours >= used.ours
        assert used.total >= used.busy >= used.ours
        process.kill()
    assert read(os.getpid()).ours >= ours.ours
    assert read(process.pid).ours == 0


def test_a_look_in_which_a_child_is_in_nobody_s_time_is_taken_again() -> None:
    """It was waited for while /proc was read. Twelve seconds of CPU would be another's else."""
    began_s = time.monotonic() - 30.0
    taken = [
        Sample(began_s + each, 10 * each * HZ, ours * HZ, 0, 10 * each * HZ)
        for each, ours in ((0, 0), (10, 88), (20, 70), (20, 188))
    ]
    host = HostLoad(lambda: taken.pop(0))
    host.lately()
    found = host.lately()
    assert not taken
    assert found == Load(1.2, 0.0)


def test_the_host_is_looked_at_once_a_second_at_most() -> None:
    began_s = time.monotonic()
    taken = [Sample(began_s - 30.0 + each, 10 * each * HZ, 0, 0, 10 * each * HZ) for each in (0, 10)]
    host = HostLoad(lambda: taken.pop(0))
    assert host.lately() == pytest.approx(Load(10.0, 0.0))
    taken = [Sample(began_s + 60.0, 100 * HZ, 0, 0, 100 * HZ)]
    assert host.lately().others_cpus == pytest.approx(0.0)
    assert host.lately().others_cpus == pytest.approx(0.0), "there is no other to take"


@pytest.mark.parametrize(
    ("others", "stolen", "told", "after_a_gap"),
    [(0.5, 0.3, Load(0.8, 0.15), Load(0.2, 0.0375)), (0.0, 0.0, Load(0.0, 0.0), Load(0.0, 0.0))],
)
def test_the_host_is_looked_at_while_nobody_asks(
    others: float, stolen: float, told: Load, after_a_gap: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For forty seconds; in the last ten of them others take so much."""
    taken = samples((30.0, 0.0, 1.0, 0.0), (10.0, others, 1.0, stolen))
    left, are_taken = deque(taken), threading.Event()

    def take() -> Sample:
        if len(left) == 1:
            are_taken.set()
        return left.popleft() if len(left) > 1 else left[0]

    monkeypatch.setattr(host_load, "EVERY_S", 0.001)
    with HostLoad(take) as host:
        assert are_taken.wait(60.0), "it looks by itself"
    assert not any(each.name == "host load" for each in threading.enumerate())
    assert host.lately() == pytest.approx(told)
    assert lately([taken[0], taken[-1]]) == pytest.approx(after_a_gap), "what one look after all of it would say"
