"""How the fault lab judges: from findings at moments to a row of the table."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from aie_agent.analysis.causes import ENGINE_CAUSES, OF_SUBJECTS
from aie_agent.analysis.leaks.lines import IN_WORDS
from aie_telemetry.api import Evidence, Finding, Severity
from tests.faultlab.__main__ import chosen
from tests.faultlab.host_load import Load
from tests.faultlab.judge import (
    Answer,
    Expected,
    Look,
    Result,
    Said,
    Totals,
    Verdict,
    ambient,
    excused,
    healthy,
    judge,
    keys,
    sentences,
    totals,
    unanswered,
)
from tests.faultlab.lab import FAULTS
from tests.faultlab.report import as_json, from_json, markdown, together

EXPECTED = Expected(Answer("tokenizer_bound"), ("gil_contention",))
NOTHING = Expected(None)
OF_ANALYSERS = {"memory_leak", "input_drift", "output_drift", "output_collapse", "nan_logits"}
GPU = re.compile(r"gpu\d+")
QUIET = Load(others_cpus=0.1)
BUSY = Load(others_cpus=1.2)
STOLEN = Load(others_cpus=0.25, stolen_share=0.15)
"""Where others on the host take next to nothing, and others on the same metal a seventh."""


def finding(
    cause: str,
    subject: str = "engine",
    explained_by: str = "",
    severity: Severity = "warning",
    explained_by_subject: str = "",
    summary: str = "s",
    evidence: Sequence[str] = ("3 of 5 (limit 2)",),
) -> Finding:
    texts = tuple(Evidence(text=text, metric="aie_engine_up") for text in evidence)
    return Finding(
        cause=cause,
        subject=subject,
        severity=severity,
        since_s=0.0,
        summary=summary,
        evidence=texts,
        explained_by=explained_by,
        explained_by_subject=explained_by_subject,
    )


def said(cause: str, subject: str = "engine", severity: Severity = "warning") -> Said:
    return Said(cause, subject, severity)


def looks(*moments: tuple[float, tuple[Finding, ...]], load: Load = QUIET) -> list[Look]:
    return [Look(after_s, findings, load) for after_s, findings in moments]


STEAL = finding("cpu_steal", "host")


def row(name: str) -> Expected:
    (fault,) = chosen((name,))
    return fault.expected


def test_a_fault_is_named_when_its_cause_stands_unexplained_and_judged_by_what_stands_first_at_the_end() -> None:
    seen = looks(
        (0.0, ()),
        (4.0, (finding("gil_contention"), finding("tokenizer_bound", explained_by="lock_contention"))),
        (6.0, (finding("gil_contention"), finding("tokenizer_bound"))),
        (9.0, (finding("tokenizer_bound"), finding("gil_contention", explained_by="tokenizer_bound"))),
    )
    assert judge(seen, EXPECTED, frozenset()) == Verdict(said("tokenizer_bound"), True, True, 6.0, beside=(said("gil_contention"),))


def test_another_cause_in_front_is_wrong_though_the_fault_is_named() -> None:
    seen = looks((5.0, (finding("disk_stall"), finding("tokenizer_bound"))))
    assert judge(seen, EXPECTED, frozenset()) == Verdict(
        *(said("disk_stall"), True, False, 5.0),
        others=(said("disk_stall"),),
        amiss=("cause: disk_stall, not tokenizer_bound",),
    )


HOT = finding("gpu_thermal", "gpu0", evidence=("the driver gives hw_thermal as the reason for 11 s (limit 5 s)",))
LOCK = "lock 0x7f9f0c007ca0{} of process 27239: 1.51 threads waited on average, 21 waits a second"
OURS = ", breakage.py:112 (global_lock.<locals>.locked.<locals>.encode)"
LOCKED = finding("lock_contention", evidence=("its threads waited", LOCK.format(OURS)))
BLAMES = "engine e: an allocation of 100 MiB failed on cuda0, {}"
FULL = finding("cuda_oom", severity="critical", summary=BLAMES.format("the engine itself holds it"))
LEAK = "engine e: memory may leak ({}) on cpu: 42 MB/h"
LEAKS = finding("memory_leak", severity="info", summary=LEAK.format("native heap"))
RIGHT_ANSWERS = {"thermal": HOT, "global-lock": LOCKED, "cuda-oom": FULL, "tensors-kept": LEAKS}


@pytest.mark.parametrize(("fault", "right"), RIGHT_ANSWERS.items())
def test_an_answer_is_right_by_cause_subject_severity_and_words(fault: str, right: Finding) -> None:
    expected = said(right.cause, right.subject, right.severity)
    assert judge(looks((5.0, (right,))), row(fault), frozenset()) == Verdict(expected, True, True, 5.0)


@pytest.mark.parametrize(
    ("fault", "wrong", "amiss"),
    [
        ("thermal", replace(HOT, severity="info"), "severity: info, not warning"),
        ("thermal", replace(HOT, evidence=()), "it does not say /gives hw_thermal as the reason/"),
        ("killed", finding("engine_down", severity="info"), "severity: info, not critical"),
        ("cuda-oom", replace(FULL, severity="warning"), "severity: warning, not critical"),
        ("cuda-oom", replace(FULL, summary=BLAMES.format("others hold it")), "it does not say "),
        ("cuda-oom", replace(FULL, summary=BLAMES.format("it is not known who holds it")), "it does not say "),
        ("global-lock", finding("lock_contention", evidence=(LOCK.format(""),)), "it does not say "),
        ("global-lock", finding("lock_contention", evidence=(LOCK.format(", queue.py:171 (get)"),)), "it does not say "),
        (
            "global-lock",
            finding("lock_contention", evidence=(LOCK.format(", queue.py:171 (get)"), LOCK.format(OURS))),
            "it says: lock 0x7f9f0c007ca0, queue.py:171 (get) of process 27239: ",
        ),
        ("tensors-kept", replace(LEAKS, summary=LEAK.format("outside the allocator")), "it does not say "),
        ("tensors-kept", replace(LEAKS, severity="critical"), "severity: critical, not info"),
        ("gpu-lost", finding("gpu_lost", "gpu5", severity="info"), "severity: info, not critical"),
    ],
)
def test_the_right_cause_told_wrong_does_not_name_the_fault(fault: str, wrong: Finding, amiss: str) -> None:
    verdict = judge(looks((5.0, (wrong,))), row(fault), frozenset())
    assert (verdict.named, verdict.top_right, verdict.seconds) == (False, False, None)
    assert verdict.others == (), "it is no other trouble"
    assert any(each.startswith(amiss) for each in verdict.amiss), verdict.amiss


def test_the_right_cause_of_another_subject_is_a_false_alarm() -> None:
    of_another = replace(HOT, subject="gpu5")
    assert judge(looks((5.0, (of_another,))), row("thermal"), frozenset()) == Verdict(
        *(said("gpu_thermal", "gpu5"), False, False, None),
        others=(said("gpu_thermal", "gpu5"),),
        amiss=("subject: gpu5, not gpu0",),
    )
    both = judge(looks((5.0, (HOT, of_another))), row("thermal"), frozenset())
    assert both.top_right
    assert both.others == (said("gpu_thermal", "gpu5"),)


def test_what_may_stand_beside_an_answer_does_so_where_the_answer_is_or_on_the_host() -> None:
    narrow = finding("gpu_link_width", "gpu3", evidence=("it has 8 lanes of 16",))
    of_same, of_another = finding("pcie_bound", "gpu3"), finding("pcie_bound", "gpu7")
    verdict = judge(looks((5.0, (narrow, of_same, of_another))), row("link-narrow"), frozenset())
    assert verdict.beside == (said("pcie_bound", "gpu3"),)
    assert verdict.others == (said("pcie_bound", "gpu7"),)
    on_host = judge(looks((5.0, (finding("page_faults"), finding("disk_stall", "host")))), row("mapped-weights"), frozenset())
    assert on_host.beside == (said("disk_stall", "host"),)


@pytest.mark.parametrize(
    ("fault", "untrue"),
    [
        pytest.param("cpu-quota", finding("client_flood"), id="no more come than before"),
        pytest.param("thermal", finding("gpu_slowed", "gpu0"), id="it is heat"),
        pytest.param("power-brake", finding("gpu_slowed", "gpu1"), id="it is the brake"),
        pytest.param("xid-79", finding("gpu_xid_gpu", "gpu4"), id="79 is of the link"),
        pytest.param("xid-48", finding("gpu_ecc", "gpu0"), id="nothing is counted"),
    ],
)
def test_what_a_fault_does_not_make_true_may_not_stand_beside_it(fault: str, untrue: Finding) -> None:
    assert judge(looks((5.0, (untrue,))), row(fault), frozenset()).others == (said(untrue.cause, untrue.subject),)


def test_false_alarms_beside_thirty_faults_that_were_named_keep_the_lab_below_its_targets() -> None:
    beside = (finding("engine_hung", "z", severity="critical"), finding("gpu_lost", "gpu7", severity="critical"))
    verdict = judge(looks((1.0, (HOT, *beside))), row("thermal"), frozenset())
    assert verdict.named
    assert verdict.top_right
    total = totals([Result("f", "what", row("thermal").answer, True, verdict)] * 30)
    assert (total.named, total.top_right, total.false_alarms, total.others) == (30, 30, 0, 60)
    assert not total.reached


def test_what_it_says_at_the_end_is_what_is_read() -> None:
    wrong = replace(LEAKS, summary=LEAK.format("outside the allocator"))
    at_last = judge(looks((5.0, (wrong,)), (9.0, (LEAKS,))), row("tensors-kept"), frozenset())
    assert at_last == Verdict(said("memory_leak", severity="info"), True, True, 9.0)
    late = judge(looks((5.0, (LEAKS,)), (9.0, (wrong,))), row("tensors-kept"), frozenset())
    assert (late.named, late.top_right) == (True, False)
    gone = judge(looks((5.0, (LEAKS,)), (9.0, ())), row("tensors-kept"), frozenset())
    assert (gone.named_as, gone.top_right) == (None, False)


def test_every_leak_of_the_table_has_a_class() -> None:
    leaks = [fault.answer for fault in FAULTS if fault.answer is not None and fault.answer.cause == "memory_leak"]
    assert leaks
    assert all(any(re.search(answer.says, f"({words})") for words in IN_WORDS.values()) and answer.says for answer in leaks)


def test_every_answer_of_the_table_is_about_the_engine_or_about_one_gpu() -> None:
    answers = [fault.answer for fault in FAULTS if fault.answer is not None]
    wrong = [each for each in answers if each.cause.startswith(("gpu_", "pcie_")) != bool(GPU.fullmatch(each.subject))]
    assert not wrong
    assert {each.subject for each in answers if not GPU.fullmatch(each.subject)} == {"engine"}
    for answer in answers:
        re.compile(answer.says)
        re.compile(answer.never)


def test_what_was_found_before_the_fault_is_no_answer_to_it() -> None:
    seen = looks((5.0, (finding("tokenizer_bound"),)))
    assert judge(seen, EXPECTED, keys(seen[0].findings)) == Verdict(None, False, False)
    of_another = keys([finding("tokenizer_bound", "other")])
    assert judge(seen, EXPECTED, of_another).named


def test_nothing_seen_is_not_named() -> None:
    assert judge([], EXPECTED, frozenset()) == Verdict(None, False, False)


def test_of_a_null_fault_nothing_may_be_found() -> None:
    assert judge(looks((0.0, ()), (60.0, ())), NOTHING, frozenset()) == Verdict(None, True, True)
    alarm = looks((0.0, (finding("memory_leak"),)), (60.0, ()))
    assert judge(alarm, NOTHING, frozenset()) == Verdict(None, False, False, others=(said("memory_leak"),))


def test_what_may_be_suspected_must_be_information_and_taken_back() -> None:
    filling = Expected(None, suspected=("memory_leak",))
    suspicion, nothing = finding("memory_leak", severity="info"), (60.0, ())
    verdict = judge(looks((0.0, (suspicion,)), nothing), filling, frozenset())
    assert (verdict.named, verdict.others, verdict.beside) == (True, (), (said("memory_leak", severity="info"),))
    assert not judge(looks((0.0, (suspicion,))), filling, frozenset()).named, "it stays"
    assert not judge(looks((0.0, (finding("memory_leak"),)), nothing), filling, frozenset()).named, "a warning"
    other = finding("memory_retention", severity="info")
    assert judge(looks((0.0, (other,)), nothing), filling, frozenset()).others == (said("memory_retention", severity="info"),)


@pytest.mark.parametrize(
    ("load", "false_alarms", "true"),
    [(BUSY, ("python_gc",), [("cpu_starved", "engine")]), (QUIET, ("cpu_starved", "python_gc"), [])],
)
def test_that_cpu_is_short_is_true_where_others_take_it(
    load: Load, false_alarms: tuple[str, ...], true: list[tuple[str, str]]
) -> None:
    seen = looks((1.0, (finding("cpu_starved"),)), (2.0, (finding("python_gc"), finding("left_over"))), load=load)
    found = healthy(seen, frozenset({("left_over", "engine")}))
    assert found.false_alarms == tuple(map(said, false_alarms))
    assert found.ambient == frozenset(true)


def test_that_cpu_is_short_is_true_of_ours_and_of_the_host_alone() -> None:
    assert ambient(Load(1.2, 0.15)) == keys([finding("cpu_starved"), STEAL])
    assert not ambient(QUIET)
    assert healthy(looks((1.0, (finding("cpu_starved", "other"),)), load=BUSY), frozenset()).false_alarms


def test_that_cpus_are_stolen_is_true_where_the_hypervisor_takes_them_whatever_processes_take() -> None:
    assert healthy(looks((1.0, (STEAL,)), load=BUSY), frozenset()).false_alarms == (said("cpu_steal", "host"),)
    assert healthy(looks((1.0, (STEAL,)), load=STOLEN), frozenset()) == ((), keys([STEAL]))
    beside = judge(looks((5.0, (STEAL, finding("tokenizer_bound"))), load=STOLEN), EXPECTED, frozenset())
    assert beside == Verdict(said("tokenizer_bound"), True, True, 5.0)
    alone = judge(looks((5.0, (STEAL, finding("tokenizer_bound"))), load=BUSY), EXPECTED, frozenset())
    assert alone.others == (said("cpu_steal", "host"),)


def test_others_that_take_cpu_excuse_what_is_said_then_and_not_minutes_later() -> None:
    starved = (finding("cpu_starved"),)
    later = [*looks((5.0, starved), load=BUSY), *looks((200.0, starved), load=QUIET)]
    assert judge(later, NOTHING, frozenset()).others == (said("cpu_starved"),)
    assert judge(later[:1], NOTHING, frozenset()).named
    assert excused(later) == keys(starved)


def test_an_answer_that_stolen_cpus_explain_is_one_where_they_are_stolen() -> None:
    starved = finding("cpu_starved", explained_by="cpu_steal", explained_by_subject="host")
    neighbour = row("cpu-neighbour")
    verdict = judge(looks((5.0, (STEAL, starved)), load=STOLEN), neighbour, frozenset())
    assert verdict == Verdict(said("cpu_starved"), True, True, 5.0)
    nothing_stolen = judge(looks((5.0, (STEAL, starved)), load=BUSY), neighbour, frozenset())
    assert (nothing_stolen.named, nothing_stolen.others) == (False, (said("cpu_steal", "host"),))
    before = healthy(looks((5.0, (STEAL, starved)), load=STOLEN), frozenset())
    assert before == ((), keys([STEAL, starved])), "what is so already cannot be done"
    explained = finding("cpu_starved", explained_by="python_gc", explained_by_subject="engine")
    assert not judge(looks((5.0, (explained,)), load=STOLEN), neighbour, frozenset()).named


def test_an_agent_that_falls_silent_has_named_nothing_and_what_it_said_wrong_counts() -> None:
    seen = looks((5.0, (HOT, finding("gpu_lost", "gpu7", severity="critical"))))
    verdict = unanswered(judge(seen, row("thermal"), frozenset()))
    others = (said("gpu_lost", "gpu7", "critical"),)
    assert verdict == Verdict(None, False, False, None, others, amiss=("the agent does not answer",))
    assert not unanswered(judge(looks((5.0, ())), NOTHING, frozenset())).named


def test_sentences_are_what_was_said_last() -> None:
    seen = looks((1.0, (finding("a"),)), (2.0, (finding("a", explained_by="b"),)))
    assert sentences(seen, frozenset()) == ("a (explained by b): s: 3 of 5 (limit 2)",)
    assert sentences(seen, keys(seen[0].findings)) == ()


C = said("c")
D = said("d", "gpu3", "critical")
RIGHT = Verdict(C, True, True, 4.0)
NOT_NAMED = Verdict(None, False, False)
BELOW = Verdict(said("b"), True, False, 4.0, beside=(said("b"),), amiss=("cause: b, not c",))
"""What may stand beside it stands before it."""


def result(verdict: Verdict | None, *, fast: bool = True, false_alarms: tuple[Said, ...] = ()) -> Result:
    return Result("f", "what", Answer("c"), fast, verdict, 30.0, false_alarms, "" if verdict else "no quota here")


def test_targets() -> None:
    good = [result(RIGHT), result(replace(RIGHT, seconds=300.0), fast=False)]
    assert totals(good) == Totals(ran=2, named=2, top_right=2, median_s=4.0, false_alarms=0, healthy_s=60.0)
    assert totals(good).reached
    with_one_left_out = totals([*good, result(None)])
    assert with_one_left_out.skipped == 1
    assert not with_one_left_out.reached, "a fault that was not run is not named"
    assert not totals([]).reached
    for bad in (
        result(NOT_NAMED),
        result(BELOW),
        result(replace(RIGHT, seconds=50.0)),
        result(RIGHT, false_alarms=(D,)),
        result(replace(RIGHT, others=(D,))),
    ):
        assert not totals([bad]).reached


def test_one_top_cause_in_twenty_may_be_wrong() -> None:
    assert totals([result(BELOW), *[result(RIGHT)] * 19]).reached
    assert not totals([result(BELOW), *[result(RIGHT)] * 18]).reached


def test_the_table_says_all_of_it() -> None:
    missed = result(replace(NOT_NAMED, others=(D,)), false_alarms=(said("e"),))
    table = markdown([result(RIGHT), missed, result(BELOW), result(None)])
    assert "| f | what | c (warning) | right | 4.0 | - | - | - |" in table
    assert "| f | what | not named | wrong | - | - | d (gpu3, critical) | e (warning) |" in table
    assert "| f | what | b (warning) | wrong; cause: b, not c | 4.0 | b (warning) | - | - |" in table
    assert "not run: no quota here" in table
    assert table.endswith(
        "3 faults and 1 not run: 2 named, top cause right in 1, median of the fast ones 4.0 s; "
        "1 false alarms in 2.0 healthy minutes, 1 beside faults: below the targets"
    )


def test_results_are_read_as_they_were_written() -> None:
    results = [result(RIGHT), result(BELOW), result(None, false_alarms=(D,)), replace(result(RIGHT), expected=None)]
    written = as_json(results)
    assert from_json(written) == results
    assert b'"subject": "gpu3"' in written
    assert b'"severity": "critical"' in written
    for bad in (b"{}", b'{"results": [{}]}', b"[1]", b"["):
        with pytest.raises(ValueError, match="no results of the fault lab"):
            from_json(bad)


def test_every_row_names_causes_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {each.__name__ for each in ENGINE_CAUSES} | OF_SUBJECTS | OF_ANALYSERS
    named = {cause for fault in FAULTS for cause in (*(cause for cause, _ in fault.keys), *fault.beside, *fault.suspected)}
    assert named <= known
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "faultlab" / "inside")
    assert importlib.import_module("breakage").FAULTS


def test_what_need_not_be_gone_before_the_next_breaks_something_of_its_own() -> None:
    broken = [key for fault in FAULTS if fault.apart for key in fault.keys]
    assert broken
    assert len(set(broken)) == len(broken)
    assert not [fault.name for fault in FAULTS if fault.apart and (fault.renews or fault.tells_on)]


def test_of_a_fault_that_was_run_twice_the_last_result_counts() -> None:
    first, second, other = result(None), result(RIGHT), replace(result(RIGHT), fault="g")
    assert together([[first, other], [second]]) == [second, other]


def test_faults_are_chosen_by_name_or_setup() -> None:
    assert [each.name for each in chosen(("killed,stopped",))] == ["stopped", "killed"]
    assert {each.setup.name for each in chosen(("gpus",))} == {"gpus"}
    assert len(chosen(())) == len(FAULTS)
    assert {each.setup.name for each in chosen(("stopped", "thermal"), setup="gpus")} == {"gpus"}
    with pytest.raises(ValueError, match="no fault is called nonesuch"):
        chosen(("nonesuch",))
