"""What is said of GPUs: nothing of a healthy one, each trouble once and worst first, never a number that is not known."""

from __future__ import annotations

import datetime
import string

import agent_api as fake
import agent_gpus as gpus
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_telemetry.api import Finding, Gpu, GpuProcess, Snapshot
from aie_telemetry.catalogue.gpu import GPU_METRICS
from aie_telemetry.xids import BY_NUMBER
from aie_top import format as fmt
from aie_top import gpu_words
from aie_top.columns.gpus import short_name, state_spans
from aie_top.gpu_problems import gpu_problems
from aie_top.gpu_processes import process_rows
from aie_top.gpu_state import conditions, is_wrong
from aie_top.model import arrange, build_frame
from aie_top.report import render, report_lines
from aie_top.rows import AgentState, Frame, GpuRow, ProblemRow, View
from aie_top.text import cell_width
from aie_top.views.gpu_page import GpuPage, gpu_page
from aie_top.views.gpus import gpu_lines, gpu_rows_by_line
from aie_top.views.tables import Place

LABEL = "http://127.0.0.1:9465"


def snapshot_of(*rows: Gpu, **changes: object) -> Snapshot:
    return fake.snapshot(**({"gpus": rows, "events": (gpus.xid_event(fake.TIME_S - 20),)} | changes))


def frame_of(*rows: Gpu) -> Frame:
    state = AgentState(label=LABEL, phase="live", snapshot=snapshot_of(*rows), received_s=0.0)
    return build_frame([state], 0.0, datetime.UTC)


def problems_of(*rows: Gpu) -> list[ProblemRow]:
    return list(gpu_problems(snapshot_of(*rows)))


def report(*rows: Gpu, width: int = 80) -> str:
    return render(report_lines(frame_of(*rows), View(), width), colour=False)


def page(*rows: Gpu, at: int = 0, width: int = 100) -> str:
    frame = frame_of(*rows)
    return " ".join(" ".join(one.plain() for one in gpu_page(frame, frame.gpus[at].key, width)).split())


# The null tests: exact rules, so the rate of false alarms on these states is zero.
@settings(max_examples=200, deadline=None)
@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 5),
    st.sampled_from([(), ("idle",), ("sw_power_cap",), ("app_clocks",), ("display_clocks", "sw_power_cap")]),
)
def test_a_healthy_gpu_has_no_problem_however_busy_or_idle(
    busy: float, held: float, generation: int, events: tuple[str, ...]
) -> None:
    one = gpus.gpu(
        utilization_ratio=busy,
        memory_used_bytes=held * 79 * gpus.GIB,
        pcie_generation=generation,
        clock_events=events,
        power_watts=700.0,
    )
    assert problems_of(one) == []
    assert not any(map(is_wrong, conditions(one)))


@pytest.mark.parametrize("one", [gpus.unknown(0), gpus.divided(0), gpus.unified(0)], ids=["unknown", "mig", "unified"])
def test_what_a_gpu_does_not_tell_is_no_problem(one: Gpu) -> None:
    assert problems_of(one) == []


def test_each_trouble_is_one_line_and_the_worst_come_first() -> None:
    state = AgentState(label=LABEL, phase="live", snapshot=snapshot_of(*gpus.troubled(8)), received_s=0.0)
    told = [(row.severity, row.subject, row.summary) for row in build_frame([state], 0.0, datetime.UTC).problems]
    assert [one[:2] for one in told] == [
        ("critical", "GPU 3"),
        ("warning", "GPU 5"),
        ("warning", "GPU 1"),
        ("warning", "GPU 4"),
        ("warning", "GPU 5"),
        ("info", "GPU 5"),
    ]
    summaries = " | ".join(one[2] for one in told)
    for word in ("LOST", "too hot", "8 lanes of 16", "XID 94", "orphan", "XID 31"):
        assert summaries.count(word) == 1, word


def test_gpus_with_the_same_trouble_share_a_line() -> None:
    rows = [gpus.throttled(index) for index in (0, 1, 2, 5)]
    (row,) = problems_of(*rows)
    assert row.subject == "GPUs 0-2, 5"
    assert len(row.why) == 4


def test_the_general_reason_is_left_out_beside_the_special_one() -> None:
    (one,) = conditions(gpus.gpu(clock_events=("hw_slowdown", "hw_power_brake")))
    assert one.short == "power brake"


def test_unified_memory_is_said_at_every_width() -> None:
    for width in (80, 120, 200):
        assert "unified" in next(text for text in report(gpus.unified(0), width=width).splitlines() if text.startswith(" 0 GB10"))


def test_what_a_finding_tells_is_not_told_again() -> None:
    finding = Finding(cause="gpu_lost", subject="gpu 3", severity="critical", since_s=0.0, summary="GPU 3 is lost")
    rows = (gpus.lost(3), gpus.lost(13))
    assert [row.subject for row in gpu_problems(snapshot_of(*rows, findings=(finding,)))] == ["GPU 13"]


def test_every_reason_of_the_catalogue_has_words() -> None:
    told = {metric.name: metric.help for metric in GPU_METRICS}
    for name in gpu_words.CLOCK_EVENTS:
        assert name in told["aie_gpu_clock_event_active"]
    listed = told["aie_gpu_clock_event_active"].partition(": ")[2].rstrip(".").split(", ")
    assert sorted(listed) == sorted(gpu_words.CLOCK_EVENTS)
    for name in gpu_words.NOT_UP:
        assert name in told["aie_gpu_up"]


def test_an_xid_is_as_bad_as_it_is_new() -> None:
    """The count alone is kept for as long as the agent runs: it makes a note, and no alarm for ever."""
    one = gpus.gpu(2, xids={"94": 3.0})
    event = gpus.xid_event(fake.TIME_S - 20, 2)
    state = AgentState(label=LABEL, phase="live", snapshot=snapshot_of(one, events=(event,)), received_s=0.0)
    (new,) = build_frame([state], 0.0, datetime.UTC).problems
    assert (new.severity, new.age_s, new.advice, new.subject) == ("warning", 20.0, "Restart that application.", "GPU 2")
    old = msgspec.structs.replace(event, time_s=fake.TIME_S - 3_600)
    other = msgspec.structs.replace(event, details={"gpu": "3", "xid": 94.0})
    for events in ((), (old,), (other,)):
        (note,) = gpu_problems(snapshot_of(one, events=events))
        assert (note.severity, note.age_s, note.why) == ("info", None, ("seen 3 times",))


def test_a_reason_or_xid_of_tomorrow_is_told_as_it_is() -> None:
    told = [one.short for one in conditions(gpus.gpu(clock_events=("solar_flare",), xids={"999": 2.0}))]
    assert told == ["XID 999", "solar flare"]
    assert "the cable is out" in report(gpus.gpu(0, up=False, reason="the cable is out"))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_simulated_is_said_in_title_rows_problems_and_page(width: int) -> None:
    rows = gpus.troubled(8, simulated=True)
    lines = report(*rows, width=width).splitlines()
    title = next(at for at, text in enumerate(lines) if "GPUS" in text)
    assert "SIM" in lines[title]
    assert ("simulated" if width >= 100 else "(sim)") in lines[title + 1]
    assert not lines[title + 1].endswith("…")
    assert all(f"{index} sim " in lines[title + 2 + index] for index in range(8))
    told = [text for text in lines[:title] if text[1:2] in ("✖", "▲", "·")]
    assert told
    assert all("simulated GPU" in text for text in told)
    assert all("sim" in text for text in lines if "smollm2" in text and "serve" in text)
    assert "simulated" in page(*rows, width=width)


def test_real_gpus_are_not_said_to_be_simulated() -> None:
    assert "sim" not in report(*gpus.healthy(8), width=200).lower()


def test_without_gpus_there_is_no_word_of_them() -> None:
    state = AgentState(label=LABEL, phase="live", snapshot=fake.healthy(), received_s=0.0)
    frame = build_frame([state], 0.0, datetime.UTC)
    assert "GPU" not in render(report_lines(frame, View(), 200), colour=False)


def test_unknown_values_are_dashes_and_never_nought() -> None:
    row = next(text for text in report(gpus.unknown(0), width=200).splitlines() if text.startswith(" 0 H100"))
    assert not set(row.partition("ok")[2]) & set(string.digits)
    assert row.count(" -") >= 6


def test_a_lost_gpu_keeps_its_line_and_says_why() -> None:
    for width in (80, 120, 200):
        row = next(text for text in report(*gpus.troubled(8), width=width).splitlines() if text.startswith(" 3 H100"))
        assert "✖ LOST" in row
        assert "fell off the bus" in row
        assert "XID 79" in row


@given(st.integers(1, 16), st.integers(2, 20), st.integers(0, 15))
def test_the_worst_and_the_one_under_the_cursor_are_always_in_sight(count: int, height: int, cursor: int) -> None:
    rows = tuple(gpus.lost(index) if index == count - 1 else gpus.gpu(index) for index in range(count))
    frame = frame_of(*rows)
    at = min(cursor, count - 1)
    shown = [row for row in gpu_rows_by_line(frame, Place(80, height, at)) if row is not None]
    assert at in shown
    assert shown == sorted(set(shown))
    if height >= 4:
        assert count - 1 in shown


def test_sixteen_gpus_in_five_lines_are_summed_up() -> None:
    lines = gpu_lines(frame_of(*gpus.troubled(16)), View(), Place(120, 5))
    assert len(lines) == 5
    assert "all 16" in lines[1].plain()
    assert "1 lost" in lines[1].plain()
    assert "3 in trouble" in lines[1].plain()
    assert "LOST" in "".join(one.plain() for one in lines[2:])


def test_those_that_do_not_answer_are_counted_by_why_with_the_mark_that_it_has() -> None:
    rows = (*(gpus.lost(at, reason="released", xids={}) for at in range(3)), gpus.lost(3), gpus.lost(4, reason="hung"), gpus.gpu(5))
    lines = gpu_lines(frame_of(*rows), View(), Place(120, 8))
    assert [(span.text.strip(), span.tone) for span in lines[1].spans[1:4]] == [
        ("✖ 1 lost", "bad"),
        ("✖ 1 hung", "bad"),
        ("· 3 given back", "info"),
    ]
    marks = {line.plain()[1]: line.spans[2] for line in lines[2:-1]}
    assert (marks["0"].text, marks["0"].tone) == (" · GIVEN BACK ", "info")
    assert (marks["3"].text, marks["3"].tone) == (" ✖ LOST ", "bad")


def test_gpus_that_were_given_back_bring_no_red() -> None:
    lines = gpu_lines(frame_of(*(gpus.lost(at, reason="released", xids={}) for at in range(8))), View(), Place(120, 10))
    assert not [span for line in lines for span in line.spans if span.tone in ("bad", "warn") or "✖" in span.text]
    given_back = gpus.lost(0, reason="released", xids={})
    assert "· GIVEN BACK" in page(given_back)
    (one,) = conditions(given_back)
    assert (one.cause, one.severity) == ("gpu_released", "info")


def test_the_sum_is_of_those_that_answer() -> None:
    rows = (gpus.gpu(0, power_watts=100.0), gpus.gpu(1, power_watts=200.0), gpus.lost(2), gpus.unknown(3))
    summary = gpu_lines(frame_of(*rows), View(), Place(120, 6))[1].plain()
    assert "300 W" in summary
    assert "159 GiB" in summary


# The tree of processes.
def row_of(index: int, *processes: GpuProcess) -> GpuRow:
    return GpuRow(agent="a", host="h", gpu=gpus.gpu(index, processes=processes))


def test_a_process_on_several_gpus_is_one_row_with_the_sum_of_its_memory() -> None:
    rows = process_rows([row_of(index, gpus.process(7, memory_bytes=100, sm_ratio=0.2 * index)) for index in range(4)])
    assert [(row.gpus, row.memory_bytes) for row in rows] == [((0, 1, 2, 3), 400)]
    assert rows[0].sm_ratio == pytest.approx(0.3)


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    (row,) = process_rows([row_of(0, gpus.process(7, memory_bytes=100)), row_of(1, gpus.process(7, memory_bytes=None))])
    assert row.memory_bytes is None


def test_children_stand_below_their_parents() -> None:
    family = [gpus.process(tgid, parent_tgid=parent) for tgid, parent in ((5, 1), (9, 5), (7, 5), (8, 7), (6, None))]
    assert [(row.process.tgid, row.depth) for row in process_rows([row_of(0, *family)])] == [(5, 0), (7, 1), (8, 2), (9, 1), (6, 0)]


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 3)), max_size=30))
def test_every_process_stands_in_the_tree_once_whatever_the_parents(family: list[tuple[int, int, int]]) -> None:
    """Circles too: pids are reused, and NVML has told of processes that do not exist."""
    by_gpu = [row_of(index, *(gpus.process(tgid, parent_tgid=up) for tgid, up, on in family if on == index)) for index in range(4)]
    shown = [row.process.tgid for row in process_rows(by_gpu)]
    assert sorted(shown) == sorted({tgid for tgid, _, _ in family})


def test_orphans_are_marked_by_a_word() -> None:
    text = report(*gpus.troubled(8))
    assert "▲ orphan" in next(line for line in text.splitlines() if line.lstrip().startswith("7310"))


# The page.
def test_the_page_explains_and_advises() -> None:
    text = page(*gpus.troubled(8), at=1)
    for part in ("driver reserves", "share of multiprocessors", "held down by hw_thermal", "slows down at 89°C", "Gen5 x16", "18"):
        assert part in text, part
    assert "3g.40gb" in page(gpus.divided(0))
    assert "XID 79 once: the GPU has fallen off the bus" in page(*gpus.troubled(8), at=3)
    assert "unified" in page(gpus.unified(0))


def test_the_page_after_the_last_gpu_is_that_of_the_first() -> None:
    frame = frame_of(*gpus.healthy(3))
    seen = [GpuPage(frame.gpus[0].key)]
    for _ in range(3):
        seen.append(seen[-1].next_one(frame))
    assert [one.key for one in seen] == [frame.gpus[at].key for at in (0, 1, 2, 0)]
    assert GpuPage(("gone", "gone")).next_one(frame).key == frame.gpus[0].key
    assert "gone" in gpu_page(frame, ("gone", "gone"), 80)[0].plain()


def test_the_filter_finds_gpus_by_engine_name_and_state() -> None:
    frame = frame_of(*gpus.troubled(8))

    def left(words: str) -> list[int]:
        return [row.gpu.index for row in arrange(frame, View(filter=words)).gpus]

    assert left("lost") == [3]
    assert left("blackwell") == [7]
    assert left("smollm2") == [0, 1, 2, 4, 6, 7]
    assert left("orphan") == []
    assert [row.process.tgid for row in arrange(frame, View(filter="orphan")).gpu_processes] == [7_310]
    assert 9_001 not in {row.process.tgid for row in arrange(frame, View(filter="b1946ac9")).gpu_processes}, "it has no pod"
    assert len(arrange(frame, View(filter="b1946ac9")).gpu_processes) == len(frame.gpu_processes) - 1


# The small formats.
@given(st.floats(0, 1e18), st.floats(1, 1e18))
def test_used_of_total_keeps_its_numbers_apart(used: float, total: float) -> None:
    text = fmt.size_of(used, total)
    assert text.count("/") == 1
    assert text.split(" ")[1] in ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    assert used > total or len(text) <= fmt.SIZE_OF_WIDTH


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (fmt.size_of(61.2 * gpus.GIB, 79.65 * gpus.GIB), "61.2/80 GiB"),
        (fmt.size_of(9.75 * gpus.GIB, 9.8 * gpus.GIB), "9.75/9.8 GiB"),
        (fmt.size_of(5.0, 9.0), "5.00/9 B"),
        (fmt.size_of(0.0, 141 * gpus.GIB), "0.00/141 GiB"),
        (fmt.size_of(None, 79.65 * gpus.GIB), "-"),
        (fmt.size_of(gpus.GIB, None), "1.00 GiB"),
        (fmt.watts_of(698.4, 700.0), "698/700 W"),
        (fmt.watts_of(698.4, None), "698 W"),
        (fmt.watts_of(None, 700.0), "-"),
        (fmt.watts(5_432.0), "5.43 kW"),
        (fmt.clock_of(1_755e6, 1_980e6), "1755/1980"),
        (fmt.clock_of(1_755e6, None), "1755"),
        (fmt.clock_of(None, 1_980e6), "-"),
        (fmt.celsius(83.4), "83°C"),
        (fmt.celsius(9.2e18), "-"),
        (fmt.numbers((0, 1, 2, 3, 5, 7, 8)), "0-3, 5, 7, 8"),
    ],
)
def test_formats(written: str, expected: str) -> None:
    assert written == expected


def test_a_long_name_loses_whole_words() -> None:
    one = gpus.gpu(7, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", simulated=True)
    assert short_name(one, 14) == "7 sim RTX PRO "
    assert short_name(gpus.gpu(0, name="NVIDIA A100-SXM4-80GB"), 10) == "0 A100-SX…"


@given(st.lists(st.sampled_from(sorted(map(str, BY_NUMBER))), max_size=8, unique=True), st.integers(1, 60))
def test_the_state_keeps_to_its_width_and_counts_what_it_leaves_out(numbers: list[str], width: int) -> None:
    found = conditions(gpus.gpu(xids=dict.fromkeys(numbers, 1.0)))
    text = "".join(span.text for span in state_spans(found, width))
    assert cell_width(text) == width
    shown = text.count("XID")
    if len(found) > shown and width >= 16:
        assert f"+{len(found) - shown}" in text


def test_the_snapshot_keeps_its_numbers_in_json() -> None:
    """--json passes the agent's own bytes on: `simulated` is in them, as a boolean."""
    told = msgspec.json.decode(msgspec.json.encode(snapshot_of(gpus.gpu(0, simulated=True))))
    assert told["gpus"][0]["simulated"] is True
