"""When memory that ran out, a kill by the kernel and an engine that is gone are findings, and what is none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
from fakes.cause_world import BEGIN_S
from fakes.engine_world import EngineWorld, down

from aie_agent.analysis.causes import EXPLAINS
from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.engine_causes.gone import RESTART_S, engine_down, oom_killed
from aie_agent.analysis.engine_causes.out_of_memory import TOLD_S, cuda_oom, out_of_memory
from aie_agent.analysis.findings import EngineCause
from aie_agent.samples import Batch, Point
from aie_telemetry.api import Event, Finding
from aie_telemetry.catalogue import CATALOGUE, Kind

GIB = 2.0**30
FULL: dict[str, float | str] = {
    "device": "cuda0",
    "asked_bytes": 2 * GIB,
    "free_bytes": 0.5 * GIB,
    "total_bytes": 80 * GIB,
    "largest_free_bytes": 0.25 * GIB,
    "reserved_unallocated_bytes": 1.0 * GIB,
    "allocated_bytes": 77.5 * GIB,
    "reserved_bytes": 78.5 * GIB,
    "holders": "none",
    "suppressed": 0.0,
}
PIECES = {**FULL, "reserved_unallocated_bytes": 9 * GIB, "allocated_bytes": 69.5 * GIB}
OTHERS = {**FULL, "reserved_bytes": 40 * GIB, "allocated_bytes": 39 * GIB, "holders": "pid 7: 38000 MiB"}


def oom(details: dict[str, float | str], time_s: float = BEGIN_S, engine: str = "e") -> Event:
    return Event(time_s=time_s, kind="oom", engine=engine, summary="out of memory on cuda0: tried to allocate", details=details)


def kill(engine: str, time_s: float) -> Event:
    details: dict[str, float | str] = {"pid": "77", "anon_bytes": 3 * GIB}
    return Event(time_s=time_s, kind="oom_kill", engine=engine, summary="the kernel killed python (pid 77)", details=details)


@pytest.mark.parametrize(
    ("details", "words", "advice"),
    [
        (FULL, "the engine itself holds it", "--max-num-seqs"),
        (PIECES, "in pieces", "expandable_segments"),
        (OTHERS, "others hold it", "nvidia-smi"),
    ],
)
def test_why_memory_ran_out(details: dict[str, float | str], words: str, advice: str) -> None:
    world = EngineWorld(events=[oom(details)])
    finding = world.engine(cuda_oom)
    assert finding is not None
    assert (finding.cause, finding.subject, finding.severity, finding.since_s) == ("cuda_oom", "e", "warning", BEGIN_S)
    assert words in finding.summary
    assert "an allocation of 2.00 GiB failed on cuda0" in finding.summary
    assert advice in finding.advice
    text = " ".join(evidence.text for evidence in finding.evidence)
    assert "2.00 GiB was asked for; 512 MiB was free on the device; the largest free block of the allocator had 256 MiB" in text
    assert str(details["holders"]) in text
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()
    assert world.engine(out_of_memory) is None


def test_what_the_record_lacks_is_left_out() -> None:
    world = EngineWorld(events=[oom({"device": "cuda1", "unreadable": "memory_stats: RuntimeError"})])
    finding = world.engine(cuda_oom)
    assert finding is not None
    assert "an allocation failed on cuda1" in finding.summary
    assert len(finding.evidence) == 1
    assert finding.not_visible == ("could not be read at that moment: memory_stats: RuntimeError",)
    assert finding.summary.endswith("it is not known who holds it")


IN_CONTAINER = ", of all on the GPU one may be this process"
SHARED = {**FULL, "reserved_bytes": 40 * GIB}


@pytest.mark.parametrize(
    ("details", "pids", "words"),
    [
        (
            {**FULL, "reserved_bytes": 76 * GIB, "holders": f"pid 4711: 80000 MiB{IN_CONTAINER}"},
            set(),
            "the engine itself holds it",
        ),
        (
            {**FULL, "reserved_bytes": 60 * GIB, "holders": f"pid 4711: 80000 MiB{IN_CONTAINER}"},
            {4711},
            "the engine itself holds it",
        ),
        ({**SHARED, "holders": f"pid 7: 41500 MiB, pid 8: 38000 MiB{IN_CONTAINER}"}, set(), "others hold it"),
        ({**SHARED, "holders": f"pid 7: 41500 MiB, pid 8: 38000 MiB{IN_CONTAINER}"}, {7, 8}, "the engine itself holds it"),
        ({**SHARED, "holders": f"pid 7: 79000 MiB{IN_CONTAINER}"}, set(), "who holds it cannot be told"),
        ({**SHARED, "holders": f"pid 7: unknown, pid 8: unknown{IN_CONTAINER}"}, set(), "who holds it cannot be told"),
        ({**SHARED, "holders": "none"}, set(), "the engine itself holds it"),
        ({**SHARED, "holders": "pid 9: 700 MiB"}, set(), "the engine itself holds it"),
    ],
)
def test_an_engine_that_cannot_tell_its_own_pid_is_not_called_another(
    details: dict[str, float | str], pids: set[int], words: str
) -> None:
    finding = EngineWorld(events=[oom(details)], pids=lambda _: frozenset(pids)).engine(cuda_oom)
    assert finding is not None
    assert finding.summary.endswith(words)
    assert any(
        ("processes on the GPU: " in each.text) is (IN_CONTAINER in str(details["holders"])) for each in finding.evidence[-1:]
    )


def test_without_a_list_of_processes_who_holds_the_rest_is_not_guessed() -> None:
    nobody = {name: value for name, value in FULL.items() if name != "holders"}
    for reserved, words in ((78.5, "the engine itself holds it"), (70.0, "the engine itself holds it"), (40.0, "cannot be told")):
        finding = EngineWorld(events=[oom({**nobody, "reserved_bytes": reserved * GIB})]).engine(cuda_oom)
        assert finding is not None
        assert words in finding.summary, reserved


def test_the_device_is_in_the_summary_if_nowhere_else() -> None:
    finding = EngineWorld(events=[oom({"asked_bytes": GIB})]).engine(cuda_oom)
    assert finding is not None
    assert "failed on cuda0" in finding.summary
    unnamed = Event(time_s=BEGIN_S, kind="oom", engine="e", summary="no memory")
    nowhere = EngineWorld(events=[unnamed]).engine(out_of_memory)
    assert nowhere is not None
    assert "failed on its device" in nowhere.summary


def test_a_pool_on_a_cpu_has_a_name_of_its_own() -> None:
    world = EngineWorld(events=[oom({"device": "cpu", "asked_bytes": 1.0 * GIB})])
    assert world.engine(cuda_oom) is None
    finding = world.engine(out_of_memory)
    assert finding is not None
    assert (finding.cause, finding.summary.endswith("it is not known who holds it")) == ("out_of_memory", True)
    pool = EngineWorld(events=[oom({"device": "cpu", "total_bytes": 8 * GIB, "free_bytes": 0.0, "allocated_bytes": 8 * GIB})])
    finding = pool.engine(out_of_memory)
    assert finding is not None
    assert finding.summary.endswith("the engine itself holds it"), "nobody else can"


def test_again_and_again_is_critical() -> None:
    often = EngineWorld(events=[oom(FULL, BEGIN_S - 1), oom({**FULL, "suppressed": 4.0})])
    finding = often.engine(cuda_oom)
    assert finding is not None
    assert finding.severity == "critical"
    assert "6 times in the last 300 s" in finding.evidence[0].text


@pytest.mark.parametrize(("cause", "device"), [(cuda_oom, "cuda0"), (out_of_memory, "cpu")])
def test_what_was_long_ago_or_another_engines_is_not_told(cause: EngineCause, device: str) -> None:
    ran_out = {**FULL, "device": device}
    nothing = [oom(ran_out, BEGIN_S - TOLD_S), oom(ran_out, engine="other"), kill("e", BEGIN_S)]
    assert EngineWorld(events=nothing).engine(cause) is None
    assert EngineWorld(events=[*nothing, oom(ran_out, BEGIN_S - TOLD_S + 1)]).engine(cause) is not None


def test_an_engine_that_goes_with_requests_in_it() -> None:
    world = EngineWorld()
    world.serve(30, requests_running=3)
    gone = down(world, world.now_s)
    gone.now_s += 5
    finding = gone.engine(engine_down)
    assert finding is not None
    assert (finding.cause, finding.severity, finding.since_s) == ("engine_down", "critical", world.now_s)
    assert "3 requests were in it" in finding.summary
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


def after_silence(world: EngineWorld, silent_s: int, processes: Callable[[int], float] = lambda _: 5.0) -> Finding:
    """The finding of a configured engine that goes so long after its page was read last; its processes are still looked at."""
    for second in range(silent_s):
        world.live(1, {"aie_process_instances engine=e": processes(second)})
    gone = down(world, world.now_s + 1, configured=frozenset({"e"}))
    gone.now_s += 6
    finding = gone.engine(engine_down)
    assert finding is not None
    return finding


def test_what_ran_long_before_it_went_may_have_ended() -> None:
    """A server that is asked to end closes its page, works off what it has, and goes: a rolling restart under load."""
    world = EngineWorld()
    world.serve(60, requests_running=8, more={"aie_process_instances engine=e": 5.0})
    finding = after_silence(world, 60)
    assert finding.severity == "info"
    assert finding.summary == "engine e is gone: it has no process left; 8 requests ran in it before: they had ended, or are lost"
    assert (
        "8 requests ran when it was last heard, 61 s before it went (limit 0); they may have ended by then"
        in finding.evidence[1].text
    )
    gone = down(world, world.now_s + 1, configured=frozenset({"e"}))
    gone.now_s += 1 + RESTART_S
    late = gone.engine(engine_down)
    assert late is not None
    assert late.severity == "warning", "and it did not come back"


@pytest.mark.parametrize(("silent_s", "severity"), [(0, "critical"), (3, "critical"), (6, "info")])
def test_what_was_heard_until_the_end_was_in_it(silent_s: int, severity: str) -> None:
    world = EngineWorld()
    world.serve(60, requests_running=8, more={"aie_process_instances engine=e": 5.0})
    finding = after_silence(world, silent_s)
    assert finding.severity == severity
    assert f"last heard, {silent_s + 1} s before it went" in finding.evidence[1].text


def test_one_that_crashes_in_parts_loses_what_ran_in_it() -> None:
    """The process that computes goes first, the one that serves fails what it has and follows."""
    world = EngineWorld()
    world.serve(60, requests_running=8, more={"aie_process_instances engine=e": 5.0})
    finding = after_silence(world, 20, lambda second: 5.0 if second < 1 else 1.0)
    assert finding.severity == "critical"
    assert "8 requests were in it" in finding.summary


@pytest.mark.parametrize(("drain_s", "gap_s"), [(20, 2), (60, 4), (60, 6), (120, 5)])
def test_one_that_drained_goes_one_process_after_the_other(drain_s: int, gap_s: int) -> None:
    """Its workers end seconds before what serves, long after its page closed."""
    world = EngineWorld()
    world.serve(60, requests_running=8, more={"aie_process_instances engine=e": 5.0})
    finding = after_silence(world, drain_s, lambda second: 5.0 if second < drain_s - gap_s else 1.0)
    assert finding.severity == "info"
    assert "they may have ended by then" in finding.evidence[1].text


def test_hooks_that_speak_every_ten_seconds_were_heard_until_the_end() -> None:
    world = EngineWorld()
    tags = (("engine", "e"),)
    for time_s in (BEGIN_S + 10, BEGIN_S + 20):
        world.store.apply(Batch("statsd", time_s, [Point("aie_engine_requests_running", Kind.GAUGE, tags, 2.0)]))
    world.now_s = BEGIN_S + 20
    for silent_s, severity in ((9, "critical"), (40, "info")):
        finding = down(world, world.now_s + silent_s, configured=frozenset({"e"})).engine(engine_down)
        assert finding is not None
        assert finding.severity == severity


class TestSglangGoes:
    """Its page shows requests for half a minute after the last one ended."""

    INFO: ClassVar = {"aie_engine_info engine=e model=m kind=sglang": 1.0}

    def serve(self, idle_s: int, requests_a_second: float) -> Finding:
        world = EngineWorld()
        ends = {"request_duration_seconds": {1.0: requests_a_second}}
        world.serve(60, requests_running=4, generation_tokens_total=80, observes=ends, more=self.INFO)
        world.serve(idle_s, requests_running=4, generation_tokens_total=0, more=self.INFO)
        gone = down(world, world.now_s + 1)
        gone.now_s += 4
        finding = gone.engine(engine_down)
        assert finding is not None
        return finding

    @pytest.mark.parametrize(("idle_s", "requests_a_second"), [(2, 2.0), (6, 0.1), (20, 2.0)])
    def test_after_its_last_request(self, idle_s: int, requests_a_second: float) -> None:
        finding = self.serve(idle_s, requests_a_second)
        assert finding.severity == "info"
        assert "they may have ended by then" in finding.evidence[1].text

    @pytest.mark.parametrize(("idle_s", "requests_a_second"), [(0, 2.0), (2, 0.1)])
    def test_at_work(self, idle_s: int, requests_a_second: float) -> None:
        """Its numbers move every 40 steps."""
        finding = self.serve(idle_s, requests_a_second)
        assert finding.severity == "critical"
        assert "4 requests were in it" in finding.summary


def test_a_drained_engine_has_minutes_to_come_back() -> None:
    world = EngineWorld()
    world.serve(30, requests_running=0)
    gone = down(world, world.now_s, configured=frozenset({"e"}))
    told = []
    for after_s in (5.0, RESTART_S - 1, RESTART_S, RESTART_S + 3600):
        gone.now_s = world.now_s + after_s
        gone.store.evict(gone.now_s)
        finding = gone.engine(engine_down)
        told.append(None if finding is None else finding.severity)
    assert told == ["info", "info", "warning", "warning"]


@pytest.mark.parametrize(("configured", "severity"), [(frozenset({"e"}), "warning"), (frozenset(), "info")])
def test_an_engine_that_goes_while_idle_may_have_been_stopped(configured: frozenset[str], severity: str) -> None:
    world = EngineWorld()
    world.serve(30, requests_running=0)
    finding = down(world, world.now_s - RESTART_S, configured=configured).engine(engine_down)
    assert finding is not None
    assert finding.severity == severity
    assert "stopped while idle" in finding.summary
    unknown = down(EngineWorld(), BEGIN_S, configured=configured).engine(engine_down)
    assert unknown is not None
    assert unknown.severity == severity
    assert unknown.not_visible


@pytest.mark.parametrize(("looks", "told"), [(2, []), (3, ["engine_down"])])
def test_an_engine_that_is_back_within_two_seconds_was_not_down(looks: int, told: list[str]) -> None:
    """As the diagnosis shows it, of an engine with requests in it that is without a process at so many looks, a second apart."""
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=(engine_down,), subject_causes=())
    world.serve(30, requests_running=3)
    gone = down(world, world.now_s + 1)
    views = [world.view, *[gone.view] * looks, world.view]
    shown = [diagnosis.update(view, world.now_s + second) for second, view in enumerate(views)]
    assert [each.cause for found in shown for each in found] == told


@pytest.mark.parametrize("state", ["up", "unknown"])
def test_an_engine_that_lives_or_was_never_seen_is_not_down(state: str) -> None:
    world = EngineWorld(state=state)
    world.serve(30, requests_running=3)
    assert world.engine(engine_down) is None


def test_a_kill_that_a_probe_saw() -> None:
    events = [kill("e", BEGIN_S)]
    finding = down(EngineWorld(), BEGIN_S, events=events).engine(oom_killed)
    assert finding is not None
    assert (finding.cause, finding.severity, finding.since_s) == ("oom_killed", "critical", BEGIN_S)
    assert "it held 3.00 GiB anon" in finding.evidence[0].text
    assert not finding.not_visible
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()
    assert "engine_down" in EXPLAINS["oom_killed"]
    of_worker = EngineWorld(events=events).engine(oom_killed)
    assert of_worker is not None
    assert of_worker.severity == "warning", "one of its processes, and it lives"


def test_a_kill_that_only_the_kernel_counted() -> None:
    world = EngineWorld()
    world.live(30, {"aie_host_oom_kills_total": lambda second: second == 27})
    finding = down(world, world.now_s).engine(oom_killed)
    assert finding is not None
    assert finding.since_s == world.now_s - 2
    assert "it seems" in finding.summary
    assert finding.not_visible


def test_kills_that_are_another_ones() -> None:
    world = EngineWorld()
    world.live(60, {"aie_host_oom_kills_total": lambda second: second == 27})
    assert down(world, world.now_s).engine(oom_killed) is None, "long before it went"
    assert world.engine(oom_killed) is None, "it lives"
    seen = down(world, BEGIN_S + 29, events=[kill("", BEGIN_S + 28)])
    assert seen.engine(oom_killed) is None, "a probe saw whose it was"
    assert down(EngineWorld(), BEGIN_S).engine(oom_killed) is None, "nobody counts"


@pytest.mark.parametrize("cause", [engine_down, oom_killed, cuda_oom, out_of_memory])
def test_nothing_is_said_of_what_is_not_known(cause: EngineCause) -> None:
    assert EngineWorld().engine(cause) is None
