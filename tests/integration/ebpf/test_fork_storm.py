"""An engine that starts 500 children a second, which are watched as they are found, as the agent watches an engine's: nothing piles
up, who is gone is released, and what the engine itself did is told right meanwhile.

The storm is as many forks, however long this host takes for them, and as they are: the forker counts.
"""

from __future__ import annotations

import errno
import os
import resource
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from aie_agent.namesakes import ProcessId
from aie_agent.sources.bpf.targets import search
from aie_agent.sources.process_tree import ProcessTree
from aie_agent.sources.procfs import Procfs
from aie_ebpf.lives import start_ticks
from aie_ebpf.messages import ProcessReport, Report, ToAgent, Watch
from aie_ebpf.uprobe_links import Way
from tests.fakes.fork_program import Forker
from tests.integration.ebpf.bpf_child import Child, running_child
from tests.integration.ebpf.child_maps import descriptors, entries

pytestmark = pytest.mark.usefixtures("bpf")

FORKS: Final = 2000
PAUSE_S: Final = 1 / 500
LIFE_S: Final = 0.03
LASTING: Final = 1500
LASTING_S: Final = 2.0
FILES: Final = 600
"""Some 60 others, a third of them for probes, and one for each of 256 processes."""
PERIOD_S: Final = 0.1
SETS: Final = {"cuda_memory", "cuda_sync", "cuda_copy"}
GROWTH_BYTES: Final = 8 << 20
"""Of the child's memory: what Python keeps of the largest message and of freed entries."""


@pytest.fixture
def child(tmp_path: Path, way: Way) -> Iterator[Child]:
    """A child whose budget is no matter here."""
    arguments = "--period", str(PERIOD_S), "--budget", "1", "--uprobes", way
    with running_child(*arguments, log=tmp_path / "stderr") as running:
        yield running


@pytest.fixture
def forker(tmp_path: Path) -> Iterator[Forker]:
    running = Forker(tmp_path, FORKS, PAUSE_S, LIFE_S)
    yield running
    running.close()


class Holds(NamedTuple):
    """What the child holds: descriptors by kind, entries by map."""

    descriptors: dict[str, int]
    entries: dict[str, int]


class Agent:
    """What the agent does, oftener: looks for an engine's descendants at each report, and has them watched."""

    def __init__(self, child: Child, tgid: int) -> None:
        ticks = start_ticks(tgid)
        assert ticks is not None
        self._child = child
        self._tree = ProcessTree(Procfs(Path("/proc")))
        self._engines = {"forker": [ProcessId(tgid, ticks)]}
        self.seen: set[int] = set()
        """All that were ever to be watched."""
        self.reports: list[Report] = []

    def look(self) -> list[int]:
        """Searches, tells, and takes the next report, which may have lain there: to wait for one that comes after would be to look
        too seldom for children that live for seconds. Returns who is to be watched now."""
        targets = search(self._engines, self._tree).targets
        self._child.tell(Watch(targets=targets))
        report = self._child.until(lambda message: isinstance(message, Report))
        assert isinstance(report, Report)
        self.reports.append(report)
        tgids = [target.tgid for target in targets]
        self.seen.update(tgids)
        return tgids

    def holds(self) -> Holds:
        """Without what is of the whole host, whose disks others use, and what stays until there is no room."""
        pid = self._child.process.pid
        found = {kind: descriptors(pid)[kind] for kind in ("bpf_link", "[perf_event]", "[pidfd]")}
        of_processes = {name: count for name, count in entries(pid).items() if name not in ("requests", "devices", "visits")}
        return Holds(found, of_processes)


def is_attached(message: ToAgent) -> bool:
    """Whether a report says so of all sets of CUDA."""
    rows = (message.coverage or ()) if isinstance(message, Report) else ()
    return {row.set for row in rows if row.state == "part"} >= SETS


def of(reports: list[Report], tgid: int) -> list[ProcessReport]:
    """One process's part of these reports."""
    return [process for report in reports for process in report.processes if process.tgid == tgid]


def synchronised(reports: list[Report], tgid: int) -> int:
    """How often a process called cuStreamSynchronize, as these reports tell."""
    return sum(sum(sync.seconds.slots) for each in of(reports, tgid) if each.cuda for sync in each.cuda.syncs)


def test_an_engine_that_forks_without_end(child: Child, forker: Forker) -> None:
    agent = Agent(child, forker.tgid)

    agent.look()
    child.until(is_attached)
    before = agent.holds()
    agent.reports.clear()
    resident_bytes = child.reports(1)[0].resident_bytes

    forker.begin()
    while not select.select([forker], [], [], 0)[0]:
        agent.look()
    says = forker.says()
    assert says["forked"] == FORKS
    assert len(agent.seen) > FORKS // 50, "children were found, and watched"

    while agent.look() != [forker.tgid]:
        pass  # the last children live a moment longer
    after = agent.holds()
    for _ in range(600):  # probes come off slowly: at this pace a minute's worth
        if after.descriptors == before.descriptors:
            break
        agent.look()
        after = agent.holds()
    agent.reports += child.reports(2)
    assert after.descriptors == before.descriptors
    grown = {name: (before.entries[name], count) for name, count in after.entries.items() if count > before.entries[name] + 2}
    assert grown == {}, "maps have its two threads and its calls, and nothing of those that are gone"
    assert agent.reports[-1].resident_bytes - resident_bytes < GROWTH_BYTES
    assert [process.tgid for process in agent.reports[-1].processes] == [forker.tgid]
    assert all(report.lost == {} for report in agent.reports)

    engine = of(agent.reports, forker.tgid)
    # Nothing of the engine is missed, and its children's calls are not taken for its own.
    assert synchronised(agent.reports, forker.tgid) == says["calls"]
    slept_s = sum(each.waits.sleep or 0 for each in engine)
    queued_s = sum(each.waits.run_queue or 0 for each in engine)
    # What it took for sleep is that, and what it waited for a CPU after it; it waits for one at other times, too.
    assert slept_s <= says["slept_s"] * 1.02 + 0.05
    assert slept_s + queued_s >= says["slept_s"] * 0.9 - 0.05


def test_probes_that_wait_to_come_off_leave_room_for_others(child: Child, tmp_path: Path) -> None:
    """Children live long enough to be probed, and are gone before their probes are, which take longer off than on. Each is an open
    file, of which there are few here."""
    forker = Forker(tmp_path, LASTING, PAUSE_S, LASTING_S)
    try:
        agent = Agent(child, forker.tgid)
        agent.look()
        child.until(is_attached)
        resource.prlimit(child.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        forker.begin()
        while not select.select([forker], [], [], 0)[0]:
            agent.look()
        says = forker.says()
        while agent.look() != [forker.tgid]:
            pass
        agent.reports += child.reports(2)  # the first may have begun before the last child went
    finally:
        forker.close()
    rows = [row for report in agent.reports for row in report.coverage or ()]
    assert any(row.reason.startswith("later: ") for row in rows)
    assert not any(os.strerror(errno.EMFILE) in text for row in rows for text in (row.reason, *row.missing))
    assert [process.tgid for process in agent.reports[-1].processes] == [forker.tgid]
    assert synchronised(agent.reports, forker.tgid) == says["calls"]
