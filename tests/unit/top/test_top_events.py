"""Events and findings of an agent: how long they are shown, what they say, and what they explain."""

from __future__ import annotations

import datetime

import agent_api as fake
import msgspec
import pytest

from aie_agent.analysis.history import BEGUN, KIND, OVER
from aie_telemetry.api import Event, Evidence, Finding, Quantiles, Snapshot, Source
from aie_top.columns.engines import by_key
from aie_top.events import SHOWN_S
from aie_top.model import build_frame
from aie_top.report import render, report_lines
from aie_top.rows import AgentState, EngineRow, Frame, View
from aie_top.views.pages import engine_page, problem_page

MIB = float(1 << 20)
LABEL = "http://gpu-07:9465"
HUNG = Finding(
    cause="engine_hung",
    subject="smollm2",
    severity="critical",
    since_s=fake.TIME_S - 40,
    summary="engine smollm2 hangs: 3 requests run and no token moves",
    evidence=(Evidence(text="generated tokens stand at 690 for 40 s (limit 30 s)", metric="aie_engine_generation_tokens_total"),),
    advice="Dump its stacks twice.",
)


def frame(snapshot: Snapshot) -> Frame:
    return build_frame([AgentState(label=LABEL, phase="live", snapshot=snapshot, received_s=1000.0)], 1000.0, datetime.UTC)


def oom(age_s: float = 5.0, **details: float | str) -> Event:
    return Event(time_s=fake.TIME_S - age_s, kind="oom", engine="smollm2", summary="out of memory on cuda0", details=details)


def state_of(shown: Frame, name: str) -> str:
    row = next(row for row in shown.engines if row.engine.name == name)
    return "".join(span.text for span in by_key("state").spans(row, 5)).strip()


def page_text(row: EngineRow, shown: Frame) -> str:
    return "\n".join("".join(span.text for span in line.spans) for line in engine_page(shown, row.key, 120))


def test_what_was_asked_and_what_was_there() -> None:
    details = {
        "device": "cuda0",
        "asked_bytes": 512 * MIB,
        "free_bytes": 100 * MIB,
        "largest_free_bytes": 64 * MIB,
        "reserved_unallocated_bytes": 900 * MIB,
        "retries": 3.0,
    }
    (row,) = frame(fake.snapshot(events=(oom(**details),))).problems
    assert (row.severity, row.subject, row.age_s) == ("warning", "smollm2", 5.0)
    assert row.summary == "out of memory on cuda0"
    assert row.why == (
        "asked for 512 MiB; free on the device 100 MiB; largest free block 64.0 MiB; reserved and not allocated 900 MiB",
        "device cuda0; retries 3",
    )
    assert "in pieces" in row.advice


def test_too_full_is_not_called_fragmented() -> None:
    (row,) = frame(fake.snapshot(events=(oom(asked_bytes=512 * MIB, reserved_unallocated_bytes=5 * MIB),))).problems
    assert "take less" in row.advice
    (row,) = frame(fake.snapshot(events=(oom(),))).problems
    assert row.why == ()


def test_for_ten_minutes_and_one_row_for_all() -> None:
    assert frame(fake.snapshot(events=(oom(SHOWN_S + 1),))).problems == ()
    (row,) = frame(fake.snapshot(events=(oom(3), oom(100), oom(SHOWN_S), oom(SHOWN_S + 1)))).problems
    assert row.age_s == 3.0
    assert row.summary.endswith("(3 times in 10 min)")


def test_a_kind_that_this_program_does_not_know() -> None:
    strange = msgspec.structs.replace(oom(), kind="reloaded", summary="")
    (row,) = frame(fake.snapshot(events=(strange,))).problems
    assert (row.severity, row.summary, row.advice) == ("info", "reloaded", "")


def test_findings_that_are_over_are_a_note_for_each_cause_and_those_that_are_there_no_event() -> None:
    def told(state: str, cause: str, age_s: float) -> Event:
        details: dict[str, float | str] = {"state": state, "cause": cause, "since_s": 1.0, "lasted_s": 4.0}
        summary = f"over after 4 s: {cause}"
        return Event(time_s=fake.TIME_S - age_s, kind=KIND, engine="smollm2", summary=summary, details=details)

    events = (
        told(OVER, "engine_hung", 9),
        told(OVER, "engine_stopped", 7),
        told(OVER, "engine_hung", 5),
        told(BEGUN, "engine_hung", 1),
    )
    rows = frame(fake.snapshot(events=events)).problems
    assert [(row.severity, row.summary, row.age_s, row.why) for row in rows] == [
        ("info", "over after 4 s: engine_hung (2 times in 10 min)", 5.0, ()),
        ("info", "over after 4 s: engine_stopped", 7.0, ()),
    ]


def test_findings_come_before_what_this_program_sees_itself() -> None:
    base = fake.troubled()
    shown = frame(msgspec.structs.replace(base, findings=(HUNG, *base.findings)))
    assert shown.problems[0].summary == HUNG.summary
    assert shown.problems[0].why == ("generated tokens stand at 690 for 40 s (limit 30 s) (aie_engine_generation_tokens_total)",)
    critical = [row.summary for row in shown.problems if row.severity == "critical"]
    assert "is down" in critical[-1], "though it is newer than the others"


def test_an_engine_that_hangs_says_so_in_its_row() -> None:
    silent = Source(name="scrape:smollm2", state="down", reason="no answer within 2 s")
    base = fake.healthy()
    mute = msgspec.structs.replace(base.engines[0], page_reason="no answer within 2 s")
    before = frame(msgspec.structs.replace(base, engines=(mute, base.engines[1]), sources=(silent,)))
    assert state_of(before, "smollm2") == "mute"
    assert state_of(before, "embedder") == "up"
    assert [row.summary for row in before.problems] == ["source scrape:smollm2 is down: no answer within 2 s"]
    after = frame(msgspec.structs.replace(base, engines=(mute, base.engines[1]), sources=(silent,), findings=(HUNG,)))
    assert state_of(after, "smollm2") == "HUNG"
    assert [row.summary for row in after.problems] == [HUNG.summary], "the finding explains that its page is silent"
    assert "no answer within 2 s" in page_text(after.engines[0], after)


def test_a_lost_agents_engine_is_stale_whatever_it_said() -> None:
    away = AgentState(
        label=LABEL, phase="away", reason="x", snapshot=msgspec.structs.replace(fake.healthy(), findings=(HUNG,)), received_s=1.0
    )
    assert state_of(build_frame([away], 1000.0, datetime.UTC), "smollm2") == "stale"


def test_stages_and_container_on_the_engines_page() -> None:
    staged = fake.engine("e", prefill=Quantiles(p50_seconds=0.2, p99_seconds=0.4), container="0123456789ab", pod="b1946ac9-2492")
    shown = frame(fake.snapshot(engines=(staged, fake.engine("f"))))
    with_stages, without = (page_text(row, shown) for row in shown.engines)
    assert "prefill" in with_stages
    assert "400 ms" in with_stages
    assert "0123456789ab" in with_stages
    assert "b1946ac9-2492" in with_stages
    assert "pod " not in without
    assert "decode" not in with_stages, "it does not tell"
    assert "prefill" not in without


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("told", [0, 1, 8, 60, 2_000])
def test_a_report_has_the_first_of_what_an_event_told_and_counts_the_rest(told: int, width: int) -> None:
    details: dict[str, float | str] = {f"what_{at}": f"{'word ' * 30}{at}" for at in range(told)}
    shown = frame(fake.snapshot(events=(oom(**details),)))
    lines = render(report_lines(shown, View(), width), colour=False).splitlines()
    said = lines[next(at for at, text in enumerate(lines) if "out of memory" in text) + 1 : lines.index("")]
    assert len(said) <= 8 + 6
    if told >= 60:
        (rest,) = [text for text in said if "lines more (enter; --json)" in text]
        whole = "\n".join(one.plain() for one in problem_page(shown.problems[0], width))
        left = int(rest.split("…")[1].split()[0])
        assert left > 10
        assert f"what {told - 1} " in whole, "the page has all of it"
    if told <= 1:
        assert "more" not in "".join(said)
    assert any(text.lstrip().startswith("do ") for text in said), "the advice is not pushed out"


@pytest.mark.parametrize("engine", ["smollm2", ""])
def test_a_process_that_the_kernel_killed_is_a_warning_with_what_to_do(engine: str) -> None:
    summary = "the kernel killed python (pid 8442) for lack of memory"
    killed = Event(
        time_s=fake.TIME_S - 5, kind="oom_kill", engine=engine, summary=summary, details={"pid": "8442", "anon_bytes": 64 * MIB}
    )
    (row,) = frame(fake.snapshot(events=(killed,))).problems
    assert (row.severity, row.summary, row.subject) == ("warning", summary, engine)
    assert row.why == ("pid 8442; anon 64.0 MiB",)
    assert "memory.max" in row.advice
