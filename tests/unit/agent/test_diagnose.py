"""What becomes of findings: steadied, explained, with what changed before, and remembered across restarts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from aie_agent.analysis.causes import EXPLAINS
from aie_agent.analysis.changes import SETTLED_S, Changes
from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.explain import explain
from aie_agent.analysis.findings import Limits, ProcessState, View
from aie_agent.samples import Batch, Point
from aie_agent.state import StateFile
from aie_agent.store import Store
from aie_telemetry import api
from aie_telemetry.catalogue import Kind

NOW = 1_700_000_000.0


def _finding(cause: str, subject: str = "chat", since_s: float = NOW, severity: api.Severity = "warning") -> api.Finding:
    return api.Finding(cause=cause, subject=subject, severity=severity, since_s=since_s, summary=f"{cause} of {subject}")


def _same(cause: str, effect: str) -> bool:
    return cause == effect


def _view(tgid: int = 10, store: Store | None = None, gpus: Sequence[api.Gpu] = (), driver: str = "1") -> View:
    return View(
        store=store or Store(max_series=100, retention_s=300.0),
        engines=["chat"],
        state=lambda _: "up",
        processes=lambda _: [ProcessState(tgid, "S", NOW, None)],
        unanswered_since_s=lambda _: None,
        limits=Limits(),
        gpus=lambda: gpus,
        drivers=lambda: {"the NVIDIA driver": driver},
    )


def test_a_cause_explains_only_what_has_to_do_with_it() -> None:
    table = {"throttle": frozenset({"slow"})}
    told = explain([_finding("throttle", "a"), _finding("slow", "a"), _finding("slow", "b"), _finding("leak", "a")], table, _same)
    assert [(each.cause, each.subject, each.explained_by) for each in told] == [
        ("throttle", "a", ""), ("slow", "a", "throttle"), ("slow", "b", ""), ("leak", "a", ""),
    ]  # fmt: skip


def test_what_explains_is_named_with_its_subject() -> None:
    table = {"throttle": frozenset({"slow"}), "slow": frozenset({"queue"})}
    gpus = [_finding("throttle", "gpu0"), _finding("throttle", "gpu1")]
    on = {("gpu1", "a"), ("a", "a")}
    told = explain([*gpus, _finding("slow", "a"), _finding("queue", "a")], table, lambda cause, effect: (cause, effect) in on)
    assert [(each.explained_by, each.explained_by_subject) for each in told] == [
        ("", ""),
        ("", ""),
        ("throttle", "gpu1"),
        ("slow", "a"),
    ]


def test_what_is_graver_than_what_explains_it_is_told_by_itself() -> None:
    table = {"xid": frozenset({"down"})}
    told = explain([_finding("down", severity="critical"), _finding("xid", severity="warning")], table, _same)
    assert [each.explained_by for each in told] == ["", ""]
    told = explain([_finding("down", severity="critical"), _finding("xid", severity="critical")], table, _same)
    assert [each.explained_by for each in told] == ["xid", ""]


def _leak(device: str = "cpu", severity: api.Severity = "warning") -> api.Finding:
    return msgspec.structs.replace(_finding("memory_leak", severity=severity), device=device)


@pytest.mark.parametrize(
    ("cause", "subject", "device", "leaks_on"),
    [
        ("host_memory_low", "host", "cpu", "cpu"),
        ("swapping", "host", "cpu", "cpu"),
        ("oom_killed", "chat", "cpu", "cpu"),
        ("cuda_oom", "chat", "cuda0", "cuda0"),
        ("out_of_memory", "chat", "cpu", "cpu"),
    ],
)
def test_a_leak_is_why_memory_runs_out_where_it_is(cause: str, subject: str, device: str, leaks_on: str) -> None:
    ran_out = msgspec.structs.replace(_finding(cause, subject), device=device)
    _, told = explain([_leak(leaks_on), ran_out], EXPLAINS, _same)
    assert (told.explained_by, told.explained_by_subject) == ("memory_leak", "chat")
    _, elsewhere = explain([_leak("cuda0" if leaks_on == "cpu" else "cpu"), ran_out], EXPLAINS, _same)
    assert elsewhere == ran_out, "memory of another device"
    other = msgspec.structs.replace(ran_out, subject="other" if subject == "chat" else "host")
    _, of_another = explain([_leak(leaks_on), other], EXPLAINS, _same)
    assert bool(of_another.explained_by) is (subject == "host"), "another engine's memory is its own, the host's is all of theirs"


@pytest.mark.parametrize("severity", ["warning", "info"])
def test_a_kill_keeps_its_alarm_and_names_the_leak(severity: api.Severity) -> None:
    killed = msgspec.structs.replace(_finding("oom_killed", severity="critical"), device="cpu")
    told, down, _ = explain([killed, _finding("engine_down", severity="critical"), _leak(severity=severity)], EXPLAINS, _same)
    assert (told.severity, told.explained_by, down.explained_by) == ("critical", "", "oom_killed")
    assert [each.text for each in told.evidence] == ["it may come of memory_leak: memory_leak of chat"]
    assert down.evidence == ()


def test_what_comes_out_of_a_model_follows_from_what_went_in_or_broke() -> None:
    broken = [
        _finding("nan_logits", severity="critical"),
        _finding("output_collapse", severity="critical"),
        _finding("output_drift"),
    ]
    assert [each.explained_by for each in explain(broken, EXPLAINS, _same)] == ["", "nan_logits", "nan_logits"]
    shifted = [_finding("output_collapse", severity="critical"), _finding("input_drift"), _finding("output_drift")]
    collapse, _, drift = explain(shifted, EXPLAINS, _same)
    assert (collapse.explained_by, drift.explained_by) == ("", "input_drift")
    assert "input_drift" in collapse.evidence[0].text


@pytest.mark.parametrize("cause", ["page_faults", "swapping"])
@pytest.mark.parametrize("effect", ["gil_contention", "prefill_interference", "queue_saturation", "disk_stall"])
def test_who_waits_for_pages_lets_others_wait_whichever_is_newer(cause: str, effect: str) -> None:
    newer = _finding(effect, since_s=NOW + 5.0)
    told = {each.cause: each.explained_by for each in explain([newer, _finding(cause)], EXPLAINS, _same)}
    assert told == {cause: "", effect: cause}


def test_two_that_would_explain_each_other_are_not_both_hidden() -> None:
    table = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"a"})}
    told = explain([_finding("a"), _finding("b"), _finding("c")], table, _same)
    assert [each.explained_by for each in told].count("") == 1


def test_changes_are_told_with_what_began_soon_after() -> None:
    changes = Changes()
    changes.observe(_view(10), NOW)
    changes.observe(_view(20), NOW + 10)
    changes.observe(_view(20, driver="2"), NOW + 20)
    assert changes.before(_finding("x", since_s=NOW + 50), _same) == (
        "40 s before: engine chat was restarted (process 10 before, 20 now)",
        "30 s before: the NVIDIA driver changed from 1 to 2",
    )
    assert changes.before(_finding("x", subject="other", since_s=NOW + 50), _same) == (
        "30 s before: the NVIDIA driver changed from 1 to 2",
    )
    assert changes.before(_finding("x", since_s=NOW + 5000), _same) == (), "long before"
    assert changes.before(_finding("x", since_s=NOW - 50), _same) == (), "after it began"


def test_the_first_look_at_a_host_is_no_change() -> None:
    changes = Changes()
    gpu = api.Gpu(index=0, name="H100", uuid="u", pci_bus_id="b", up=True, processes=(api.GpuProcess(tgid=7, command="other"),))
    changes.observe(_view(gpus=[gpu]), NOW)
    assert changes.before(_finding("x", since_s=NOW), lambda _cause, _effect: True) == ()


def test_an_engine_that_is_discovered_was_there_and_one_that_starts_later_appears() -> None:
    for after_s, told in ((SETTLED_S - 1, ()), (SETTLED_S, ("10 s before: engine chat appeared",))):
        changes = Changes()
        changes.observe(dataclasses.replace(_view(), engines=[]), NOW)
        changes.observe(_view(), NOW + after_s)
        assert changes.before(_finding("x", since_s=NOW + after_s + 10), _same) == told


def test_a_model_that_is_swapped_and_a_neighbour_that_comes() -> None:
    store = Store(max_series=100, retention_s=300.0)

    def info(model: str, now_s: float) -> None:
        tags = (("engine", "chat"), ("kind", "vllm"), ("model", model))
        store.apply(Batch("scrape", now_s, [Point("aie_engine_info", Kind.GAUGE, tags, 1.0)], period_s=1.0))

    changes = Changes()
    gpu = api.Gpu(index=0, name="H100", uuid="u", pci_bus_id="b", up=True)
    info("llama-8b", NOW)
    changes.observe(_view(store=store, gpus=[gpu]), NOW)
    info("llama-70b", NOW + 5)
    busy = api.Gpu(index=0, name="H100", uuid="u", pci_bus_id="b", up=True, processes=(api.GpuProcess(tgid=7, command="train"),))
    changes.observe(_view(store=store, gpus=[busy]), NOW + 6)
    told = changes.before(_finding("x", since_s=NOW + 21), lambda _cause, _effect: True)
    assert any("another process began to use GPU 0: train (7)" in each for each in told)
    assert any("model of engine chat changed from llama-8b to llama-70b" in each for each in told)


def test_the_worst_comes_first_and_what_is_explained_last() -> None:
    diagnosis = Diagnosis(
        engine_causes=(
            lambda view, engine, now_s: _finding("gil_contention", engine, severity="critical"),
            lambda view, engine, now_s: _finding("engine_hung", engine, severity="critical", since_s=NOW - 5),
            lambda view, engine, now_s: _finding("other", engine, severity="info"),
        ),
        subject_causes=(lambda view, now_s: [_finding("hot", "gpu0")],),
    )
    told = diagnosis.update(_view(), NOW)
    assert [each.cause for each in told] == ["engine_hung", "hot", "other", "gil_contention"]
    assert told[-1].explained_by == "engine_hung"


def test_state_survives_a_restart(tmp_path: Path) -> None:
    before = Diagnosis(engine_causes=(), subject_causes=())
    before.update(_view(10), NOW)
    before.update(_view(20), NOW + 10)
    file = StateFile(tmp_path / "state.json")
    file.write(before.dump())
    after = Diagnosis(engine_causes=(lambda view, engine, now_s: _finding("x", engine, since_s=NOW + 60),), subject_causes=())
    after.restore(StateFile(tmp_path / "state.json").read(), NOW + 50)
    (told,) = after.update(_view(20), NOW + 60)
    assert told.changes == ("50 s before: engine chat was restarted (process 10 before, 20 now)",)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 99, "parts": {}}', b'{"version": 1}', b'{"version": 1, "parts": []}'],
)
def test_a_state_that_cannot_be_used_is_begun_anew(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state.json").write_bytes(content)
    assert StateFile(tmp_path / "state.json").read() == {}
    assert "is not used" in caplog.text


@pytest.mark.parametrize("part", [None, 3, "x", [[1, 2]], [["a", "b", "c"]], {"a": 1}])
def test_a_part_of_the_state_that_cannot_be_used_costs_only_itself(part: object, caplog: pytest.LogCaptureFixture) -> None:
    diagnosis = Diagnosis(engine_causes=(), subject_causes=())
    diagnosis.restore({"changes": part, "of another version": part}, NOW)
    assert diagnosis.update(_view(), NOW) == ()
    assert caplog.text.count("is not used") == 1


def test_a_state_that_cannot_be_saved_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = StateFile(tmp_path / "no" / "state.json")
    file.write({})
    file.write({})
    assert caplog.text.count("cannot be saved") == 1


def test_a_save_that_fails_leaves_what_was_saved(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    file.write({"a": [1]})
    (tmp_path / "state.json.new").mkdir()
    file.write({"a": [2]})
    assert json.loads((tmp_path / "state.json").read_text())["parts"] == {"a": [1]}
