"""Causes in GPUs: what the driver says becomes a finding of its own cause, with the nearest healthy case beside each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes import agent_gpus
from fakes.agent_gpus import MHZ, gpu, process
from fakes.cause_world import BEGIN_S, CauseWorld
from fakes.engine_world import EngineWorld

from aie_agent.analysis.causes import EXPLAINS, OF_SUBJECTS
from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.findings import ProcessState
from aie_agent.analysis.gpu_causes.clocks import gpu_clocks, gpu_power_cap
from aie_agent.analysis.gpu_causes.faults import FAULTS, gpu_faults
from aie_agent.analysis.gpu_causes.lost import XID_FAMILIES, gpu_lost, gpu_xids
from aie_agent.analysis.gpu_causes.numa import numa_misplaced
from aie_agent.analysis.gpu_causes.pcie import pcie_bound
from aie_agent.analysis.gpu_causes.tenants import gpu_neighbour
from aie_agent.analysis.gpu_problems import _RULES
from aie_agent.sources.numa import numa_nodes
from aie_agent.sources.procfs_text import cpu_list, cpus_allowed
from aie_telemetry.api import Finding, Gpu, GpuFault
from aie_telemetry.catalogue import CATALOGUE
from aie_telemetry.clock_events import CLOCK_EVENTS, FINDINGS
from aie_telemetry.xids import XIDS

RUNNING = "aie_engine_requests_running engine=e"
RX = "aie_gpu_pcie_bytes_per_second gpu=0 direction=rx"


def held(reason: str, for_s: float, **changes: Any) -> Gpu:
    return gpu(clock_events=(reason,), clock_events_since_s={reason: BEGIN_S - for_s}, **changes)


def causes(found: list[Finding]) -> list[tuple[str, str, str]]:
    assert all(each.metric in CATALOGUE for finding in found for each in finding.evidence)
    assert all(finding.cause in OF_SUBJECTS and finding.runbook.endswith(f"/{finding.cause}.md") for finding in found)
    assert all(finding.advice.endswith(".") and finding.evidence for finding in found)
    return [(each.cause, each.subject, each.severity) for each in found]


class TestFaults:
    def test_each_is_a_finding_of_its_own_cause(self) -> None:
        fault = GpuFault(
            cause="gpu_link_width",
            text="PCIe link has 8 lanes of 16: reseat the card, look at riser and slot; copies are slower",
            severity="warning",
            since_s=BEGIN_S - 60,
        )
        world = CauseWorld(gpus=[gpu(0), gpu(3, faults=(fault,), simulated=True)])
        (found,) = world.subjects(gpu_faults)
        assert causes([found]) == [("gpu_link_width", "gpu3", "warning")]
        assert found.since_s == BEGIN_S - 60
        assert found.summary == "simulated GPU 3: PCIe link has 8 lanes of 16"
        assert found.advice == "Reseat the card, look at riser and slot; copies are slower."

    def test_who_is_left_behind_is_named(self) -> None:
        left = process(77, engine=None, orphan=True, command="python train.py")
        fault = GpuFault(cause="gpu_orphan", text="1 orphan process holds memory 61.2 GiB: end it")
        (found,) = CauseWorld(gpus=[gpu(faults=(fault,), processes=(left,))]).subjects(gpu_faults)
        assert "process 77 (python train.py) holds 62668 MiB" in found.evidence[1].text
        assert "`kill`" in found.advice

    def test_every_rule_of_faults_is_known(self) -> None:
        assert {rule.cause for rule in _RULES} | {"gpu_pid_namespace"} == set(FAULTS)


class TestClocks:
    @pytest.mark.parametrize("reason", [name for name, event in CLOCK_EVENTS.items() if event.severity is not None])
    def test_a_reason_that_holds(self, reason: str) -> None:
        world = CauseWorld(gpus=[held(reason, 6.0, sm_clock_hertz=1_500 * MHZ)])
        assert causes(world.subjects(gpu_clocks)) == [(FINDINGS[reason], "gpu0", CLOCK_EVENTS[reason].severity)]
        (found,) = world.subjects(gpu_clocks)
        assert found.summary == f"GPU 0: {CLOCK_EVENTS[reason].words}"
        assert found.evidence[0].text == f"the driver gives {reason} as the reason for 6 s (limit 5 s)"

    @pytest.mark.parametrize("reason", FINDINGS)
    def test_a_reason_that_does_not_hold_for_long_is_silent(self, reason: str) -> None:
        brief = held(reason, 4.9, sm_clock_hertz=1_400 * MHZ)
        ended = msgspec.structs.replace(held(reason, 60.0, sm_clock_hertz=1_400 * MHZ), clock_events=())
        assert CauseWorld(gpus=[brief, ended]).subjects(gpu_clocks) == []

    def test_what_is_short_or_meant_is_silent(self) -> None:
        quiet = [held("hw_thermal", 4.0), held("app_clocks", 900.0), held("display_clocks", 900.0), held("sw_power_cap", 900.0)]
        unknown = gpu(clock_events=("hw_thermal",))
        lost = msgspec.structs.replace(held("hw_thermal", 60.0), up=False)
        assert CauseWorld(gpus=[*quiet, unknown, lost]).subjects(gpu_clocks) == []

    def test_a_clock_that_goes_up_and_down_is_judged_by_its_mean(self) -> None:
        """And shown as grave as it was for a minute: one finding, that does not change with each second."""
        world = CauseWorld(gpus=[held("sw_thermal", 60.0, sm_clock_max_hertz=2_000 * MHZ)])
        diagnosis, shown = Diagnosis(engine_causes=(), subject_causes=(gpu_clocks,)), []
        for mean in (0.9, 0.76, 0.6, 0.76):
            for second in range(30):
                world.live(1, {"aie_gpu_clock_hertz gpu=0 clock=sm": (mean + 0.1 * (-1) ** second) * 2_000 * MHZ})
                shown.append(diagnosis.update(world.view, world.now_s)[0])
        assert {each.severity for each in shown[:60]} == {"info"}
        assert {each.severity for each in shown[75:]} == {"warning"}
        assert {each.since_s for each in shown} == {BEGIN_S - 60.0}
        assert shown[-31].evidence[1].text == "its SM clock is 1182 MHz of 2000 MHz, 59% (limit 75%)", "of eleven readings"

    def test_the_mean_is_of_heat_alone(self) -> None:
        since = dict.fromkeys(("sw_thermal", "hw_power_brake", "board_limit"), BEGIN_S - 60)
        now = gpu(clock_events=tuple(since), clock_events_since_s=since, sm_clock_hertz=900 * MHZ, sm_clock_max_hertz=2_000 * MHZ)
        world = CauseWorld(gpus=[now])
        world.live(10, {"aie_gpu_clock_hertz gpu=0 clock=sm": 1_600 * MHZ})
        clocks = {each.cause: each.evidence[1].text for each in world.subjects(gpu_clocks)}
        assert clocks == {
            "gpu_thermal": "its SM clock is 1600 MHz of 2000 MHz, 80% (limit 75%)",
            "gpu_power_brake": "its SM clock is 900 MHz of 2000 MHz",
            "gpu_slowed": "its SM clock is 900 MHz of 2000 MHz",
        }

    @pytest.mark.parametrize(("hertz", "explains"), [(1_950 * MHZ, False), (1_000 * MHZ, True)])
    def test_a_warm_gpu_hides_what_is_wrong_only_where_it_costs_much(self, hertz: float, explains: bool) -> None:
        """A queue and a full KV cache on a GPU that lost 1.5 % of its clock are of the load."""
        warm = held("sw_thermal", 60.0, sm_clock_hertz=hertz, processes=(process(engine="e"),))
        world, diagnosis = EngineWorld(gpus=[warm]), Diagnosis()
        for _ in range(60):
            waits = {"queue_seconds": {4.0: 3.0}, "time_to_first_token_seconds": {4.5: 3.0}}
            world.serve(1, requests_running=8, requests_waiting=20, kv_usage_ratio=0.97, observes=waits)
            found = {each.cause: each for each in diagnosis.update(world.view, world.now_s)}
        assert found["kv_full"].explained_by == ("gpu_thermal" if explains else "")
        assert found["gpu_thermal"].severity == ("warning" if explains else "info")
        named = any(each.text.startswith("it may come of gpu_thermal") for each in found["kv_full"].evidence)
        assert named is not explains, "milder, it is named as what it may come of"

    def test_what_comes_in_pairs_is_one(self) -> None:
        since = dict.fromkeys(("hw_slowdown", "hw_thermal", "sw_thermal"), BEGIN_S - 60)
        both = gpu(clock_events=tuple(since), clock_events_since_s=since)
        assert causes(CauseWorld(gpus=[both]).subjects(gpu_clocks)) == [("gpu_thermal", "gpu0", "warning")]

    costly = held("sw_power_cap", 20.0, sm_clock_hertz=900 * MHZ, sm_clock_max_hertz=1980 * MHZ, utilization_ratio=0.9)

    def test_the_power_cap_counts_where_it_costs(self) -> None:
        assert causes(CauseWorld(gpus=[self.costly]).subjects(gpu_power_cap)) == [("gpu_power_cap", "gpu0", "info")]

    @pytest.mark.parametrize(
        "change",
        [
            {"sm_clock_hertz": 1190 * MHZ},  # 60.1 % of it
            {"utilization_ratio": 0.4},
            {"clock_events_since_s": {"sw_power_cap": BEGIN_S - 9.9}},
            {"clock_events": ()},
            {"sm_clock_hertz": None},
        ],
    )
    def test_a_power_cap_that_costs_little_is_silent(self, change: dict[str, Any]) -> None:
        assert CauseWorld(gpus=[msgspec.structs.replace(self.costly, **change)]).subjects(gpu_power_cap) == []


class TestLost:
    @pytest.mark.parametrize("reason", ["lost", "reset_required", "hung", "error", "a sentence of the driver"])
    def test_one_that_does_not_answer(self, reason: str) -> None:
        gone = Gpu(index=2, name="", uuid="", pci_bus_id="", up=False, reason=reason, not_up_since_s=BEGIN_S - 9, xids={"79": 1.0})
        (found,) = CauseWorld(gpus=[gpu(0), gone]).subjects(gpu_lost)
        assert causes([found]) == [("gpu_lost", "gpu2", "critical")]
        assert found.since_s == BEGIN_S - 9
        assert "XID 79 came once: the GPU has fallen off the bus" in found.evidence[1].text

    @pytest.mark.parametrize("reason", ["released", "closed"])
    def test_one_that_was_given_back_is_not_lost(self, reason: str) -> None:
        assert CauseWorld(gpus=[gpu(0, up=False, reason=reason)]).subjects(gpu_lost) == []


def xid(number: int, ago_s: float, times: float, gpu_name: str = "0") -> dict[str, float]:
    tags = f"gpu={gpu_name} xid={number}"
    return {f"aie_gpu_xid_errors_total {tags}": times, f"aie_gpu_xid_last_timestamp_seconds {tags}": BEGIN_S - ago_s}


class TestXids:
    def test_by_family_the_worst_first(self) -> None:
        world = CauseWorld(gpus=[gpu(0)])
        world.live(1, xid(63, 20, 2) | xid(48, 30, 1) | xid(31, 5, 7) | xid(999, 5, 1))
        found = {each.cause: each for each in world.subjects(gpu_xids)}
        assert set(causes(list(found.values()))) == {
            ("gpu_xid_memory", "gpu0", "critical"), ("gpu_xid_application", "gpu0", "info"), ("gpu_xid_unknown", "gpu0", "warning"),
        }  # fmt: skip
        memory = found["gpu_xid_memory"]
        assert memory.summary == "GPU 0: XID 48: uncorrectable (double bit) ECC error"
        assert [each.text.split(" since")[0] for each in memory.evidence] == ["XID 48 came once", "XID 63 came 2 times"]
        assert memory.since_s == BEGIN_S - 30

    @pytest.mark.parametrize("known", XIDS, ids=lambda known: str(known.number))
    def test_each_has_the_severity_and_action_of_the_catalogue(self, known: Any) -> None:
        world = CauseWorld(gpus=[gpu(0)])
        world.live(1, xid(known.number, 5, 1))
        (found,) = world.subjects(gpu_xids)
        assert (found.cause, found.severity, found.advice) == (f"gpu_xid_{known.blame}", known.severity, known.action)
        assert known.blame in XID_FAMILIES

    @pytest.mark.parametrize("family", [each for each in XID_FAMILIES if each != "unknown"])
    def test_each_family_is_told_of_the_gpu_that_has_it_and_of_no_other(self, family: str) -> None:
        own = next(each for each in XIDS if each.blame == family)
        world = CauseWorld(gpus=[gpu(0), gpu(1)])
        world.live(1, xid(own.number, 5, 2, gpu_name="1"))
        (found,) = world.subjects(gpu_xids)
        assert causes([found]) == [(f"gpu_xid_{family}", "gpu1", own.severity)]
        assert found.summary == f"GPU 1: XID {own.number}: {own.meaning}"
        assert found.evidence[0].text == f"XID {own.number} came 2 times since the agent started (limit 0)"

    @pytest.mark.parametrize("family", XID_FAMILIES)
    def test_no_family_is_told_of_what_is_another_ones_or_is_old(self, family: str) -> None:
        world = CauseWorld(gpus=[gpu(0)])
        own = [each.number for each in XIDS if each.blame == family] or [999]
        others = [each.number for each in XIDS if each.blame != family]
        rows = [xid(number, 700, 1) for number in own[:1]] + [xid(number, 700, 0) for number in own[1:]]
        world.live(1, {key: value for row in (*rows, *(xid(number, 5, 1) for number in others)) for key, value in row.items()})
        told = {each.cause for each in world.subjects(gpu_xids)}
        assert f"gpu_xid_{family}" not in told
        assert len(told) == len({each.blame for each in XIDS} - {family})

    @pytest.mark.parametrize("family", ["gpu", "driver", "link", "memory", "report", "application"])
    def test_what_an_engine_suffers_from_is_explained_by_what_breaks_a_gpu_and_by_nothing_milder(self, family: str) -> None:
        explained = EXPLAINS.get(f"gpu_xid_{family}", frozenset())
        assert bool(explained & {"engine_hung", "engine_down"}) == (family not in ("report", "application"))

    def test_what_is_old_is_no_news(self) -> None:
        world = CauseWorld(gpus=[gpu(0)])
        world.live(1, xid(79, 700, 1) | xid(48, 700, 0) | {"aie_gpu_xid_errors_total gpu=0 xid=31": 0})
        assert world.subjects(gpu_xids) == []
        assert CauseWorld(gpus=[gpu(0)]).subjects(gpu_xids) == []

    def test_one_that_came_while_no_agent_ran_is_told(self) -> None:
        world = CauseWorld(gpus=[gpu(0)])
        world.live(1, xid(48, 90, 0) | xid(64, 20, 1))
        (found,) = world.subjects(gpu_xids)
        assert (found.cause, found.severity, found.since_s) == ("gpu_xid_memory", "critical", BEGIN_S - 90)
        assert [(each.text, each.metric) for each in found.evidence] == [
            ("XID 64 came once since the agent started (limit 0)", "aie_gpu_xid_errors_total"),
            ("XID 48 came before the agent started, 91 s ago (limit 0)", "aie_gpu_xid_last_timestamp_seconds"),
        ]

    def test_a_gpu_that_nvml_never_showed(self) -> None:
        world = CauseWorld()
        world.live(1, xid(79, 5, 1, gpu_name="00000000:1A:00.0"))
        assert causes(world.subjects(gpu_xids)) == [("gpu_xid_link", "gpu 00000000:1A:00.0", "critical")]


class TestPcie:
    one = gpu(0, processes=(process(engine="e"),), pcie_generation=4, pcie_width=16)  # at most 31.5 GB/s

    def test_a_full_link_while_requests_run(self) -> None:
        world = CauseWorld(gpus=[self.one])
        world.live(10, {RX: 24e9, RUNNING: 3.0})
        (found,) = world.subjects(pcie_bound)
        assert causes([found]) == [("pcie_bound", "gpu0", "warning")]
        assert found.evidence[0].text == "24.0 GB/s from the host over the last 8 s, 76% of generation 4 with 16 lanes (limit 65%)"

    @pytest.mark.parametrize(
        "rows",
        [
            {RX: 20e9, RUNNING: 3.0},  # 63 %
            {RX: 24e9, RUNNING: 0.0},  # weights are loaded
            {RX: lambda second: 30e9 if second % 10 == 0 else 1e9, RUNNING: 3.0},
            {RX: lambda second: 24e9 if second % 15 < 6 else 1e9, RUNNING: 3.0},  # bursts of six seconds
            {RX: 24e9},
            {RUNNING: 3.0},
        ],
    )
    def test_silent_else(self, rows: Any) -> None:
        world = CauseWorld(gpus=[self.one])
        for _ in range(30):
            world.live(1, {row: each(int(world.now_s)) if callable(each) else each for row, each in rows.items()})
            assert world.subjects(pcie_bound) == []

    def test_copies_that_begin_to_fill_it_are_told_of_within_eight_seconds(self) -> None:
        world = CauseWorld(gpus=[self.one])
        world.live(30, {RX: 1e9, RUNNING: 3.0})
        after = next(second for second in range(1, 20) if world.live(1, {RX: 24e9, RUNNING: 3.0}) or world.subjects(pcie_bound))
        assert after <= 8

    def test_silent_where_the_link_is_not_known(self) -> None:
        for change in ({"pcie_generation": None}, {"pcie_width": None}, {"unified_memory": True}, {"processes": ()}, {"up": False}):
            world = CauseWorld(gpus=[msgspec.structs.replace(self.one, **change)])  # type: ignore[arg-type]
            world.live(10, {RX: 24e9, RUNNING: 3.0})
            assert world.subjects(pcie_bound) == []


class TestNeighbour:
    mine = process(10, engine="e")

    def found(self, *others: Any, **changes: Any) -> list[Finding]:
        return CauseWorld(gpus=[gpu(0, processes=(self.mine, *others), **changes)]).subjects(gpu_neighbour)

    def test_one_that_uses_the_gpu(self) -> None:
        (found,) = self.found(process(20, engine=None, command="python train.py", memory_bytes=20 << 30, sm_ratio=None))
        assert causes([found]) == [("gpu_neighbour", "gpu0", "warning")]
        assert found.evidence[0].text == "process 20 (python train.py) uses 20480 MiB (25% of the GPU's, limit 2%)"
        assert found.not_visible
        (light,) = self.found(process(20, engine=None, memory_bytes=2 << 30, sm_ratio=0.0))
        assert light.severity == "info"

    def test_silent_on_who_belongs_there(self) -> None:
        assert self.found() == []
        assert self.found(process(20, engine="other", memory_bytes=20 << 30)) == [], "two engines are known"
        assert self.found(process(20, engine=None, orphan=True)) == [], "a finding of its own"
        assert self.found(process(20, engine=None, ended=True)) == [], "gone, and soon an orphan or off the driver's list"
        assert self.found(process(20, engine=None, memory_bytes=1500 << 20, sm_ratio=0.04)) == [], "a monitor"
        assert self.found(process(20, engine=None, memory_bytes=None, sm_ratio=None)) == [], "not known"
        blind = GpuFault(cause="gpu_pid_namespace", text="x: y")
        assert self.found(process(20, engine=None), faults=(blind,)) == [], "whose it is is not known"
        assert CauseWorld(gpus=[gpu(0, processes=(process(20, engine=None),))]).subjects(gpu_neighbour) == [], "no engine is there"

    def test_a_check_of_a_few_seconds_is_none(self) -> None:
        world = CauseWorld()
        diagnosis = Diagnosis(engine_causes=(), subject_causes=(gpu_neighbour,))
        busy = gpu(0, processes=(self.mine, process(20, engine=None)))
        shown = []
        for second in range(40):
            world.gpus = (busy if second < 3 or second >= 20 else gpu(0, processes=(self.mine,)),)
            shown.append([each.since_s - BEGIN_S for each in diagnosis.update(world.view, BEGIN_S + second)])
        assert shown == [[]] * 25 + [[20.0]] * 15


class TestNuma:
    nodes = {0: frozenset(range(8)), 1: frozenset(range(8, 16))}  # noqa: RUF012

    def found(self, cpus: frozenset[int] | None, node: int | None = 1, **more: Any) -> Finding | None:
        on = gpu(0, numa_node=node, processes=(process(10, engine="e"),))
        world = CauseWorld(gpus=[on], processes=[ProcessState(10, "S", BEGIN_S, 1.0, cpus)], **{"nodes": self.nodes, **more})
        return world.engine(numa_misplaced)

    def test_cpus_of_another_node(self) -> None:
        found = self.found(frozenset({0, 1, 2, 3}))
        assert found is not None
        assert found.evidence[0].text == "process 10 may use 4 CPUs, all of node 0; GPU 0 is on node 1 (limit: one CPU of it)"
        assert "numactl --cpunodebind=1" in found.advice

    def test_silent_else(self) -> None:
        assert self.found(frozenset(range(16))) is None, "it may run anywhere"
        assert self.found(frozenset({3, 9})) is None
        assert self.found(None) is self.found(frozenset({0}), node=None) is self.found(frozenset({0}), node=7) is None
        assert self.found(frozenset({0}), nodes={0: frozenset({0, 1})}) is None, "one node"
        assert self.found(frozenset({0}), state="down") is None

    def test_what_the_kernel_says(self, tmp_path: Path) -> None:
        for node, cpus in (("node0", "0-3,8\n"), ("node1", "4-7\n"), ("node2", "\n"), ("node3", "x")):
            (tmp_path / node).mkdir()
            (tmp_path / node / "cpulist").write_text(cpus)
        assert numa_nodes(tmp_path) == {0: frozenset({0, 1, 2, 3, 8}), 1: frozenset({4, 5, 6, 7})}
        assert cpus_allowed(Path("/proc/self/status").read_bytes()) == cpu_list(
            next(
                line for line in Path("/proc/self/status").read_bytes().splitlines() if line.startswith(b"Cpus_allowed_list")
            ).split()[1]
        )


def test_healthy_gpus_at_work_are_silent() -> None:
    one = msgspec.structs.replace(gpu(0), clock_events=("sw_power_cap",), clock_events_since_s={"sw_power_cap": BEGIN_S - 600})
    world = CauseWorld(gpus=[one, *(gpu(index) for index in range(1, 8)), agent_gpus.unified(8)])
    world.live(20, {RUNNING: 8.0, RX: 3e9})
    for cause in (gpu_faults, gpu_clocks, gpu_power_cap, gpu_lost, gpu_xids, pcie_bound, gpu_neighbour):
        assert world.subjects(cause) == []


def test_a_lost_gpu_explains_what_became_of_its_engine() -> None:
    def hung(_view: object, engine: str, now_s: float) -> Finding:
        return Finding(cause="engine_hung", subject=engine, severity="critical", since_s=now_s, summary="it hangs")

    world = CauseWorld(gpus=[gpu(0, processes=(process(10, engine="e"),)), gpu(1)])
    diagnosis = Diagnosis(engine_causes=(hung,), subject_causes=(gpu_lost,))
    diagnosis.update(world.view, BEGIN_S)
    world.gpus = (Gpu(index=0, name="", uuid="", pci_bus_id="", up=False, reason="lost"), gpu(1))
    assert [(each.cause, each.explained_by) for each in diagnosis.update(world.view, BEGIN_S + 1)] == [
        ("gpu_lost", ""), ("engine_hung", "gpu_lost"),
    ]  # fmt: skip
    world.gpus = (gpu(0), Gpu(index=1, name="", uuid="", pci_bus_id="", up=False, reason="lost"))
    assert {each.explained_by for each in diagnosis.update(world.view, BEGIN_S + 2)} == {""}, "it was not on that one"
