"""What the agent says of its own blindness: sources, drops, probes."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.cause_world import BEGIN_S, CauseWorld

from aie_agent.analysis.agent_causes import LOADS_S, agent_blind
from aie_agent.analysis.findings import SourceHealth
from aie_agent.config import BpfSection
from aie_agent.identity import Engines
from aie_agent.samples import Batch, Point
from aie_agent.sources.base import Runner, SourceError
from aie_agent.sources.bpf.build import NoProbes, build
from aie_agent.sources.procfs import Procfs
from aie_ebpf.prerequisites import Prerequisite
from aie_telemetry.api import Coverage, Finding
from aie_telemetry.catalogue import CATALOGUE, Kind


def found(world: CauseWorld) -> list[Finding]:
    every = world.subjects(agent_blind)
    assert all(evidence.metric in CATALOGUE for each in every for evidence in each.evidence)
    assert all(each.cause == "agent_blind" and each.advice.endswith(".") for each in every)
    return every


def source(name: str, down_s: float, last_read_s: float | None = 1.0, **more: Any) -> CauseWorld:
    return CauseWorld(
        sources=[SourceHealth("host", None, None, 5.0), SourceHealth(name, "no", BEGIN_S - down_s, last_read_s)], **more
    )


def test_a_source_that_is_down() -> None:
    (blind,) = found(source("nvml", 5.0))
    assert (blind.subject, blind.severity, blind.since_s) == ("nvml", "warning", BEGIN_S - 5.0)
    assert blind.summary == "the agent is blind for nvml: no"
    assert blind.evidence[0].text == "source nvml has been down for 5 s (limit 5 s): no"


def test_a_page_is_its_engines() -> None:
    (page,) = found(source("scrape:e", 9.0))
    assert (page.subject, page.severity) == ("e", "warning")
    (loads,) = found(source("scrape:e", 9.0, None))
    assert loads.severity == "info", "it never served a page: it may load"
    assert loads.evidence[1].text == "it was never read: it may load (limit 30 min)"
    (page,) = found(source("scrape:e", LOADS_S, None))
    assert page.severity == "warning", "nothing loads for so long: it dies, or its address is another"


@pytest.mark.parametrize("reason", ["refused", "no answer in 2 s"])
@pytest.mark.parametrize(
    ("read_ago_s", "started_ago_s", "severity"),
    [
        (125.0, 120.0, "info"),  # it was restarted, and loads
        (121.0, 121.4, "info"),  # within what a second's rounding loses
        (125.0, 600.0, "warning"),  # a process that served it lives
        (LOADS_S + 65.0, LOADS_S + 60.0, "warning"),  # nothing loads for so long
        (125.0, None, "warning"),  # nobody knows of processes
        (7200.0, 40.0, "warning"),  # it dies while it loads, and is started again and again
        (LOADS_S + 5.0, 300.0, "warning"),
        (LOADS_S - 5.0, 300.0, "info"),
    ],
)
def test_a_restarted_engine_may_load_again(reason: str, read_ago_s: float, started_ago_s: float | None, severity: str) -> None:
    world = CauseWorld(sources=[SourceHealth("scrape:e", reason, BEGIN_S - read_ago_s + 1, BEGIN_S - read_ago_s)])
    if started_ago_s is not None:
        world.live(1, {"aie_process_start_time_seconds engine=e": float(round(BEGIN_S - started_ago_s))})
    world.now_s = BEGIN_S
    (page,) = found(world)
    assert (page.subject, page.severity) == ("e", severity)
    assert ("its own log" in page.advice) == (severity == "info") == (len(page.evidence) == 2)
    if read_ago_s == 125.0 and severity == "info":
        assert page.evidence[1].text == "its processes started 2 min ago, after it was last read: it may load (limit 30 min)"


@pytest.mark.parametrize(("back_ago_s", "severity"), [(300.0, "info"), (LOADS_S + 5.0, "warning"), (None, "warning")])
def test_one_that_was_stopped_for_the_night_may_load(back_ago_s: float | None, severity: str) -> None:
    back_s = None if back_ago_s is None else BEGIN_S - back_ago_s
    world = CauseWorld(
        sources=[SourceHealth("scrape:e", "refused", BEGIN_S - 7199, BEGIN_S - 7200)], back_since_s=lambda engine: back_s
    )
    world.live(1, {"aie_process_start_time_seconds engine=e": BEGIN_S - 290.0})
    world.now_s = BEGIN_S
    assert [page.severity for page in found(world)] == [severity]


@pytest.mark.parametrize(
    ("started_ago_s", "severity"), [(40.0, "info"), (LOADS_S - 5.0, "info"), (LOADS_S, "warning"), (3 * 86_400.0, "warning")]
)
def test_one_whose_page_this_agent_never_read_has_loaded_if_it_has_run_for_long(started_ago_s: float, severity: str) -> None:
    """The agent was restarted, and the page is not what it was: nobody says that it loads."""
    world = source("scrape:e", 9.0, None)
    world.live(1, {"aie_process_start_time_seconds engine=e": BEGIN_S - started_ago_s})
    world.now_s = BEGIN_S
    (page,) = found(world)
    assert page.severity == severity
    assert ("it was never read: it may load" in page.evidence[-1].text) == ("its own log" in page.advice) == (severity == "info")


class Slow:
    """A page that takes too long for its period, at every second look, and answers no more from `silent_s` on."""

    name, period_s = "scrape:e", 1.0

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s

    async def collect(self, now_s: float) -> Batch:
        running = Point("aie_engine_requests_running", Kind.GAUGE, (("engine", "e"),), 1.0)
        is_read = now_s < self._silent_s and now_s % 2 == 0
        raise SourceError("it takes too long", Batch(self.name, now_s, [running]) if is_read else None)

    async def close(self) -> None:
        """Holds nothing."""


@pytest.mark.parametrize(("restarted", "severity"), [(False, "warning"), (True, "info")])
async def test_a_page_that_takes_too_long_is_read_all_the_same(restarted: bool, severity: str) -> None:
    """Also when the store has forgotten that: an engine that was read has loaded, and one that was started since may load."""
    world, fallen_s = CauseWorld(), BEGIN_S + 120
    runner = Runner(Slow(fallen_s), world.store.apply, clock=lambda: world.now_s)
    shown: dict[float, Finding] = {}
    while world.now_s < BEGIN_S + 600:
        began_s = fallen_s + 5 if restarted and world.now_s > fallen_s + 5 else BEGIN_S - 480
        world.live(1, {"aie_process_start_time_seconds engine=e": began_s})
        await runner.collect_once()
        world.store.evict(world.now_s)
        health = runner.health
        told = CauseWorld(sources=[SourceHealth(health.name, health.reason, health.down_since_s, health.last_read_s)])
        told.store, told.now_s = world.store, world.now_s
        shown.update((world.now_s, each) for each in found(told))
    assert not world.store.held("scrape:e"), "it has forgotten"
    assert runner.health.last_success_s is None
    assert {each.severity for now_s, each in shown.items() if now_s < fallen_s} == {"warning"}
    assert {each.severity for now_s, each in shown.items() if now_s > fallen_s + 10} == {severity}
    last = shown[BEGIN_S + 600]
    loads = "its processes started 8 min ago, after it was last read: it may load (limit 30 min)"
    assert [each.text for each in last.evidence[1:]] == ([loads] if restarted else [])


def test_other_sources_do_not_load() -> None:
    world = CauseWorld(sources=[SourceHealth("nvml", "no", BEGIN_S - 60, BEGIN_S - 61)])
    world.live(1, {"aie_process_start_time_seconds engine=nvml": BEGIN_S - 30})
    (blind,) = found(world)
    assert blind.severity == "warning"


def test_silent_on_what_is_normal() -> None:
    assert found(CauseWorld()) == []
    assert found(source("nvml", 4.0)) == [], "one look that failed"
    assert found(source("scrape:e", 60.0, state="down")) == [], "an engine that is down"


@pytest.mark.parametrize(
    "row",
    [
        "aie_agent_statsd_dropped_total reason=bad_value",
        "aie_agent_statsd_kernel_drops_total socket=udp",
        "aie_agent_samples_refused_total reason=series_limit",
        "aie_agent_relay_dropped_total reason=full",
    ],
)
def test_drops_for_a_minute(row: str) -> None:
    world = CauseWorld()
    world.live(20, {row: 0.0})
    assert found(world) == []
    world.live(1, {row: 7.0})
    (drops,) = found(world)
    assert (drops.subject, drops.severity) == ("agent", "info")
    what = row.partition("=")[2]
    assert drops.evidence[0].text.startswith("7 ")
    assert drops.evidence[0].text.endswith(f"({what}) in 60 s (limit 0)")
    world.live(59, {row: 0.0})
    assert len(found(world)) == 1
    world.live(2, {row: 0.0})
    assert found(world) == []


def test_what_came_late_and_was_told_since_is_no_drop() -> None:
    world = CauseWorld()
    for value in (0.0, 7.0):
        world.live(20, {"aie_agent_samples_refused_total reason=superseded": value})
    assert found(world) == []


def test_drops_of_before_the_agent_looked_are_none() -> None:
    world = CauseWorld()
    world.live(1, {"aie_agent_statsd_kernel_drops_total socket=udp": 500.0})
    world.live(5, {"aie_agent_statsd_kernel_drops_total socket=udp": 0.0})
    assert found(world) == []


def test_probes_that_the_host_does_not_allow_are_told_once() -> None:
    unmet = Prerequisite(name="privilege", met=False, found="CAP_BPF is missing", remedy="run it as root")
    probes = _probes([unmet])
    (blind,) = found(CauseWorld(coverage=probes.coverage, engines=["e", "f"]))
    assert (blind.subject, blind.severity, blind.advice) == ("probes", "info", "Run it as root.")
    assert blind.evidence[0].text == "probes are off: privilege: CAP_BPF is missing"


def test_probes_that_nobody_wants_or_that_see_a_part_are_no_news() -> None:
    assert found(CauseWorld(coverage=_probes(None).coverage)) == [], "switched off"
    part = (Coverage(set="cuda", state="off", reason="no libcuda"), Coverage(set="locks", state="on"))
    assert found(CauseWorld(coverage=lambda _: part)) == []
    assert found(CauseWorld(engines=[], coverage=_probes([Prerequisite("x", False, "y", "Z.")]).coverage)) == []


def _probes(unmet: list[Prerequisite] | None) -> NoProbes:
    procfs = Procfs()
    built = build(BpfSection(enabled=unmet is not None), Engines(procfs.start_ticks), procfs, 60.0, found=unmet or [])
    assert isinstance(built, NoProbes)
    return built
