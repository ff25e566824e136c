"""How the fault lab judges: from findings at moments to a row of the table."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from aie_agent.analysis.causes import ENGINE_CAUSES, OF_SUBJECTS
from aie_telemetry.api import Evidence, Finding, Severity
from tests.faultlab.__main__ import chosen
from tests.faultlab.judge import Expected, Look, Result, Totals, Verdict, healthy, judge, keys, sentences, totals
from tests.faultlab.lab import FAULTS
from tests.faultlab.report import as_json, from_json, markdown, together

EXPECTED = Expected(("tokenizer_bound",), ("gil_contention",))
NOTHING = Expected((), ())
OF_ANALYSERS = {"memory_leak", "input_drift", "output_drift", "output_collapse", "nan_logits"}


def finding(cause: str, subject: str = "chat", explained_by: str = "") -> Finding:
    text = Evidence(text="3 of 5 (limit 2)", metric="aie_engine_up")
    return Finding(
        cause=cause, subject=subject, severity="warning", since_s=0.0, summary="s", evidence=(text,), explained_by=explained_by
    )


def looks(*moments: tuple[float, tuple[Finding, ...]]) -> list[Look]:
    return [Look(after_s, findings) for after_s, findings in moments]


def test_a_fault_is_named_when_its_cause_stands_unexplained_and_judged_by_what_stands_first_at_the_end() -> None:
    seen = looks(
        (0.0, ()),
        (4.0, (finding("gil_contention"), finding("tokenizer_bound", explained_by="lock_contention"))),
        (6.0, (finding("gil_contention"), finding("tokenizer_bound"))),
        (9.0, (finding("tokenizer_bound"), finding("gil_contention", explained_by="tokenizer_bound"))),
    )
    assert judge(seen, EXPECTED, frozenset()) == Verdict("tokenizer_bound", True, True, 6.0, (), ("gil_contention",))


def test_another_cause_in_front_is_wrong_though_the_fault_is_named() -> None:
    seen = looks((5.0, (finding("disk_stall"), finding("tokenizer_bound"))))
    assert judge(seen, EXPECTED, frozenset()) == Verdict("disk_stall", True, False, 5.0, ("disk_stall",))


def leak(words: str, severity: Severity = "info") -> Finding:
    summary = f"chat: memory may leak ({words}) on cpu: 42 MB/h"
    return Finding(cause="memory_leak", subject="chat", severity=severity, since_s=0.0, summary=summary)


def test_a_leak_of_the_wrong_class_does_not_name_the_fault() -> None:
    expected = Expected(("memory_leak",), (), ("native_heap",), "info")
    wrong, right = leak("outside the allocator"), leak("native heap")
    assert judge(looks((5.0, (wrong,))), expected, frozenset()) == Verdict(
        "memory_leak (outside the allocator, info)", False, False, None, ()
    )
    assert judge(looks((5.0, (wrong,)), (9.0, (right,))), expected, frozenset()) == Verdict(
        "memory_leak (native heap, info)", True, True, 9.0, ()
    )
    late = judge(looks((5.0, (right,)), (9.0, (wrong,))), expected, frozenset())
    assert (late.named, late.top_right) == (True, False), "what it says at the end is what is read"


def test_a_leak_of_the_wrong_severity_does_not_name_the_fault() -> None:
    expected = Expected(("memory_leak",), (), ("native_heap",), "info")
    assert judge(looks((5.0, (leak("native heap", "critical"),))), expected, frozenset()) == Verdict(
        "memory_leak (native heap, critical)", False, False, None, ()
    )


def test_every_leak_of_the_table_has_a_class_and_a_severity() -> None:
    leaks = [fault for fault in FAULTS if "memory_leak" in fault.expected]
    assert leaks
    assert all(fault.classes and fault.severity for fault in leaks)


def test_what_was_found_before_the_fault_is_no_answer_to_it() -> None:
    seen = looks((5.0, (finding("tokenizer_bound"),)))
    assert judge(seen, EXPECTED, keys(seen[0].findings)) == Verdict("", False, False, None, ())
    of_another = keys([finding("tokenizer_bound", "other")])
    assert judge(seen, EXPECTED, of_another).named


def test_nothing_seen_is_not_named() -> None:
    assert judge([], EXPECTED, frozenset()) == Verdict("", False, False, None, ())


def test_of_a_null_fault_nothing_may_be_found() -> None:
    assert judge(looks((0.0, ()), (60.0, ())), NOTHING, frozenset()) == Verdict("", True, True, None, ())
    alarm = looks((0.0, (finding("memory_leak"),)), (60.0, ()))
    assert judge(alarm, NOTHING, frozenset()) == Verdict("", False, False, None, ("memory_leak",))


@pytest.mark.parametrize(
    ("others_cpus", "false_alarms", "ambient"),
    [(1.2, ("python_gc",), ("cpu_starved",)), (0.1, ("cpu_starved", "python_gc"), ())],
)
def test_that_cpu_is_short_is_true_where_others_take_it(
    others_cpus: float, false_alarms: tuple[str, ...], ambient: tuple[str, ...]
) -> None:
    seen = looks((1.0, (finding("cpu_starved"),)), (2.0, (finding("python_gc"), finding("left_over"))))
    found = healthy(seen, frozenset({("left_over", "chat")}), others_cpus)
    assert found.false_alarms == false_alarms
    assert found.ambient == ambient


def test_sentences_are_what_was_said_last() -> None:
    seen = looks((1.0, (finding("a"),)), (2.0, (finding("a", explained_by="b"),)))
    assert sentences(seen, frozenset()) == ("a (explained by b): s: 3 of 5 (limit 2)",)
    assert sentences(seen, keys(seen[0].findings)) == ()


def result(verdict: Verdict | None, *, fast: bool = True, false_alarms: tuple[str, ...] = ()) -> Result:
    return Result("f", "what", ("c",), fast, verdict, 30.0, false_alarms, "" if verdict else "no quota here")


RIGHT = Verdict("c", True, True, 4.0, ())


def test_targets() -> None:
    good = [result(RIGHT), result(RIGHT._replace(seconds=300.0), fast=False)]
    assert totals(good) == Totals(ran=2, named=2, top_right=2, median_s=4.0, false_alarms=0, healthy_s=60.0)
    assert totals(good).reached
    with_one_left_out = totals([*good, result(None)])
    assert with_one_left_out.skipped == 1
    assert not with_one_left_out.reached, "a fault that was not run is not named"
    assert not totals([]).reached
    for bad in (
        result(Verdict("", False, False, None, ())),
        result(Verdict("d", True, False, 4.0, ("d",))),
        result(RIGHT._replace(seconds=50.0)),
        result(RIGHT, false_alarms=("d",)),
    ):
        assert not totals([bad]).reached


def test_one_top_cause_in_twenty_may_be_wrong() -> None:
    wrong = result(Verdict("d", True, False, 4.0, ("d",)))
    assert totals([wrong, *[result(RIGHT)] * 19]).reached
    assert not totals([wrong, *[result(RIGHT)] * 18]).reached


def test_the_table_says_all_of_it() -> None:
    table = markdown([result(RIGHT), result(Verdict("", False, False, None, ("d",)), false_alarms=("e",)), result(None)])
    assert "| f | what | c | right | 4.0 | - | - | - |" in table
    assert "| f | what | not named | wrong | - | - | d | e |" in table
    assert "not run: no quota here" in table
    assert table.endswith(
        "2 faults and 1 not run: 1 named, top cause right in 1, median of the fast ones 4.0 s; "
        "1 false alarms in 1.5 healthy minutes: below the targets"
    )


def test_results_are_read_as_they_were_written() -> None:
    results = [result(RIGHT), result(None, false_alarms=("e",))]
    assert from_json(as_json(results)) == results
    for bad in (b"{}", b'{"results": [{}]}', b"[1]", b"["):
        with pytest.raises(ValueError, match="no results of the fault lab"):
            from_json(bad)


def test_every_row_names_causes_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {each.__name__ for each in ENGINE_CAUSES} | OF_SUBJECTS | OF_ANALYSERS
    named = {cause for fault in FAULTS for cause in (*fault.expected, *fault.beside)}
    assert named <= known
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "faultlab" / "inside")
    assert importlib.import_module("breakage").FAULTS


def test_a_row_has_one_right_cause() -> None:
    assert not {fault.name for fault in FAULTS if len(fault.expected) > 1}


def test_what_need_not_be_gone_before_the_next_breaks_something_of_its_own() -> None:
    causes = [cause for fault in FAULTS if fault.apart for cause in fault.expected]
    assert causes
    shared = {cause for cause in causes if causes.count(cause) > 1}
    assert shared <= {"gpu_lost"}, "by xid-79 on GPU 4, by gpu-lost on GPU 5"
    assert not [fault.name for fault in FAULTS if fault.apart and (fault.renews or fault.tells_on)]


def test_of_a_fault_that_was_run_twice_the_last_result_counts() -> None:
    first, second, other = result(None), result(RIGHT), result(RIGHT)._replace(fault="g")
    assert together([[first, other], [second]]) == [second, other]


def test_faults_are_chosen_by_name_or_setup() -> None:
    assert [each.name for each in chosen(("killed,stopped",))] == ["stopped", "killed"]
    assert {each.setup.name for each in chosen(("gpus",))} == {"gpus"}
    assert len(chosen(())) == len(FAULTS)
    assert {each.setup.name for each in chosen(("stopped", "thermal"), setup="gpus")} == {"gpus"}
    with pytest.raises(ValueError, match="no fault is called nonesuch"):
        chosen(("nonesuch",))
