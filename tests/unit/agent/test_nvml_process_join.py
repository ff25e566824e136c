"""Processes on GPUs: whose they are, what they hold, and which nobody wants any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fakes.agent_gpus import gpu
from fakes.cause_world import CauseWorld
from fakes.proc_tree import ProcTree

from aie_agent.analysis.gpu_causes.faults import gpu_faults
from aie_agent.analysis.memory import unaccounted
from aie_agent.config import GpuSection
from aie_agent.identity import Engines, Origin
from aie_agent.samples import Batch, Point
from aie_agent.sources.nvml.cuda_devices import GpuName
from aie_agent.sources.nvml.process_join import (
    GONE_AFTER_S,
    STRANGER_STUCK_AFTER_S,
    STUCK_AFTER_S,
    GpuContexts,
    GpuProcesses,
    in_other_pid_namespace,
)
from aie_agent.sources.nvml.processes import Context
from aie_agent.sources.nvml.source import NvmlSource
from aie_agent.sources.procfs import Procfs
from aie_agent.store import Store
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import Kind

GIB = 1 << 30
GPUS = [GpuName(number, f"GPU-{number}", "H100", number) for number in range(2)]
CONTAINER = "0123456789ab" + "c" * 52
POD = "0a1b2c3d-4e5f-6789-abcd-ef0123456789"


class World:
    """A host with two GPUs and an engine of process 100."""

    def __init__(self, root: Path) -> None:
        self.proc = ProcTree(root / "proc")
        self.procfs = Procfs(self.proc.root)
        self.engines = Engines(self.procfs.start_ticks)
        self.process(100)
        self.engines.declare("vllm", Origin.CONFIG, 100)
        self.joiner = GpuProcesses(self.engines, self.procfs, lambda: False)
        self.points: list[Point] = []
        self.runner = asyncio.Runner()

    def process(
        self, tgid: int, parent: int = 1, state: str = "S", environ: str = "", cgroup: str = "0::/\n", start: int = 50_000
    ) -> None:
        self.proc.process(tgid, state=state, cgroup=cgroup, cmdline=f"proc-{tgid}\0", start=start)
        stat = self.proc.root / f"{tgid}/stat"
        stat.write_text(stat.read_text().replace(f") {state} 1 ", f") {state} {parent} "))
        self.proc.write(f"{tgid}/environ", environ)

    def look(self, now_s: float, *contexts: Sequence[Context] | None, used_bytes: float | None = None) -> None:
        gpus = [GpuContexts(gpu, each, used_bytes) for gpu, each in zip(GPUS, contexts, strict=False)]
        self.points = self.runner.run(self.joiner.collect(gpus, now_s))

    def value(self, name: str, **labels: str) -> float | None:
        found = [point.value for point in self.points if point.name == name and set(labels.items()) <= set(point.tags)]
        assert len(found) <= 1
        return found[0] if found else None


def context(pid: int, memory: int | None = GIB, kind: str = "compute") -> Context:
    return Context(pid, kind, memory, None)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.runner.close()


def test_a_process_is_joined_to_its_engine_by_tgid_and_to_its_container_and_pod_by_cgroup(world: World) -> None:
    world.process(200, cgroup=f"0::/kubepods/burstable/pod{POD}/{CONTAINER}\n")
    world.look(1.0, [context(100, 4 * GIB), context(200, 2 * GIB)])
    mine, other = world.joiner.rows(0)
    assert (mine.tgid, mine.engine, mine.command, mine.orphan, mine.container) == (100, "vllm", "proc-100", False, None)
    assert (other.tgid, other.engine, other.orphan, other.container, other.pod) == (200, None, False, CONTAINER[:12], POD)
    assert world.value("aie_engine_memory_physical_bytes", engine="vllm", device="cuda0") == 4 * GIB
    assert world.value("aie_engine_gpu_contexts", engine="vllm", device="cuda0") == 1
    assert world.value("aie_gpu_processes", gpu="0") == 2
    assert world.value("aie_gpu_orphan_processes", gpu="0") == 0


def test_a_stranger_s_arguments_are_not_shown(world: World) -> None:
    secret = "/opt/venv/bin/python\0train.py\0--api-key\0sk-secret\0"
    for tgid in (200, 300):
        world.process(tgid, parent=100 if tgid == 300 else 1)
        world.proc.write(f"{tgid}/cmdline", secret)
    world.look(1.0, [context(100), context(200), context(300)])
    assert [(each.engine, each.command) for each in world.joiner.rows(0)] == [
        ("vllm", "proc-100"),
        (None, "python"),
        ("vllm", "/opt/venv/bin/python train.py --api-key ***"),
    ]


def test_workers_of_an_engine_are_its_own(world: World) -> None:
    world.process(101, parent=100)
    world.process(102, parent=101)
    world.look(1.0, [context(101)], [context(102, 3 * GIB)])
    assert world.value("aie_engine_memory_physical_bytes", device="cuda0") == GIB
    assert world.value("aie_engine_memory_physical_bytes", device="cuda1") == 3 * GIB
    assert world.joiner.rows(1)[0].parent_tgid == 101


def test_the_device_is_what_the_process_calls_it(world: World) -> None:
    world.process(101, parent=100, environ="CUDA_VISIBLE_DEVICES=1\0")
    world.look(1.0, [], [context(101, 5 * GIB)])
    assert world.value("aie_engine_memory_physical_bytes", engine="vllm", device="cuda0") == 5 * GIB
    assert world.joiner.engine_note("vllm") is None


def test_in_a_container_the_device_is_what_its_device_files_make_it(world: World) -> None:
    """Kubernetes gave it the second GPU, and its image says NVIDIA_VISIBLE_DEVICES=all: it calls that cuda0."""
    world.process(101, parent=100, environ="NVIDIA_VISIBLE_DEVICES=all\0", cgroup=f"0::/kubepods/pod{POD}/{CONTAINER}\n")
    world.proc.write("/".join(("101", "root", "dev", "nvidia1")), "")
    world.look(1.0, [], [context(101, 5 * GIB)])
    assert world.value("aie_engine_memory_physical_bytes", engine="vllm", device="cuda0") == 5 * GIB
    assert world.joiner.engine_note("vllm") is None


def test_in_a_container_whose_devices_cannot_be_seen_it_says_so(world: World) -> None:
    world.process(101, parent=100, environ="NVIDIA_VISIBLE_DEVICES=void\0", cgroup=f"0::/kubepods/pod{POD}/{CONTAINER}\n")
    world.look(1.0, [], [context(101)])
    assert world.value("aie_engine_memory_physical_bytes", device="cuda1") == GIB
    assert "cuda1: which GPUs its container was given cannot be seen" in (world.joiner.engine_note("vllm") or "")


def test_a_process_that_changed_its_mind_is_counted_in_pci_order_and_it_says_so(world: World) -> None:
    world.process(101, parent=100, environ="CUDA_VISIBLE_DEVICES=0\0")
    world.look(1.0, [], [context(101)])
    assert world.value("aie_engine_memory_physical_bytes", device="cuda1") == GIB
    assert "PCI order is assumed" in (world.joiner.engine_note("vllm") or "")


def test_physical_less_reserved_is_what_the_allocator_does_not_know_of(world: World) -> None:
    world.look(1.0, [context(100, 10 * GIB)])
    store = Store(max_series=1000, retention_s=300)
    store.apply(Batch("nvml", 1.0, world.points))
    tags = (("device", "cuda0"), ("engine", "vllm"))
    store.apply(Batch("statsd", 1.0, [Point("aie_engine_allocator_reserved_bytes", Kind.GAUGE, tags, 9.5 * GIB)]))
    found = unaccounted(store, ["vllm"], 1.0).points
    assert [(point.tags, point.value) for point in found] == [(tags, 0.5 * GIB)]


def test_where_the_driver_tells_no_memory_the_whole_gpu_stands_for_a_process_that_is_alone(world: World) -> None:
    world.look(1.0, [context(100, None)], used_bytes=7.0 * GIB)
    assert world.value("aie_engine_memory_physical_bytes", device="cuda0") == 7 * GIB
    assert "all that is in use on the GPU" in (world.joiner.engine_note("vllm") or "")
    world.process(200)
    world.look(2.0, [context(100, None), context(200, None)], used_bytes=7.0 * GIB)
    assert world.value("aie_engine_memory_physical_bytes") is None, "with a neighbour nobody knows"
    assert world.value("aie_engine_gpu_contexts", device="cuda0") == 1
    assert "not alone" in (world.joiner.engine_note("vllm") or "")


def test_a_gpu_that_tells_no_processes_has_no_count(world: World) -> None:
    world.look(1.0, None, [context(100)])
    assert world.value("aie_gpu_processes", gpu="0") is None
    assert world.value("aie_gpu_processes", gpu="1") == 1
    assert world.joiner.rows(0) == ()


def test_what_is_normal_is_no_orphan(world: World) -> None:
    """The null: a neighbour's training job, one that reads its checkpoint from a slow share for four minutes in a row, a process
    that just ended. None in a quarter of an hour: the rule is exact, and what could be false is that somebody waits in the kernel
    at each of three hundred looks."""
    world.process(200)
    for second in range(900):
        if second % 300 in (0, 240):
            world.process(201, state="S" if second % 300 == 240 else "D")
        world.look(float(second), [context(100), context(200), context(201), *([context(300)] if second % 7 < 4 else [])])
        assert world.value("aie_gpu_orphan_processes", gpu="0") == 0, second
        assert world.value("aie_gpu_orphan_memory_bytes", gpu="0") == 0


def test_two_hundred_processes_that_come_and_go_each_second_are_no_orphans_and_are_forgotten(world: World) -> None:
    for second in range(4):
        pids = range(1000 + 200 * second, 1200 + 200 * second)
        for pid in pids:
            if pid % 2:  # the others have ended before we look
                world.process(pid)
        world.look(float(second), [context(pid) for pid in pids])
        assert world.value("aie_gpu_orphan_processes", gpu="0") == 0
        assert world.value("aie_gpu_processes", gpu="0") == 200
        for pid in pids:
            if pid % 2:
                world.proc.end(pid)
    assert len(world.joiner._known) <= 200
    assert len(world.joiner._doubtful_since_s) <= 200


def test_a_process_that_is_gone_and_still_holds_memory_is_an_orphan(world: World) -> None:
    world.look(0.0, [context(100), context(300, 6 * GIB)])
    world.look(GONE_AFTER_S - 1, [context(100), context(300, 6 * GIB)])
    assert world.value("aie_gpu_orphan_processes", gpu="0") == 0
    assert [(row.tgid, row.ended) for row in world.joiner.rows(0)] == [(300, True), (100, False)], "it is known to be no neighbour"
    world.look(GONE_AFTER_S, [context(100), context(300, 6 * GIB)])
    assert world.value("aie_gpu_orphan_processes", gpu="0") == 1
    assert world.value("aie_gpu_orphan_memory_bytes", gpu="0") == 6 * GIB
    assert [(row.tgid, row.orphan) for row in world.joiner.rows(0)] == [(300, True), (100, False)]


@pytest.mark.parametrize(("state", "patience_s"), [("Z", GONE_AFTER_S), ("D", STRANGER_STUCK_AFTER_S)])
def test_zombies_and_strangers_that_hang_in_the_kernel(world: World, state: str, patience_s: float) -> None:
    world.process(300, state=state)
    world.look(0.0, [context(300, None)])
    world.look(patience_s - 1, [context(300, None)])
    assert world.value("aie_gpu_orphan_processes", gpu="0") == 0
    world.look(patience_s, [context(300, None)])
    assert world.value("aie_gpu_orphan_processes", gpu="0") == 1
    assert world.value("aie_gpu_orphan_memory_bytes", gpu="0") is None, "the driver does not tell, so nobody knows"


def test_what_an_engine_started_hangs_in_the_kernel_for_seconds_only(world: World) -> None:
    """The engine lives on, and this one is no descendant of it any more."""
    world.process(101, parent=100)
    world.look(0.0, [context(101)])
    assert world.joiner.rows(0)[0].engine == "vllm"
    world.process(101, parent=1, state="D")
    world.look(1.0, [context(101)])
    world.look(STUCK_AFTER_S, [context(101)])
    assert world.value("aie_gpu_orphan_processes", gpu="0") == 0
    world.look(1.0 + STUCK_AFTER_S, [context(101)])
    assert world.value("aie_gpu_orphan_processes", gpu="0") == 1


def test_what_hung_and_then_ends_is_gone_since_just_then(world: World) -> None:
    world.process(300, state="D")
    for second in range(100):
        world.look(float(second), [context(300)])
    world.proc.end(300)
    world.look(100.0, [context(300)])
    assert world.value("aie_gpu_orphan_processes", gpu="0") == 0, "the driver has not noticed yet"
    world.look(100.0 + GONE_AFTER_S, [context(300)])
    assert world.value("aie_gpu_orphan_processes", gpu="0") == 1


def test_a_worker_that_outlives_its_engine_is_an_orphan(world: World) -> None:
    world.process(101, parent=100)
    world.look(0.0, [context(101)])
    assert world.joiner.rows(0)[0].engine == "vllm"
    world.proc.end(100)
    world.engines.prune(1.0)
    world.process(101, parent=1)
    world.look(1.0, [context(101)])
    world.look(1.0 + GONE_AFTER_S, [context(101)])
    assert [(row.engine, row.orphan) for row in world.joiner.rows(0)] == [(None, True)]
    assert world.value("aie_engine_memory_physical_bytes") is None


def test_a_tgid_that_was_given_to_another_is_not_the_engine(world: World) -> None:
    world.proc.end(100)
    world.process(100, start=99_000)
    world.look(1.0, [context(100)])
    assert world.joiner.rows(0)[0].engine is None


def test_what_a_mount_with_hidepid_hides_is_no_orphan(world: World) -> None:
    world.proc.end(1)
    world.look(0.0, [context(300)])
    world.look(100.0, [context(300)])
    assert world.value("aie_gpu_orphan_processes", gpu="0") == 0
    assert world.joiner.exists() is None


def test_in_a_pid_namespace_of_its_own_nothing_is_joined_and_it_says_what_to_do(world: World) -> None:
    joiner = GpuProcesses(world.engines, world.procfs, lambda: True)
    points = asyncio.run(joiner.collect([GpuContexts(GPUS[0], [context(100), context(4242)])], 1.0))
    asyncio.run(joiner.collect([GpuContexts(GPUS[0], [context(100), context(4242)])], 100.0))
    assert [(row.engine, row.orphan, row.memory_bytes) for row in joiner.rows(0)] == [(None, False, GIB)] * 2
    assert {point.name for point in points} == {"aie_gpu_processes", "aie_gpu_orphan_processes", "aie_gpu_orphan_memory_bytes"}
    assert "hostPID: true" in (joiner.note or "")
    assert "--pid=host" in (joiner.note or "")
    assert joiner.exists() is None


def found(joiner: GpuProcesses) -> list[Finding]:
    """What the agent finds of a GPU of which the source tells only whether its processes can be told apart."""
    source = NvmlSource(GpuSection(), lambda: None, processes=joiner)
    return CauseWorld(gpus=[gpu(0, faults=source.faults(0))]).subjects(gpu_faults)


def test_a_pid_namespace_of_its_own_is_a_finding(world: World) -> None:
    (told,) = found(GpuProcesses(world.engines, world.procfs, lambda: True))
    assert (told.cause, told.subject) == ("gpu_pid_namespace", "gpu0")
    assert "hostPID: true" in told.advice


def test_processes_that_cannot_be_seen_for_another_reason_are_no_pid_namespace(world: World, tmp_path: Path) -> None:
    """The namespace of the host, one that cannot be seen, and a mount with hidepid: pids are the host's there."""
    world.proc.end(1)
    assert world.joiner.exists() is None, "hidepid"
    unseen = GpuProcesses(world.engines, world.procfs, lambda: in_other_pid_namespace(tmp_path / "nowhere"))
    assert [each.cause for joiner in (world.joiner, unseen) for each in found(joiner)] == [], "no gpu_pid_namespace"


def test_the_pid_namespace_is_told_by_its_number(tmp_path: Path) -> None:
    assert in_other_pid_namespace(tmp_path) is False, "where it cannot be seen, nothing is claimed"
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()
    assert in_other_pid_namespace(tmp_path) is True, "any inode but the first namespace's"
