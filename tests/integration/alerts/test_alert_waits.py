"""How long each alert waits and stays: the table says it, the rules say the same, and a real promtool finds that they do so.

On the series of its own tests each alert is held against its condition at every evaluation: it must not fire before the condition
held for as long as the table says, must then, must stay for as long as the table says when it ended, and must not stay longer.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.fakes.alert_files import ALERT_RULES, NAMES, RULE_FILES, Rule
from tests.fakes.alert_moments import Case, Wait, case, cases, seconds

WAITS: Final = {
    # agent.yaml
    "AieWatchdog": "0s",
    "AieAgentDown": "2m, 2m",
    "AieAgentAbsent": "5m",
    "AieAgentBlind": "2m 1m",
    "AieAgentProbesDetached": "5m",
    "AieAgentProbesCostly": "5m 3m",
    "AieAgentProbeEventsLost": "10m",
    "AieAgentRestarts": "1m 10m",
    "AieAgentProbeChildRestarts": "1m 10m",
    "AieAgentSeriesRefused": "5m",
    "AieAgentSeriesNearLimit": "15m",
    "AieAgentInputDropped": "5m",
    "AieAgentPushesFail": "15m 5m",
    "AieFindingCritical": "30s 2m",
    "AieFindingWarning": "1m 2m",
    # drift.yaml
    "AieNanLogits": "15s 5m",
    "AieOutputCollapse": "30s 10m",
    "AieOutputDrift": "30s 10m",
    "AieInputDrift": "30s 10m",
    "AieDriftNotWatched": "5m 3m",
    # engine.yaml
    "AieEngineDown": "30s 1m",
    "AieEngineAbsent": "10m",
    "AieEngineVanished": "5m",
    "AieEngineOomKilled": "15s 3m",
    "AieEngineHung": "15s 1m",
    "AieEngineStalled": "1m 1m",
    "AieEngineStopped": "15s 1m",
    "AieEngineRestarts": "1m 10m",
    "AieEngineErrors": "15s 1m",
    "AieEngineRejects": "1m 2m",
    "AieQueueSaturated": "1m 2m",
    "AiePreemptionStorm": "1m 5m",
    "AieCacheHitCollapse": "1m 5m",
    "AieKvCacheFull": "1m 2m",
    "AieLockContention": "30s 2m",
    "AieGilContention": "30s 2m",
    "AieEngineSpansLost": "10m 5m",
    # gpu.yaml
    "AieGpuLost": "30s 1m",
    "AieGpuMissing": "5m 3m",
    "AieGpuAbsent": "5m",
    "AieGpuThrottled": "1m 5m",
    "AieGpuEccUncorrected": "0s 3m",
    "AieGpuRowRemapFailed": "0s 3m",
    "AieGpuRowRemapPending": "1m 3m",
    "AieGpuLinkWidth": "2m 5m",
    "AieGpuLinkGeneration": "2m 10m",
    "AieGpuOrphans": "2m 1m",
    "AieGpuXidUnseen": "10m",
    "AieGpuXidApplication": "0s",
    "AieGpuXidMemory": "0s",
    "AieGpuXidLink": "0s",
    "AieGpuXidGpu": "0s",
    "AieGpuXidDriver": "0s",
    "AieGpuXidReport": "0s",
    "AieGpuXidUnknown": "0s",
    # host.yaml
    "AieCpuStarved": "1m 2m",
    "AieHostOomKill": "0s",
    "AieHostMemoryLow": "30s 2m",
    "AieHostSwapping": "30s 2m",
    # memory.yaml
    "AieMemoryLeak": "1m 10m",
    "AieMemoryGrows": "10m 30m",
    "AieMemoryFullSoon": "10m 10m, 5m 10m",
    "AieMemoryNearlyFull": "5m 5m",
    "AieEngineOutOfMemory": "15s 3m",
    "AieMemoryFragmentation": "1m 10m",
    "AieAllocatorGap": "5m 10m",
    "AieAllocatorRetries": "1m 10m",
    "AieKvAccounting": "1m 10m",
    # slo.yaml
    "AieSloTtft": "2m 5m, 15m 5m, 1h 5m",
    "AieSloInterToken": "2m 5m, 15m 5m, 1h 5m",
    "AieSloDuration": "2m 5m, 15m 5m, 1h 5m",
    "AieSloErrors": "2m 5m, 15m 5m, 1h 5m",
    "AieSloAvailability": "2m 5m, 15m 5m, 1h 5m",
    "AieSloNotMeasured": "30m, 30m, 30m",
}
"""Of each alert `for`, and `keep_firing_for` where it has one; with commas for alerts that are several rules, in their order.
A duration is changed here and in the rule: whoever changes one says so twice."""


SLOW: Final = ("slo",)
"""Files whose rules look back for days: promtool takes minutes for them. They are given what they read as if it were recorded."""

AGENTS: Final = {
    'aie_agent_info{job="aie", instance="a"}': "1x20 stale _x20 1x20",
    'aie_agent_info{job="aie", instance="b"}': "1x20 stale _x20 1x20",
    'up{job="aie", instance="a"}': "1x20 0x20 1x20",
    'up{job="aie", instance="b"}': "1x20 0x20 1 0 1x18",
    'aie_engine_up{job="aie", instance="b", engine="e"}': "1x20 stale _x20 1x20",
}
"""Two hosts whose agents are down for a while, one again and too briefly; on that one an engine served."""

WITH_OWN_SERIES: Final[dict[str, dict[str, str]]] = {"AieWatchdog": {"up": "1x10"}, "AieAgentDown": AGENTS}
"""Alerts whose tests take days, or have no series at all."""


def _waits(name: str) -> list[Wait]:
    return [Wait(*(seconds(text) for text in [*each.split(), "0s"][:2])) for each in WAITS[name].split(", ")]


def _rules(file: str) -> Iterator[tuple[Rule, Wait]]:
    """Of one file, each with what the table says of it."""
    left = {name: _waits(name) for name in NAMES}
    for rule in ALERT_RULES:
        wait = left[rule.name].pop(0)
        if rule.file == file:
            yield rule, wait


def test_the_rules_wait_as_the_table_says() -> None:
    said: dict[str, list[Wait]] = {}
    for rule in ALERT_RULES:
        pair = Wait(seconds(rule.table.get("for", "0s")), seconds(rule.table.get("keep_firing_for", "0s")))
        said.setdefault(rule.name, []).append(pair)
    assert said == {name: _waits(name) for name in WAITS}


class _Written(NamedTuple):
    """A case in a file."""

    number: int
    rule: Rule
    wait: Wait
    case: Case
    path: Path


def _series(of: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in of.items()]


def _write(folder: Path, rules: Iterable[tuple[Rule, Wait]]) -> Iterator[_Written]:
    """Each case of each rule. JSON is YAML."""
    for number, (rule, wait) in enumerate(rules):
        own = {"interval": "1m", "input_series": _series(WITH_OWN_SERIES.get(rule.name, {}))}
        of_tests = cases(rule, wait) if rule.name not in WITH_OWN_SERIES else [case(rule, wait, "own", own, 60)]
        for each in of_tests:
            path = folder / f"{rule.name}-{number}-{each.name}.json"
            (folder / f"rules-{path.name}").write_text(json.dumps(each.rules))
            path.write_text(json.dumps({"rule_files": [f"rules-{path.name}"], **each.test}))
            yield _Written(number, rule, wait, each, path)


def _said(promtool: str, path: Path) -> str:
    """What promtool says of a test: the queries that do not give what they should, if there are any."""
    done = subprocess.run(
        [promtool, "test", "rules", str(path)],
        env={**os.environ, "GOGC": "400"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = done.stdout + done.stderr
    assert ("SUCCESS" in said) == (done.returncode == 0), said
    assert done.returncode == 0 or "exp:" in said, said
    return said


@pytest.mark.parametrize("file", [path.stem for path in RULE_FILES if path.stem not in SLOW])
def test_alerts_fire_and_end_when_the_table_says(promtool: str, tmp_path: Path, file: str) -> None:
    written = list(_write(tmp_path, _rules(file)))
    assert {each.rule.name for each in written} == {rule.name for rule, _ in _rules(file)}
    _hold(promtool, written)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("AieSlo")])
def test_objectives_call_and_end_when_the_table_says(promtool: str, tmp_path: Path, name: str) -> None:
    rules = [(rule, wait) for file in SLOW for rule, wait in _rules(file) if rule.name == name]
    _hold(promtool, list(_write_recorded(tmp_path, rules)))


def _write_recorded(folder: Path, rules: Iterable[tuple[Rule, Wait]]) -> Iterator[_Written]:
    """All that a rule reads is as bad as can be: of one engine for longer than it waits, of another one for half as long."""
    for number, (rule, wait) in enumerate(rules):
        for_min = wait.for_s // 60
        least, most = for_min // 2, for_min + 30
        engines = {
            "long": f"0x9 1x{most} 0x3 1x10 0x20" if "_count" not in rule.table["expr"] else f"0x9 1+1x{most}",
            "short": f"0x9 1x{least} 0x40" if "_count" not in rule.table["expr"] else f"0x{most}",
        }
        names = re.findall(r"\bjob_engine\w*:aie_slo\w*:\w+|\baie_\w+_count\b", rule.table["expr"])
        slo = re.search(r'slo="\w+"', rule.table["expr"])
        labels = 'job="aie", engine="{}"' + (f", {slo[0]}" if slo else "")
        series = {f"{each}{{{labels.format(engine)}}}": values for each in names for engine, values in engines.items()}
        made = case(rule, wait, "recorded", {"interval": "1m", "input_series": _series(series)}, 60, is_recorded=True)
        path = folder / f"{number}.json"
        (folder / f"rules-{path.name}").write_text(json.dumps(made.rules))
        path.write_text(json.dumps({"rule_files": [f"rules-{path.name}"], **made.test}))
        yield _Written(number, rule, wait, made, path)


def _hold(promtool: str, written: list[_Written]) -> None:
    """Each alert against its condition at every evaluation: never wrong, and with an occasion for each of its waits."""
    happened = set()
    for each in written:
        said = _said(promtool, each.path)
        wrong = [what for what, query in each.case.never.items() if json.dumps(query) in said]
        assert not wrong, f"{each.path.name}: {wrong}: {said}"
        happened |= {(each.number, what) for what, query in each.case.events.items() if json.dumps(query) not in said}
    for each in written:
        wanted = {"begins": 1, "waits": each.wait.for_s, "stays": each.wait.keep_s}
        unseen = [what for what, is_asked in wanted.items() if is_asked and (each.number, what) not in happened]
        assert not unseen, f"{each.rule.name}, rule {each.number}: no test of it has an occasion on which it {unseen}"
