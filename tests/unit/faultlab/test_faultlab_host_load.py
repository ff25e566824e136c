"""What others take of the host: from ticks to CPUs, and which ticks are ours."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.faultlab.host_load import HostLoad, Load, Sample, Used, between, family_ticks, lately, read

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
    assert lately(samples(busy, (12.0, 0.0, 1.0, 0.0))).others_cpus == pytest.approx(0.5), "it may be told still"
    assert lately(samples(busy, (30.0, 0.0, 1.0, 0.0))).others_cpus == pytest.approx(0.0)
    assert lately(samples((290.0, 0.0, 1.0, 0.0), busy)).others_cpus == pytest.approx(0.5), "however quiet it was before"
    assert lately(samples((9.0, 2.0, 0.0, 0.0))) == Load(), "nobody knows yet"


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


def test_the_host_is_looked_at_once_a_second_at_most() -> None:
    began_s = time.monotonic()
    taken = [Sample(began_s - 30.0 + each, 10 * each * HZ, 0, 0, 10 * each * HZ) for each in (0, 10)]
    host = HostLoad(lambda: taken.pop(0))
    assert host.lately() == pytest.approx(Load(10.0, 0.0))
    taken = [Sample(began_s + 60.0, 100 * HZ, 0, 0, 100 * HZ)]
    assert host.lately().others_cpus == pytest.approx(0.0)
    assert host.lately().others_cpus == pytest.approx(0.0), "there is no other to take"
