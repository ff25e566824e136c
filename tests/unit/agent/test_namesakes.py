"""Engines of one host that announce one name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aie_agent.identity import Engines, Home, Origin
from aie_agent.sources.lineage import Lineage
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.statsd_namesakes import Namesakes
from aie_telemetry.statsd import Sample

PLACES = {10: "aie-engine-8300", 20: "aie-engine-8301"}


class Host:
    """Two engines (10 with its worker 11, 20 with its worker 21), and a pool of hooks (31, 32) of no known engine."""

    def __init__(self) -> None:
        self.alive = {10: 5, 11: 6, 20: 7, 21: 8, 31: 9, 32: 10}
        self.roots = {10: 10, 11: 10, 20: 20, 21: 20}
        self.engines = Engines(self.alive.get, root_of=self.roots.get)

    def scan(self, *roots: int) -> list[str | None]:
        return [self.engines.discover(PLACES[root], [root, root + 1], PLACES[root]) for root in roots]

    def say(self, *tgids: int, name: str = "aie-engine") -> list[str | None]:
        return [self.engines.declare(name, Origin.STATSD, tgid) for tgid in tgids]

    def state(self) -> dict[str, list[int]]:
        return {name: [each.tgid for each in self.engines.processes(name)] for name in self.engines.names()}


APART = {"aie-engine": [10, 11], "aie-engine-8301": [20, 21]}


@pytest.mark.parametrize("order", [(10, 20), (20, 10)])
@pytest.mark.parametrize("first", ["scan", "say"])
def test_the_oldest_has_the_name_whatever_came_first(order: tuple[int, int], first: str) -> None:
    host = Host()
    for _ in range(2):
        if first == "scan":
            host.scan(*order)
        host.say(*order)
        host.scan(*order)
        host.say(*(tgid + 1 for tgid in order))
    assert host.state() == APART
    assert host.engines.note("aie-engine") is None
    assert "announces itself as aie-engine, which is process 10's" in str(host.engines.note("aie-engine-8301"))
    assert host.engines.displaced == (["aie-engine"] if order == (20, 10) else [])
    assert host.engines.canonical("aie-engine-8301") == "aie-engine-8301"


def test_one_that_does_not_serve_yet_is_another_all_the_same() -> None:
    host = Host()
    host.scan(10)
    host.say(10, 11, 20)
    assert host.state() == {"aie-engine": [10, 11], "aie-engine-pid20": [20]}
    host.scan(10, 20)
    assert host.state() == APART
    assert host.engines.canonical("aie-engine-pid20") == "aie-engine-8301", "what is on its way under the first name"


def test_it_keeps_its_own_name_when_the_other_ends_and_comes_again() -> None:
    host = Host()
    host.scan(10, 20)
    host.say(10, 20)
    del host.alive[10], host.alive[11]
    host.engines.prune(1.0)
    assert host.say(20) == ["aie-engine-8301"]
    host.alive.update({10: 50, 11: 51})
    assert (host.say(10), host.say(20)) == (["aie-engine"], ["aie-engine-8301"])
    assert host.scan(10, 20) == ["aie-engine", "aie-engine-8301"]


def test_a_restart_of_the_second_is_that_one_again() -> None:
    host = Host()
    host.scan(10, 20)
    host.say(10, 20)
    del host.alive[20], host.alive[21]
    host.engines.prune(1.0)
    host.alive.update({20: 50, 21: 51})
    host.say(20)
    host.scan(10, 20)
    assert host.state() == {"aie-engine": [10, 11], "aie-engine-8301": [20, 21]}


def test_processes_of_no_known_engine_stay_one() -> None:
    host = Host()
    host.scan(10, 20)
    assert host.say(31, 32, name="pool") == ["pool", "pool"]
    assert host.say(10, 31) == ["aie-engine", "aie-engine"], "as workers that something else starts for an engine"
    without_scan = Engines(host.alive.get)
    assert [without_scan.declare("aie-engine", Origin.STATSD, tgid) for tgid in (10, 20)] == ["aie-engine"] * 2


def test_one_name_on_both_command_lines() -> None:
    host = Host()
    for _ in range(2):
        for root in (10, 20):
            host.engines.discover("chat", [root, root + 1], PLACES[root])
        host.say(10, 20, name="chat")
    assert host.state() == {"chat": [10, 11], "aie-engine-8301": [20, 21]}


def test_the_one_that_the_configuration_leads_to_has_the_name() -> None:
    host = Host()
    host.engines.configure("chat", Home.HERE)
    host.engines.declare("chat", Origin.CONFIG, 20)
    host.scan(10, 20)
    host.say(10, 20, name="chat")
    host.scan(10, 20)
    host.say(10, 20, name="chat")
    assert host.state() == {"chat": [20, 21], "aie-engine-8300": [10, 11]}


def test_what_is_sent_goes_to_the_engine_of_its_sender() -> None:
    roots = {10: 10, 11: 10, 20: 20}
    namesakes = Namesakes(roots.get)
    mine = Sample("x", "counter", 1.0, (("engine", "e"), ("model", "m")))
    other = Sample("x", "counter", 1.0, (("model", "m"),))
    assert namesakes.sample(mine, 10) is mine
    assert namesakes.sample(mine, 20) is None, "before anybody says who has the name: the first"
    namesakes.know({"e": 20}, {("e", 10): "e-8300"})
    assert namesakes.sample(mine, 20) is mine
    for tgid in (10, 11):
        renamed = namesakes.sample(mine, tgid)
        assert renamed is not None
        assert renamed.tags == (("engine", "e-8300"), ("model", "m"))
    assert [namesakes.sample(other, tgid) for tgid in (10, 20, 30)] == [other] * 3
    assert namesakes.sample(mine, 30) is mine, "of no known engine"


def test_the_root_of_a_process_is_the_engine_that_was_started(tmp_path: Path) -> None:
    program = tmp_path / "aie-engine"
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    program.write_text(child)
    with subprocess.Popen([sys.executable, program, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        engine.stdout.readline()
        lineage = Lineage(Procfs())
        (child_tgid,) = [
            tgid for tgid in Procfs().pids() if (stat := Procfs().stat(tgid)) is not None and stat.parent_tgid == engine.pid
        ]
        assert lineage.root(child_tgid) == lineage.root(engine.pid) == engine.pid
        assert lineage.root(1) is None
        engine.stdin.write(b"\n")
