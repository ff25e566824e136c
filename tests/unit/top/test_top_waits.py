"""What is said of waits: bars that add up, every part told apart without colour, and "not seen" never taken for "nothing"."""

from __future__ import annotations

import datetime
import re
import string

import agent_api as fake
import agent_waits
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_ebpf.probes import SETS
from aie_telemetry.api import Coverage, CudaUse, Engine, Lock, Waits
from aie_top import cuda_words
from aie_top.columns.waits import PART_COLUMNS
from aie_top.coverage import _SEES, not_seen, sees
from aie_top.layout import plan
from aie_top.model import build_frame
from aie_top.report import render, report_lines
from aie_top.rows import AgentState, Frame, View
from aie_top.text import lines_to_ascii
from aie_top.views.cuda import cuda_lines
from aie_top.views.pages import engine_page
from aie_top.views.tables import Place
from aie_top.views.waits import wait_lines, waits_page
from aie_top.waits import PARTS, are_probed, bar, top_of, total

LETTERS = {part.field: part.letter for part in PARTS}
levels = st.none() | st.floats(0.0, 500.0) | st.sampled_from([0.001, 0.05, 1.0])
waits_drawn = st.builds(Waits, **dict.fromkeys(Waits.__struct_fields__, levels))


def frame_of(*engines: Engine) -> Frame:
    state = AgentState(label="http://here:9465", phase="live", snapshot=fake.snapshot(engines=engines), received_s=0.0)
    return build_frame([state], 0.0, datetime.UTC)


def page(engine: Engine, width: int = 100) -> str:
    frame = frame_of(engine)
    return "\n".join(one.plain() for one in engine_page(frame, frame.engines[0].key, width))


def words(text: str) -> str:
    return " ".join(text.split())


def report(*engines: Engine) -> str:
    return render(report_lines(frame_of(*engines), View()), colour=False)


@settings(max_examples=300, deadline=None)
@given(waits_drawn, st.integers(1, 200), st.floats(1.0, 4.0))
def test_a_bar_is_as_long_as_its_sum_and_each_part_within_a_column(waits: Waits, width: int, more: float) -> None:
    top = top_of([total(waits) * more])
    spans = bar(waits, top, width)
    assert sum(len(span.text) for span in spans) == width
    drawn = {span.text[0]: len(span.text) for span in spans if span.tone != "track"}
    assert abs(sum(drawn.values()) - total(waits) / top * width) <= 0.5 + 1e-6
    for field, letter in LETTERS.items():
        assert abs(drawn.get(letter, 0) - (getattr(waits, field) or 0.0) / top * width) < 1.0 + 1e-6


@given(st.lists(st.floats(0.0, 1e6), max_size=9))
def test_the_scale_holds_every_bar_and_the_longest_fills_half(totals: list[float]) -> None:
    top, most = top_of(totals), max(totals, default=0.0)
    assert top >= most
    assert top == 1.0 or most > top / 2
    assert top_of([*totals, most * 0.999]) == top, "a little less changes no scale"


def test_what_sleeps_or_waits_for_work_is_not_in_the_bar() -> None:
    resting = Waits(running=0.0, run_queue=0.0, lock=0.0, gil=0.0, disk=0.0, page_fault=0.0, gpu_sync=0.0, idle=64.0, sleep=12.0)
    assert total(resting) == 0.0
    assert {span.tone for span in bar(resting, 1.0, 40)} == {"track"}


def test_every_wait_of_the_api_is_in_the_bar_or_rests() -> None:
    assert {part.field for part in PARTS} | {"idle", "sleep"} == set(Waits.__struct_fields__)


def test_every_part_has_a_letter_and_a_colour_of_its_own_and_titles_are_the_legend() -> None:
    assert len({part.letter for part in PARTS}) == len({part.tone for part in PARTS}) == len(PARTS)
    assert [column.title[0] for column in PART_COLUMNS] == [part.letter for part in PARTS]


def test_without_colour_and_in_ascii_the_parts_are_still_told_apart() -> None:
    engine = agent_waits.lock_fight(fake.engine("embedder"))
    (shown,) = [one.plain() for one in lines_to_ascii(wait_lines(frame_of(engine), View(), Place(120, 2)))][1:]
    drawn = shown.split()[8]
    assert drawn.strip("RQLGDF#.") == ""
    assert [letter for letter in drawn if letter in string.ascii_uppercase] == list("RQLGDF")


# The panel: only where probes see something.


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_the_overview_has_a_line_for_each_engine_where_probes_see_one(size: tuple[int, int]) -> None:
    frame = build_frame([AgentState(label="x", phase="live", snapshot=agent_waits.fights(), received_s=0.0)], 0.0)
    assert plan(frame, *size).panels["waits"] == 5


def test_without_probes_there_is_no_panel_but_the_page_says_why() -> None:
    blind = agent_waits.blind(fake.engine("llama"))
    assert not are_probed(blind.waits)
    frame = frame_of(blind, fake.engine("old"))
    assert plan(frame, 120, 40).panels["waits"] == 0
    assert "WAITS" not in report(blind)
    assert "not seen waits, locks and CUDA (privilege: not held by user 1000; run as root" in words(page(blind))
    assert "not held" in " ".join(one.plain() for one in waits_page(frame, 120))


def test_an_agent_that_knows_nothing_of_waits_leaves_the_page_as_it_was() -> None:
    assert "WAITS" not in page(fake.engine("old"))


def test_beside_one_that_is_seen_one_that_is_not_says_so_in_its_line() -> None:
    frame = frame_of(agent_waits.at_work(fake.engine("a")), agent_waits.blind(fake.engine("b")), fake.engine("c"))
    seen, blind, older = (one.plain() for one in wait_lines(frame, View(), Place(120, 4))[1:])
    assert "not seen: waits, locks and CUDA (privilege" in blind
    assert "not seen" in older
    assert "not seen" not in seen


# Locks.


def test_locks_are_listed_worst_first_with_the_line_where_threads_wait() -> None:
    shown = page(agent_waits.lock_fight(fake.engine("embedder")), 120)
    table = shown[shown.index("LOCKS") :].splitlines()
    assert table[1].split()[:6] == ["lock", "2.72", "3", "19.3", "204", "ms"]
    assert "prefix_cache.py:204 (lookup)" in table[1]
    assert "0x7ffd10a3c0d0" in table[1]
    assert [row.split()[0] for row in table[1:4]] == ["lock", "GIL", "lock"]


def test_no_lock_is_said_only_where_locks_are_seen() -> None:
    assert "no lock is fought for" in page(agent_waits.at_work(fake.engine("a")))
    unseen = page(agent_waits.blind(fake.engine("a")))
    assert "no lock" not in unseen
    assert "not seen" in unseen[unseen.index("LOCKS") :].splitlines()[1]


def test_the_report_has_bars_locks_and_what_is_not_seen() -> None:
    text = report(agent_waits.gil_fight(fake.engine("smollm2")), agent_waits.blind(fake.engine("b")))
    assert "tokenizer.py:118 (encode)" in text
    assert re.search("R█+G█+", text)
    assert "b: waits, locks and CUDA (privilege" in words(text)
    quiet = report(agent_waits.at_work(fake.engine("a")))
    assert "no lock is fought for" in quiet
    assert "as far as is seen" not in quiet
    assert "as far as is seen" in report(agent_waits.at_work(fake.engine("a")), agent_waits.blind(fake.engine("b")))


# Coverage.


def test_sets_with_one_reason_are_named_together_and_windows_are_not_missed() -> None:
    unseen = agent_waits.unseen("no privilege", *agent_waits.CUDA_SETS)
    assert (
        not_seen(fake.engine("a", coverage=(*unseen, *agent_waits.WINDOWS)))
        == "CUDA memory, CUDA waits, CUDA copies (no privilege)"
    )
    assert not_seen(fake.engine("a", coverage=agent_waits.seen("locks", "sched"))) == ""


def test_of_what_an_engine_has_nothing_nothing_is_missed() -> None:
    """An engine on the CPU has no CUDA to see, and no synchronisation of it to wait for."""
    assert agent_waits.at_work(fake.engine("a")).waits.gpu_sync is None
    assert not_seen(agent_waits.at_work(fake.engine("a"))) == ""


def test_numbers_that_are_missing_without_a_word_are_said_to_be() -> None:
    assert "lock, GIL" in not_seen(fake.engine("a", waits=Waits(running=1.0, run_queue=0.0)))
    assert not_seen(fake.engine("a")) == ""


def test_a_driver_without_any_symbol_does_not_fill_the_page() -> None:
    missing = tuple(f"cuCall{at}: no such symbol" for at in range(12))
    text = not_seen(fake.engine("a", coverage=(Coverage(set="cuda_memory", state="part", missing=missing),)))
    assert text == "part of CUDA memory (cuCall0: no such symbol; cuCall1: no such symbol; cuCall2: no such symbol; and 9 more)"


def test_every_set_of_probes_has_a_name_in_words() -> None:
    assert {one.name for one in SETS} <= set(_SEES)


def test_a_set_that_is_off_sees_nothing() -> None:
    engine = fake.engine("a", coverage=(*agent_waits.seen("locks"), *agent_waits.unseen("why", "sched")))
    assert sees(engine, "locks")
    assert not sees(engine, "locks", "sched")
    assert not sees(fake.engine("b"), "locks")


# CUDA.


def test_cuda_memory_by_kind_and_by_who_asked_adds_up() -> None:
    text = "\n".join(one.plain() for one in cuda_lines(agent_waits.cuda_use(), 100))
    assert "67.1 GiB" in text
    assert "libtorch_cuda.so" in text
    assert "3 × 2 out of memory" in text
    assert "1 × 712 host memory already registered" in text
    assert "within a device" in text
    kinds = text[text.index("BY KIND") : text.index("BY WHO")].splitlines()[1:-1]
    shares = [float(one.split()[-1].rstrip("%")) for one in kinds]
    assert sum(shares) == pytest.approx(100.0, abs=0.3)
    largest = text[text.index("BY SIZE") :].splitlines()[1]
    assert float(largest.split()[-1].rstrip("%")) == pytest.approx(100 * 52.0 / 67.0625, abs=0.06), "of all, not of those shown"


def test_more_modules_than_fit_are_one_line() -> None:
    use = CudaUse(by_module={f"lib{at:02}.so": float(100 - at) for at in range(20)})
    text = [one.plain() for one in cuda_lines(use, 80)]
    assert sum("lib" in one for one in text) == 8
    assert any(one.split()[:2] == ["12", "more"] for one in text)


def test_an_engine_without_cuda_has_no_cuda_on_its_page() -> None:
    assert "AS THE DRIVER WAS ASKED" not in page(agent_waits.at_work(fake.engine("a")))
    assert "not freed" not in "".join(one.plain() for one in cuda_lines(CudaUse(contexts=1), 80)), "not known is not 0"


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("cuMemAlloc:2", ("cuMemAlloc", "2 out of memory")),
        ("cuMemAlloc:77", ("cuMemAlloc", "77")),
        ("odd", ("odd", "")),
        ("a:b:x", ("a:b", "x")),
        (":", (":", "")),
        ("", ("", "")),
    ],
)
def test_refused_calls_in_words(key: str, told: tuple[str, str]) -> None:
    assert cuda_words.failure(key) == told


def test_a_lock_that_is_not_python_s_is_told_by_its_native_code() -> None:
    native = ("4 threads wait in pthread_mutex_lock, called by libfoo.so (work+0x1c)",)
    rates = {"waiting_threads": 4.0, "waits_per_second": 9.0, "longest_seconds": 1.0}
    lock = Lock(tgid=7, address="0x1", kind="lock", waiters=4, native=native, **rates)
    seen = agent_waits.seen("locks")
    text = page(fake.engine("a", locks=(lock,), coverage=seen), 160)
    assert "pthread_mutex_lock, called by libfoo.so (work+0x1c)" in text
    python = msgspec.structs.replace(lock, line="tokenizer.py:4")
    assert "tokenizer.py:4" in page(fake.engine("a", locks=(python,), coverage=seen), 160)
