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
from aie_agent.sources.procfs import Procfs
from tests.fakes.proc_tree import ProcTree

START = 50_000
AGENT = 9


class Family:
    """Processes that start others: `thread of parent -> children`."""

    def __init__(self, root: Path) -> None:
        self.tree = ProcTree(root)
        self.procfs = Procfs(root)

    def process(self, tgid: int, children: dict[int, list[int]] | None = None) -> ProcessId:
        self.tree.process(tgid, start=START + tgid)
        for tid in {tgid, *(children or {})}:
            self.tree.write(f"{tgid}/task/{tid}/children", "".join(f"{each} " for each in (children or {}).get(tid, [])))
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


def test_children_of_every_thread_and_theirs(family: Family) -> None:
    root = family.process(100, {100: [200], 101: [201]})
    family.process(200, {200: [300]})
    family.process(201)
    family.process(300)
    assert watched(search({"chat": [root]}, family.procfs, AGENT)) == {"chat": [100, 200, 201, 300]}


def test_a_child_that_is_gone_and_a_loop_are_no_matter(family: Family) -> None:
    root = family.process(100, {100: [200, 999]})
    family.process(200, {200: [100]})
    assert watched(search({"chat": [root]}, family.procfs, AGENT)) == {"chat": [100, 200]}


def test_a_descendant_that_is_another_engine_is_that_engines(family: Family) -> None:
    root, other = family.process(100, {100: [200]}), family.process(200, {200: [300]})
    family.process(300)
    assert watched(search({"launcher": [root], "chat": [other]}, family.procfs, AGENT)) == {"launcher": [100], "chat": [200, 300]}


def test_a_process_of_two_engines_is_the_firsts_and_the_other_says_so(family: Family) -> None:
    root = family.process(100)
    found = search({"a": [root], "b": [root]}, family.procfs, AGENT)
    assert watched(found) == {"a": [100]}
    assert found.left_out == {"b": "process 100 is watched as one of engine a"}


def test_the_agent_and_what_it_started_are_not_watched(family: Family) -> None:
    root = family.process(100, {100: [AGENT]})
    agent = family.process(AGENT, {AGENT: [300]})
    family.process(300)
    found = search({"chat": [root], "self": [agent]}, family.procfs, AGENT)
    assert watched(found) == {"chat": [100]}
    assert found.left_out == {"self": f"process {AGENT} is the agent itself"}


def test_there_is_a_limit_and_it_is_said(family: Family) -> None:
    children = list(range(1000, 1000 + MOST_PROCESSES + 40))
    root = family.process(100, {100: children})
    for tgid in children:
        family.process(tgid)
    found = search({"chat": [root]}, family.procfs, AGENT)
    assert watched(found) == {"chat": [100, *children[: MOST_PROCESSES - 1]]}
    assert found.left_out == {"chat": f"41 processes beyond {MOST_PROCESSES} are not watched"}


def test_so_many_threads_are_asked_and_no_more(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "MOST_THREADS", 10)
    root = family.process(100, {100 + n: [] for n in range(30)})
    other = family.process(500, {500: [600]})
    family.process(600)
    found = search({"many": [root], "few": [other]}, family.procfs, AGENT)
    assert watched(found) == {"many": [100], "few": [500]}
    assert found.left_out == {"few": "what 1 processes started is not looked for: 10 threads were asked"}


def test_real_processes() -> None:
    code = "import os, time\npid = os.fork()\nprint(pid or 0, flush=True) if pid else None\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            procfs = Procfs()
            ticks = procfs.start_ticks(process.pid)
            assert ticks is not None
            found = search({"chat": [ProcessId(process.pid, ticks)]}, procfs)
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
