"""The agent's findings on the screen: each thing once, GPUs together, and what is explained under what explains it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import agent_api as fake
import agent_gpus as gpus
import msgspec
import pytest
from cause_world import CauseWorld

from aie_agent.analysis.agent_causes import AGENT, agent_blind
from aie_agent.analysis.findings import SourceHealth
from aie_agent.analysis.gpu_causes.clocks import gpu_clocks
from aie_agent.analysis.gpu_causes.faults import gpu_faults
from aie_agent.analysis.gpu_causes.lost import gpu_lost, gpu_xids
from aie_telemetry.api import Event, Evidence, Finding, Gpu, Severity, Snapshot, Source
from aie_top.finding_rows import finding_rows
from aie_top.gpu_problems import gpu_problems
from aie_top.model import build_frame
from aie_top.report import render, report_lines
from aie_top.rows import AgentState, ProblemRow, View
from aie_top.views.pages import problem_page


def finding(cause: str, subject: str, severity: Severity = "warning", **more: object) -> Finding:
    base = Finding(
        cause=cause,
        subject=subject,
        severity=severity,
        since_s=fake.TIME_S - 60,
        summary=f"{cause} of {subject}",
        evidence=(Evidence(text=f"{subject} is so", metric="aie_engine_up"),),
    )
    return msgspec.structs.replace(base, **more)


def problems(snapshot: Snapshot) -> Sequence[ProblemRow]:
    state = AgentState(label="http://127.0.0.1:9465", phase="live", snapshot=snapshot, received_s=0.0)
    return build_frame([state], 0.0, datetime.UTC).problems


def text(snapshot: Snapshot) -> str:
    state = AgentState(label="http://127.0.0.1:9465", phase="live", snapshot=snapshot, received_s=0.0)
    return render(report_lines(build_frame([state], 0.0, datetime.UTC), View(), 120), colour=False)


def found_of(*rows: Gpu) -> tuple[Finding, ...]:
    """What the agent finds of these GPUs at the moment of the fake agent's snapshot."""
    world = CauseWorld(gpus=rows)
    world.now_s = fake.TIME_S - 1
    event = gpus.xid_event(fake.TIME_S - 20)
    world.live(
        1,
        {
            f"aie_gpu_xid_{name} gpu={event.details['gpu']} xid={event.details['xid']:.0f}": value
            for name, value in (("errors_total", 3.0), ("last_timestamp_seconds", event.time_s))
        },
    )
    return tuple(each for cause in (gpu_lost, gpu_xids, gpu_faults, gpu_clocks) for each in world.subjects(cause))


def test_what_the_agent_finds_of_gpus_is_not_told_again() -> None:
    rows = gpus.troubled(8)
    findings = found_of(*rows)
    assert {each.cause for each in findings} >= {"gpu_lost", "gpu_thermal", "gpu_orphan", "gpu_link_width"}
    alone = list(gpu_problems(fake.snapshot(gpus=rows, events=(gpus.xid_event(fake.TIME_S - 20),))))
    beside = list(gpu_problems(fake.snapshot(gpus=rows, events=(gpus.xid_event(fake.TIME_S - 20),), findings=findings)))
    assert [row.summary for row in alone if row.severity != "info"]
    assert [row.summary for row in beside if row.severity != "info"] == []


def test_gpus_that_have_the_same_share_a_line() -> None:
    hot = [gpus.throttled(at, clock_events_since_s={"hw_thermal": fake.TIME_S - 60 - at}) for at in (0, 1, 2, 3, 4, 7)]
    snapshot = fake.snapshot(gpus=tuple(hot), findings=found_of(*hot))
    (row,) = [row for row in finding_rows(snapshot) if "hot" in row.summary]
    assert (row.subject, row.severity, row.age_s) == ("GPUs 0-4, 7", "warning", 67.0)
    assert row.summary == "too hot: the hardware halves its clocks, or worse"
    assert row.why[0].startswith("GPU 0: the driver gives hw_thermal")
    assert row.why[-1] == "and 2 more"
    assert [one.subject for one in problems(snapshot) if "hot" in one.summary] == [row.subject]
    lost = (finding("gpu_lost", "gpu3", summary="GPU 3 is lost: it fell off the bus", severity="critical"),)
    (row,) = finding_rows(fake.snapshot(findings=lost))
    assert (row.subject, row.summary) == ("GPU 3", "lost: it fell off the bus")


def test_what_is_explained_stands_under_what_explains_it() -> None:
    snapshot = fake.snapshot(
        gpus=(gpus.gpu(0), gpus.gpu(1, processes=(gpus.process(engine="smollm2"),))),
        findings=(
            finding("gpu_thermal", "gpu0", summary="GPU 0: hot"),
            finding("gpu_thermal", "gpu1", summary="GPU 1: hot", evidence=()),
            finding("queue_saturation", "smollm2", "critical", explained_by="gpu_thermal", since_s=fake.TIME_S - 30),
            finding("client_flood", "smollm2", explained_by="queue_saturation"),
            finding("leak", "smollm2", explained_by="a cause that is gone"),
        ),
    )
    rows = {(row.subject, row.summary): row for row in finding_rows(snapshot)}
    assert set(rows) == {("GPUs 0, 1", "hot"), ("smollm2", "leak of smollm2")}
    hot = rows["GPUs 0, 1", "hot"]
    assert hot.severity == "critical", "as bad as what it explains"
    assert hot.explains == ("queue_saturation of smollm2 (for 30 s)", "client_flood of smollm2 (for 60 s)")
    shown = text(snapshot)
    assert shown.index("also queue_saturation of smollm2 (for 30 s)") > shown.index("hot")
    assert "1 critical  1 warning" in shown, "what is explained does not count"
    page = "\n".join(one.plain() for one in problem_page(hot, 100))
    assert "WHAT IT EXPLAINS" in page
    assert "client_flood of smollm2" in page


def test_what_is_explained_stands_under_the_gpu_that_is_named() -> None:
    snapshot = fake.snapshot(
        findings=(
            finding("gpu_thermal", "gpu0", summary="GPU 0: hot"),
            finding("gpu_thermal", "gpu1", "critical", summary="GPU 1: hot"),
            finding("queue_saturation", "smollm2", explained_by="gpu_thermal", explained_by_subject="gpu1"),
            finding("client_flood", "smollm2", explained_by="queue_saturation", explained_by_subject="smollm2"),
        )
    )
    rows = {row.subject: [each.split(" of ")[0] for each in row.explains] for row in finding_rows(snapshot)}
    assert rows == {"GPU 0": [], "GPU 1": ["queue_saturation", "client_flood"]}


def test_findings_that_explain_each_other_are_not_lost() -> None:
    snapshot = fake.snapshot(findings=(finding("a", "e", explained_by="b"), finding("b", "e", explained_by="a")))
    assert [row.summary for row in finding_rows(snapshot)] == ["a of e", "b of e"]


@pytest.mark.parametrize("name", ["nvml", "scrape:smollm2"])
def test_a_source_that_is_down_is_told_once(name: str) -> None:
    down = Source(name=name, state="down", reason="no driver", down_since_s=fake.TIME_S - 60)
    world = CauseWorld(engines=["smollm2"], sources=[SourceHealth(name, down.reason, down.down_since_s, 1.0)])
    world.now_s = fake.TIME_S
    before = problems(fake.snapshot(sources=(down,)))
    assert [row.summary for row in before] == [f"source {name} is down: no driver"]
    (after,) = problems(fake.snapshot(sources=(down,), findings=tuple(world.subjects(agent_blind))))
    assert "no driver" in after.summary
    assert "source" not in after.summary


def test_drops_are_told_once() -> None:
    agent = msgspec.structs.replace(fake.snapshot().agent, drops={"statsd: bad": 3.0})
    assert ["dropped" in row.summary for row in problems(fake.snapshot(agent=agent))] == [True]
    (row,) = problems(fake.snapshot(agent=agent, findings=(finding("agent_blind", AGENT, "info"),)))
    assert row.summary == "agent_blind of agent"


@pytest.mark.parametrize("cause", ["engine_down", "oom_killed"])
def test_an_engine_that_ended_is_told_once(cause: str) -> None:
    engine = msgspec.structs.replace(fake.healthy().engines[0], state="down", down_since_s=fake.TIME_S - 60, processes=())
    assert ["no process left" in row.summary for row in problems(fake.snapshot(engines=(engine,)))] == [True]
    (row,) = problems(fake.snapshot(engines=(engine,), findings=(finding(cause, engine.name, "critical"),)))
    assert row.summary == f"{cause} of {engine.name}"


@pytest.mark.parametrize(("kind", "cause"), [("oom", "cuda_oom"), ("oom", "out_of_memory"), ("oom_kill", "oom_killed")])
def test_memory_that_ran_out_is_told_once(kind: str, cause: str) -> None:
    event = Event(time_s=fake.TIME_S - 5, kind=kind, engine="smollm2", summary="ran out")
    assert [row.summary for row in problems(fake.snapshot(events=(event,)))] == ["ran out"]
    told = fake.snapshot(events=(event,), findings=(finding(cause, "smollm2", "critical"),))
    assert [row.summary for row in problems(told)] == [f"{cause} of smollm2"]
    other = fake.snapshot(events=(event,), findings=(finding(cause, "another", "critical"),))
    assert len(problems(other)) == 2
