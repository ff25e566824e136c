"""From snapshots to rows: what is wrong, what is old, in which order, and what a filter hides."""

from __future__ import annotations

import datetime

import agent_api as fake
import agent_gpus as gpus
import msgspec
import pytest

from aie_telemetry.api import Finding, Snapshot, Source
from aie_top.columns.engines import sort_keys
from aie_top.gpu_problems import indices_of
from aie_top.model import STALE_AFTER_S, arrange, build_frame, concerning, next_sort
from aie_top.rows import AgentState, Frame, View

LABEL = "http://gpu-07:9465"
NOW_S = 1000.0


def state(snapshot: Snapshot | None, **changes: object) -> AgentState:
    base = AgentState(label=LABEL, phase="live", snapshot=snapshot, received_s=NOW_S if snapshot else None)
    return msgspec.structs.replace(base, **changes)


def frame(*states: AgentState, now_s: float = NOW_S) -> Frame:
    return build_frame(states, now_s, datetime.UTC)


def names(shown: Frame) -> list[str]:
    return [row.engine.name for row in shown.engines]


def test_nothing_wrong_gives_no_problem() -> None:
    assert frame(state(fake.healthy())).problems == ()


def test_a_frame_is_a_function_of_its_arguments() -> None:
    states = [state(fake.troubled(7))]
    assert build_frame(states, NOW_S, datetime.UTC) == build_frame(states, NOW_S, datetime.UTC)


def test_what_is_wrong_comes_worst_first() -> None:
    severities = [row.severity for row in frame(state(fake.troubled())).problems]
    assert severities == ["critical", "critical", "warning", "warning", "info"]


def test_a_blind_agent_is_a_problem_with_its_reason() -> None:
    blind = fake.snapshot(sources=(Source(name="nvml", state="down", reason="driver/library version mismatch"),))
    (problem,) = frame(state(blind)).problems
    assert problem.severity == "warning"
    assert problem.summary == "source nvml is down: driver/library version mismatch"
    assert problem.advice


def test_a_source_that_has_not_begun_is_no_problem() -> None:
    assert frame(state(fake.snapshot(sources=(Source(name="host", state="waiting"),)))).problems == ()


def test_an_engine_that_is_down_is_a_problem_without_any_finding() -> None:
    llama = fake.engine("llama", state="down", down_since_s=fake.TIME_S - 30)
    (problem,) = frame(state(fake.snapshot(engines=(llama,)))).problems
    assert (problem.severity, problem.summary, problem.age_s) == ("critical", "engine llama is down: it has no process left", 30.0)
    assert "an hour" in problem.advice


def test_an_engine_that_has_just_gone_down_is_left_to_the_agent() -> None:
    for age_s, lines in ((0.0, 0), (9.9, 0), (10.0, 1)):
        llama = fake.engine("llama", state="down", down_since_s=fake.TIME_S - age_s)
        assert len(frame(state(fake.snapshot(engines=(llama,)))).problems) == lines


@pytest.mark.parametrize(
    ("running_at_end", "severities"),
    [
        (3.0, ["critical", "critical", "critical", "info"]),
        (0.0, ["warning", "warning", "warning", "info"]),
        # It was never told, or the agent does not remember it any more.
        (None, ["critical", "critical", "warning", "info"]),
    ],
)
def test_an_engine_that_is_down_is_as_bad_as_what_it_lost(running_at_end: float | None, severities: list[str]) -> None:
    found = []
    for age_s in (11, 239, 241, 600):
        llama = fake.engine("llama", state="down", down_since_s=fake.TIME_S - age_s, running_at_end=running_at_end)
        (problem,) = frame(state(fake.snapshot(engines=(llama,)))).problems
        found.append(problem.severity)
        assert ("stopped while idle" in problem.summary) == (running_at_end == 0)
        assert problem.why == (("3 requests ran when it was last seen",) if running_at_end else ())
    assert found == severities


@pytest.mark.parametrize(
    ("subject", "indices"),
    [
        ("GPU 3", {3}),
        ("simulated GPUs 0-2, 7", {0, 1, 2, 7}),
        ("gpu:12", {12}),
        ("GPU-51a1a7ed", set()),
        ("gpu-07", set()),
        ("llama", set()),
        ("", set()),
    ],
)
def test_which_gpus_a_subject_names(subject: str, indices: set[int]) -> None:
    assert indices_of(subject) == indices


def test_a_report_leaves_out_what_is_wrong_with_gpus_that_the_filter_leaves_out() -> None:
    given = frame(state(fake.snapshot(gpus=(gpus.gpu(0, up=False, reason="lost"), gpus.gpu(1, up=False, reason="hung")))))
    assert [row.subject for row in given.problems] == ["GPU 0", "GPU 1"]
    told = concerning(arrange(given, View(filter="hung")), given, "hung")
    assert [row.subject for row in told.problems] == ["GPU 1"]
    assert concerning(arrange(given, View()), given, "").problems == given.problems


def test_the_page_of_an_engine_that_is_down_is_no_second_problem() -> None:
    silent = Source(name="scrape:llama", state="down", reason="connection refused")
    gone = fake.snapshot(engines=(fake.engine("llama", state="down"),), sources=(silent,))
    assert [row.subject for row in frame(state(gone)).problems] == ["llama"]
    hidden = fake.snapshot(engines=(fake.engine("llama", state="up"),), sources=(silent,))
    assert [row.subject for row in frame(state(hidden)).problems] == ["scrape:llama"]


@pytest.mark.parametrize("note", [None, "no process of it is known, so its memory and CPU are not seen"])
def test_an_engine_without_a_known_process_does_not_look_fine(note: str | None) -> None:
    blind = fake.engine("llama", state="unknown", note=note)
    (problem,) = frame(state(fake.snapshot(engines=(blind,)))).problems
    assert problem.severity == "warning"
    assert problem.summary == f"engine llama: {note or 'no process of it is known'}"


def test_what_cannot_be_seen_of_an_engine_that_is_up_is_a_note() -> None:
    half = fake.engine("llama", note="its control group cannot be read: denied")
    (problem,) = frame(state(fake.snapshot(engines=(half,)))).problems
    assert (problem.severity, problem.summary) == ("info", "engine llama: its control group cannot be read: denied")


def test_a_finding_is_told_whole() -> None:
    leak = next(row for row in frame(state(fake.troubled())).problems if "380 MiB" in row.summary)
    assert leak.age_s == 10_980.0
    assert len(leak.why) == 2
    assert leak.advice
    assert leak.runbook
    assert leak.not_visible == ("kernel launches: static libcudart",)
    assert leak.changes


def test_a_clock_that_jumped_gives_no_negative_age() -> None:
    future = Finding(cause="x", subject="y", severity="info", since_s=fake.TIME_S + 3600, summary="z")
    assert frame(state(fake.snapshot(findings=(future,)))).problems[0].age_s == 0.0


def test_an_agent_that_is_away_keeps_its_data_marked_with_its_age() -> None:
    shown = frame(state(fake.healthy(), phase="away", reason="connection refused"), now_s=NOW_S + 12)
    assert {row.stale_s for row in shown.engines} == {12.0}
    assert {row.stale_s for row in shown.memory} == {12.0}
    assert shown.hosts[0].stale_s == 12.0
    assert shown.problems[0].summary == f"agent at {LABEL} is away: connection refused; retrying; data below is 12 s old"


def test_data_grows_old_on_an_open_connection_too() -> None:
    shown = frame(state(fake.healthy()), now_s=NOW_S + STALE_AFTER_S + 1)
    assert shown.problems[0].severity == "warning"
    assert shown.engines[0].stale_s == STALE_AFTER_S + 1


def test_an_agent_never_seen_says_what_to_do() -> None:
    (problem,) = frame(state(None, phase="away", reason="connection refused")).problems
    assert "aie-agent run" in problem.advice


def test_one_dead_agent_leaves_the_other_alone() -> None:
    dead = AgentState(label="http://gpu-08:9465", phase="away", reason="no data for 5 s")
    shown = frame(state(fake.healthy()), dead)
    assert names(shown) == ["smollm2", "embedder"]
    assert all(row.stale_s is None for row in shown.engines)
    assert [row.name for row in shown.hosts] == ["gpu-07", "gpu-08:9465"]


@pytest.mark.parametrize("key", sort_keys())
@pytest.mark.parametrize("reverse", [False, True])
def test_every_column_sorts_and_the_unknown_comes_last(key: str, reverse: bool) -> None:
    unknown = fake.engine("a-unknown", **dict.fromkeys(_NUMBERS))
    unknown = msgspec.structs.replace(
        unknown,
        **{field: type(unknown.queue)() for field in ("time_to_first_token", "inter_token", "queue", "duration")},
    )
    engines = (unknown, fake.engine("b"), fake.engine("c", running=99.0, waiting=0.0, kv_usage_ratio=0.1))
    shown = arrange(frame(state(fake.snapshot(engines=engines))), View(sort=key, reverse=reverse))
    assert sorted(names(shown)) == ["a-unknown", "b", "c"]
    if key not in ("name", "host", "state"):
        assert names(shown)[-1] == "a-unknown"


_NUMBERS = (
    "requests_per_second",
    "errors_per_second",
    "running",
    "waiting",
    "kv_usage_ratio",
    "prompt_tokens_per_second",
    "generation_tokens_per_second",
    "cpu_cores",
    "throttled_cores",
)


def test_numbers_start_with_the_largest_and_turn_round() -> None:
    engines = tuple(fake.engine(name, waiting=waiting) for name, waiting in (("a", 1.0), ("b", 9.0), ("c", 4.0)))
    given = frame(state(fake.snapshot(engines=engines)))
    assert names(arrange(given, View(sort="waiting"))) == ["b", "c", "a"]
    assert names(arrange(given, View(sort="waiting", reverse=True))) == ["a", "c", "b"]


def test_memory_stands_in_the_order_of_the_engines() -> None:
    shown = arrange(frame(state(fake.healthy())), View(sort="name"))
    assert [row.memory.engine for row in shown.memory] == names(shown) == ["embedder", "smollm2"]


def test_sort_goes_round_all_columns() -> None:
    key, seen = "name", []
    for _ in sort_keys():
        key = next_sort(key)
        seen.append(key)
    assert sorted(seen) == sorted(sort_keys())
    assert key == "name"


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("", ["embedder", "smollm2"]),
        ("SMOL", ["smollm2"]),
        ("gpu-07 up", ["embedder", "smollm2"]),
        ("instruct", ["smollm2"]),
        ("zzz", []),
    ],
)
def test_a_filter_looks_at_name_host_model_device_and_state(words: str, left: list[str]) -> None:
    assert names(arrange(frame(state(fake.healthy())), View(filter=words))) == left


def test_a_filter_never_hides_what_is_wrong_or_a_host() -> None:
    given = frame(state(fake.troubled()))
    shown = arrange(given, View(filter="zzz"))
    assert shown.problems == given.problems
    assert shown.hosts == given.hosts
    assert shown.memory == ()


@pytest.mark.parametrize("time_s", [1e18, -1e18, 0.0])
def test_an_absurd_clock_is_no_crash(time_s: float) -> None:
    frame(state(fake.snapshot(time_s=time_s)))
