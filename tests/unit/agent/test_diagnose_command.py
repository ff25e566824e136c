"""`aie-agent diagnose`: what it says, and how it ends."""

from __future__ import annotations

import argparse
import json

import msgspec
import pytest

from aie_agent.commands import agent_api, diagnose
from aie_telemetry import api

NOW = 1_700_000_000.0


def _snapshot(*findings: api.Finding) -> api.Snapshot:
    return api.Snapshot(
        version=1,
        time_s=NOW,
        window_s=60.0,
        agent=api.Agent(version="1", uptime_s=1.0, series=1, series_limit=10),
        host=api.Host(hostname="h", kernel="k"),
        engines=(api.Engine(name="chat", state="up"),),
        findings=findings,
        sources=(api.Source(name="bpf", state="down", reason="r"),),
    )


def _finding(cause: str, severity: api.Severity, explained_by: str = "") -> api.Finding:
    return api.Finding(
        cause=cause,
        subject="chat",
        severity=severity,
        since_s=NOW - 90,
        summary=f"{cause} of \x1b[2J chat",
        evidence=(api.Evidence(text="3 of 4 (limit 1)", metric="aie_engine_up"),),
        advice="do this",
        runbook=f"docs/runbooks/{cause}.md",
        changes=("20 s before: engine chat was restarted",),
        not_visible=("the GPU",),
        explained_by=explained_by,
    )


def test_a_finding_with_all_that_belongs_to_it() -> None:
    told = "\n".join(diagnose.report(_snapshot(_finding("hung", "critical"), _finding("slow", "warning", "hung")), NOW))
    assert told.splitlines() == [
        "CRITICAL  hung of ?[2J chat",
        "    hung, chat, for 90 s",
        "    because   3 of 4 (limit 1)",
        "    before    20 s before: engine chat was restarted",
        "    not seen  the GPU",
        "    do        do this",
        "    more      docs/runbooks/hung.md",
        "    explains: slow of ?[2J chat (slow)",
    ]


def _of(cause: str, subject: str, by: str = "", by_subject: str = "") -> api.Finding:
    finding = _finding(cause, "warning", by)
    return msgspec.structs.replace(finding, subject=subject, summary=f"{cause} of {subject}", explained_by_subject=by_subject)


def test_what_is_explained_stands_under_the_subject_that_explains_it_and_chains_are_told() -> None:
    findings = [
        _of("hot", "gpu0"),
        _of("hot", "gpu1"),
        _of("slow", "chat", "hot", "gpu1"),
        _of("queue", "chat", "slow", "chat"),
        _of("flood", "chat", "queue", "chat"),
        _of("left", "chat", "gone", "chat"),
        _of("a", "chat", "b", "chat"),
        _of("b", "chat", "a", "chat"),
    ]
    told = list(diagnose.report(_snapshot(*findings), NOW))
    shown = [line for line in told if line.startswith("WARNING") or "explains" in line]
    assert shown == [
        "WARNING  hot of gpu0",
        "WARNING  hot of gpu1",
        "    explains: slow of chat (slow)",
        "        explains: queue of chat (queue)",
        "            explains: flood of chat (flood)",
        "WARNING  left of chat",
        "WARNING  a of chat",
        "WARNING  b of chat",
    ]


def test_nothing_wrong_is_not_said_beside_an_engine_that_is_gone() -> None:
    told = list(diagnose.report(_snapshot(_finding("engine_down", "info")), NOW))
    assert told[0] == "no alarm, but without a process: chat"
    assert not any("nothing wrong" in line for line in told)
    lost = msgspec.structs.replace(_snapshot(), engines=(api.Engine(name="batch", state="down"),))
    assert next(diagnose.report(lost, NOW)) == "no alarm, but without a process: batch"


def test_nothing_wrong_says_what_is_not_seen() -> None:
    told = list(diagnose.report(_snapshot(), NOW))
    assert told[0].startswith("nothing wrong: 1 engines")
    assert "not seen: bpf" in told[1]


UNSEEN = (api.Engine(name="chat", state="unknown"),)


@pytest.mark.parametrize("engines", [(), UNSEEN])
@pytest.mark.parametrize(
    ("findings", "status", "first"),
    [
        ((), 2, "of the rest nothing is wrong: 0 GPUs and the host are as they should be"),
        ((_finding("blind", "info"),), 2, "of the rest nothing is wrong: 0 GPUs and the host are as they should be"),
        ((_finding("host_memory_low", "warning"),), 1, "WARNING  host_memory_low of ?[2J chat"),
    ],
)
def test_without_an_engine_nothing_is_as_it_should_be(
    engines: tuple[api.Engine, ...],
    findings: tuple[api.Finding, ...],
    status: int,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    snapshot = msgspec.structs.replace(_snapshot(*findings), engines=engines)
    monkeypatch.setattr(agent_api, "snapshot", lambda url: snapshot)
    assert diagnose.run(argparse.Namespace(json=False, agent="http://x")) == status
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("no engine is seen")
    assert "`aie-agent check`" in told[0]
    assert told[1] == first
    assert not any("nothing wrong:" in line for line in told)
    assert diagnose.run(argparse.Namespace(json=True, agent="http://x")) == status
    out, err = capsys.readouterr()
    assert [json.loads(line)["cause"] for line in out.splitlines()] == [finding.cause for finding in findings]
    assert "no engine is seen" in err


def test_an_engine_that_is_seen_only_by_its_page_is_seen() -> None:
    remote = (api.Engine(name="chat", state="unknown", metrics_from=("scrape",)),)
    told = list(diagnose.report(msgspec.structs.replace(_snapshot(), engines=remote), NOW))
    assert not any("no engine" in line for line in told)


def test_an_engine_of_which_no_process_was_seen_is_not_as_it_should_be() -> None:
    engines = (api.Engine(name="chat", state="up"), api.Engine(name="batch", state="unknown"))
    told = list(diagnose.report(msgspec.structs.replace(_snapshot(), engines=engines), NOW))
    assert told[0].startswith("nothing wrong: 1 engines")
    assert told[2] == "  no process seen of: batch"


def test_what_is_only_worth_knowing_is_told_and_is_not_wrong() -> None:
    told = list(diagnose.report(_snapshot(_finding("blind", "info")), NOW))
    assert told[0].startswith("nothing wrong")
    assert any(line.startswith("INFO  blind") for line in told)


def _rising(cause: str, confidence: float, severity: api.Severity = "info") -> api.Finding:
    return msgspec.structs.replace(_finding(cause, severity), confidence=confidence)


@pytest.mark.parametrize(
    ("findings", "first"),
    [
        ((_rising("memory_leak", 0.5),), "nothing certain; 1 suspicion:"),
        ((_rising("memory_leak", 0.5), _rising("kv_accounting", 0.4)), "nothing certain; 2 suspicions:"),
        ((_rising("memory_fragmentation", 0.9), _finding("blind", "info")), "no alarm; 1 slow leak:"),
        ((_rising("memory_leak", 0.95), _rising("memory_leak", 0.5)), "no alarm; 1 slow leak, 1 suspicion:"),
        ((_rising("memory_leak", 0.95, "warning"), _rising("memory_leak", 0.5)), "WARNING  memory_leak of ?[2J chat"),
    ],
)
def test_nothing_wrong_is_not_said_above_what_may_leak(findings: tuple[api.Finding, ...], first: str) -> None:
    told = list(diagnose.report(_snapshot(*findings), NOW))
    assert told[0] == first
    assert not any("nothing wrong" in line for line in told)


@pytest.mark.parametrize(("severities", "status"), [((), 0), (("info",), 0), (("info", "warning"), 1), (("critical",), 1)])
def test_how_it_ends(
    severities: tuple[api.Severity, ...], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = _snapshot(*(_finding(f"c{at}", severity) for at, severity in enumerate(severities)))
    monkeypatch.setattr(agent_api, "snapshot", lambda url: snapshot)
    assert diagnose.run(argparse.Namespace(agent="http://x", json=True)) == status
    lines = capsys.readouterr().out.splitlines()
    assert [msgspec.convert(json.loads(line), api.Finding) for line in lines] == list(snapshot.findings)


def test_without_an_agent(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose.run(argparse.Namespace(agent="http://127.0.0.1:9", json=False)) == 2
    assert "no agent answers" in capsys.readouterr().err
