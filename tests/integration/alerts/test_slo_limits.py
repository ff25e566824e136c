"""Objectives at their limits: each pair of windows must be beyond its own, with enough bad requests; a twentieth less of any, and
nobody is called. What is recorded is given; that it is recorded rightly is alerts/tests/slo.yaml's."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.fakes.alert_files import ALERT_RULES, ALERTS

RATIO: Final = "job_engine_model:aie_slo_bad_events_per_aie_slo_events:ratio_rate{}"
EVENTS: Final = "job_engine_model:aie_slo_events:rate{}"
REQUESTS: Final = "job_engine_model:aie_slo_requests:rate{}"
DOWN: Final = "job_engine:aie_slo_down:ratio_avg{}"
LEAST_BAD: Final = 5.0
OVER, UNDER = 1.05, 0.95


class Burn(NamedTuple):
    """Table 5-8 of Google's SRE workbook."""

    factor: float
    long: str
    short: str
    long_s: int


BURNS: Final = (Burn(14.4, "1h", "5m", 3600), Burn(6, "6h", "30m", 21_600), Burn(1, "3d", "6h", 259_200))
SLOS: Final[dict[str, dict[str, Any]]] = {
    slo["alert"]: slo for slo in tomllib.loads((ALERTS / "objectives.toml").read_text())["slo"]
}


class Engine(NamedTuple):
    """How far it is from the limits: of the ratios over both windows, of bad events, of bad requests where these are counted."""

    name: str
    long: float = OVER
    short: float = OVER
    events: float = OVER
    requests: float | None = OVER
    fires: bool = False


ENGINES: Final = (
    Engine("over", fires=True),
    Engine("long_under", long=UNDER),
    Engine("short_under", short=UNDER),
    Engine("few_events", events=UNDER),
    Engine("few_requests", events=100.0, requests=UNDER),
    Engine("no_count", requests=None, fires=True),
)


def engines_of(slo: dict[str, Any]) -> Iterator[Engine]:
    """Those that an objective of this kind can tell apart."""
    for engine in ENGINES:
        knows_events, knows_requests = slo["name"] != "availability", "requests" in slo
        if (knows_events or engine.events == OVER) and (knows_requests or engine.requests == OVER):
            yield engine


def series(slo: dict[str, Any], burn: Burn, engine: Engine) -> dict[str, float]:
    """What was recorded of an engine, by name."""
    limit = burn.factor * (1 - slo["objective"])
    if slo["name"] == "availability":
        return {DOWN.format(burn.long): limit * engine.long, DOWN.format(burn.short): limit * engine.short}
    ratio, one_bad = limit * engine.long, LEAST_BAD / burn.long_s / (limit * engine.long)
    found = {
        RATIO.format(burn.long): ratio,
        RATIO.format(burn.short): limit * engine.short,
        EVENTS.format(burn.long): one_bad * engine.events,
    }
    if "requests" in slo and engine.requests is not None:
        found[REQUESTS.format(burn.long)] = one_bad * engine.requests
    return found


def looked_at(slo: dict[str, Any], burn: Burn) -> dict[str, Any]:
    """A test of promtool's: every engine at once, two hours long."""
    model = "" if slo["name"] == "availability" else ', model="m"'
    labels = 'job="aie", engine="{}"{}, slo="{}"'
    engines = list(engines_of(slo))
    firing = f'ALERTS{{alertname="{slo["alert"]}", alertstate="firing"}}'
    return {
        "name": f"{slo['alert']} over {burn.long} at its limits",
        "interval": "5m",
        "input_series": [
            {"series": f"{name}{{{labels.format(engine.name, model, slo['name'])}}}", "values": f"{value:.12g}x24"}
            for engine in engines
            for name, value in series(slo, burn, engine).items()
        ],
        "promql_expr_test": [
            {
                "expr": f"count by (engine, window) ({firing})",
                "eval_time": "2h",
                "exp_samples": [
                    {"labels": f'{{engine="{engine.name}", window="{burn.long}"}}', "value": 1}
                    for engine in engines
                    if engine.fires
                ],
            }
        ],
    }


def test_each_objective_at_its_limits(promtool: str, tmp_path: Path) -> None:
    rules = [rule.table for rule in ALERT_RULES if rule.name in SLOS]
    assert len(rules) == len(SLOS) * len(BURNS)
    tests = [looked_at(slo, burn) for slo in SLOS.values() for burn in BURNS]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "slo", "rules": rules}]}))
    (tmp_path / "tests.json").write_text(json.dumps({"rule_files": ["rules.json"], "evaluation_interval": "5m", "tests": tests}))
    done = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "tests.json")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"GOMAXPROCS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", SLOS)
def test_each_objective_has_an_engine_that_is_called_for_and_one_below_each_limit(alert: str) -> None:
    """What the test above is made of: else it would hold of nothing."""
    engines = list(engines_of(SLOS[alert]))
    assert {engine.name for engine in engines} >= {"over", "long_under", "short_under"}
    assert ("few_events" in {engine.name for engine in engines}) == (alert != "AieSloAvailability")
    assert ("few_requests" in {engine.name for engine in engines}) == (alert == "AieSloInterToken")
