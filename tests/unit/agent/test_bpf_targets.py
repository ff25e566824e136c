"""Which processes are watched, on a /proc made for it: bounds, processes of two engines, and what must not be watched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aie_agent.cli import _config, _parser
from aie_agent.config import BpfSection, ConfigError, parse
from aie_agent.namesakes import ProcessId
from aie_agent.sources.bpf import targets
from aie_agent.sources.bpf.source import arguments
from aie_agent.sources.bpf.targets import MOST_PROCESSES, search
from aie_agent.sources.process_tree import ProcessTree
from aie_agent.sources.procfs import Procfs
from tests.fakes.proc_tree import ProcTree

START = 50_000
AGENT = 9


class Family:
    """Processes that start others."""

    def __init__(self, root: Path) -> None:
        self.tree = ProcTree(root)
        self.known = ProcessTree(Procfs(root))

    def process(self, tgid: int, *children: int, parent: int = 1) -> ProcessId:
        """One that started others, which have to be told of after it."""
        self.tree.process(tgid, start=START + tgid, parent=parent)
        for child in children:
            self.tree.process(child, start=START + child, parent=tgid)
        return ProcessId(tgid, START + tgid)


@pytest.fixture
def family(tmp_path: Path) -> Family:
    return Family(tmp_path / "proc")


def watched(found: targets.Watched) -> dict[str, list[int]]:
    names: dict[str, list[int]] = {}
    for target in found.targets:
        assert target.start_ticks == START + target.tgid
        names.setdefault(target.engine, []).append(target.tgid)
    return names


def test_children_and_theirs(family: Family) -> None:
    root = family.process(100, 200, 201)
    family.process(200, 300, parent=100)
    assert watched(search({"chat": [root]}, family.known, AGENT)) == {"chat": [100, 200, 201, 300]}


def test_a_loop_is_no_matter(family: Family) -> None:
    """/proc is not read in one moment: numbers can be given anew meanwhile."""
    root = family.process(100, 200, parent=200)
    assert watched(search({"chat": [root]}, family.known, AGENT)) == {"chat": [100, 200]}


def test_who_comes_and_goes_between_two_searches(family: Family) -> None:
    root = family.process(100, 200, 201)
    assert watched(search({"chat": [root]}, family.known, AGENT)) == {"chat": [100, 200, 201]}
    family.tree.end(200)
    family.process(201, 300, parent=100)
    assert watched(search({"chat": [root]}, family.known, AGENT)) == {"chat": [100, 201, 300]}


def test_whose_parent_ended_is_asked_who_has_it_now(family: Family) -> None:
    root, other = family.process(100, 200), family.process(101)
    family.process(200, 300, 301, parent=100)
    engines = {"chat": [root], "other": [other]}
    assert watched(search(engines, family.known, AGENT)) == {"chat": [100, 200, 300, 301], "other": [101]}
    family.tree.end(200)
    family.tree.process(300, start=START + 300, parent=1)
    family.tree.process(301, start=START + 301, parent=101)
    assert watched(search(engines, family.known, AGENT)) == {"chat": [100], "other": [101, 301]}


def test_whose_parent_stays_a_zombie_is_asked_who_has_it_now(family: Family) -> None:
    """An engine that is its container's pid 1 gets the children of a launcher that ended, and may never reap the launcher."""
    root = family.process(100, 200)
    family.process(200, 300, parent=100)
    assert watched(search({"chat": [root]}, family.known, AGENT)) == {"chat": [100, 200, 300]}
    family.tree.process(200, start=START + 200, parent=100, state="Z")
    family.tree.process(300, start=START + 300, parent=100)
    for _ in range(2):
        assert watched(search({"chat": [root]}, family.known, AGENT)) == {"chat": [100, 300]}


def test_whoever_has_a_number_later_is_another(family: Family) -> None:
    """A child that ended and gave its number to a stranger while nobody looked; and one whose parent is a zombie still."""
    root, other = family.process(100, 200, 201), family.process(101)
    family.process(201, 300, parent=100)
    engines = {"chat": [root], "other": [other]}
    assert watched(search(engines, family.known, AGENT)) == {"chat": [100, 200, 201, 300], "other": [101]}
    family.tree.process(200, start=START + 200, parent=101)
    family.tree.process(201, start=START + 201, parent=100, state="Z")
    assert watched(search(engines, family.known, AGENT)) == {"chat": [100], "other": [101]}
    assert watched(search(engines, family.known, AGENT)) == {"chat": [100], "other": [101, 200]}


def test_a_descendant_that_is_another_engine_is_that_engines(family: Family) -> None:
    root, other = family.process(100, 200), family.process(200, 300, parent=100)
    assert watched(search({"launcher": [root], "chat": [other]}, family.known, AGENT)) == {"launcher": [100], "chat": [200, 300]}


def test_a_process_of_two_engines_is_the_firsts_and_the_other_says_so(family: Family) -> None:
    root = family.process(100)
    found = search({"a": [root], "b": [root]}, family.known, AGENT)
    assert watched(found) == {"a": [100]}
    assert found.left_out == {"b": "process 100 is watched as one of engine a"}


def test_the_agent_and_what_it_started_are_not_watched(family: Family) -> None:
    root = family.process(100, AGENT)
    agent = family.process(AGENT, 300, parent=100)
    found = search({"chat": [root], "self": [agent]}, family.known, AGENT)
    assert watched(found) == {"chat": [100]}
    assert found.left_out == {"self": f"process {AGENT} is the agent itself"}


def test_there_is_a_limit_and_it_is_said(family: Family) -> None:
    children = list(range(1000, 1000 + MOST_PROCESSES + 40))
    root = family.process(100, *children)
    found = search({"chat": [root]}, family.known, AGENT)
    assert watched(found) == {"chat": [100, *children[: MOST_PROCESSES - 1]]}
    assert found.left_out == {"chat": f"41 processes beyond {MOST_PROCESSES} are not watched"}


FORKS_IN_A_THREAD = """
import os, threading, time
def start():
    pid = os.fork()
    if pid:
        print(pid, flush=True)
    time.sleep(600)
threading.Thread(target=start).start()
"""


def test_real_processes() -> None:
    """Whichever thread started them."""
    with subprocess.Popen([sys.executable, "-c", FORKS_IN_A_THREAD], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            procfs = Procfs()
            tree, ticks = ProcessTree(procfs), procfs.start_ticks(process.pid)
            assert ticks is not None
            for _ in range(2):
                found = search({"chat": [ProcessId(process.pid, ticks)]}, tree)
                assert {target.tgid for target in found.targets} == {process.pid, child}
        finally:
            os.kill(child, 9)
            process.kill()


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"budget": 0}, "bpf.budget: accepted: 0.0001 to 1"),
        ({"budget": 2.0}, "bpf.budget: accepted: 0.0001 to 1"),
        ({"period": "100ms"}, "bpf.period: accepted"),
        ({"without": ["lock"]}, "bpf.without: 'lock': accepted: locks, sched"),
        ({"budgett": 1}, "unknown key bpf.budgett: did you mean budget?"),
    ],
)
def test_what_the_configuration_may_say(table: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse({"bpf": table}, "file")
    assert text in str(error.value)


def test_no_bpf_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('[bpf]\nenabled = true\nwithout = ["gc"]\n')
    assert _config(_parser().parse_args(["run", "--config", str(file)])).bpf.enabled
    section = _config(_parser().parse_args(["run", "--config", str(file), "--no-bpf"])).bpf
    assert (section.enabled, section.without) == (False, ("gc",))


def test_the_childs_command_line() -> None:
    assert arguments(BpfSection()) == ["--budget", "0.01", "--period", "1"]
    section = BpfSection(budget=0.002, without=("gc", "xid"))
    assert arguments(section) == ["--budget", "0.002", "--period", "1", "--without", "gc,xid"]
