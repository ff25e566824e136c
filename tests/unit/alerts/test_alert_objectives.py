"""Objectives, and the rules that are made of them."""

from __future__ import annotations

import re
from typing import Final

import pytest
import yaml

from aie_telemetry.catalogue import CATALOGUE, OUTCOMES
from alerts import slo
from tests.fakes.alert_files import ALERTS

TEXT: Final = (ALERTS / "objectives.toml").read_text()
OBJECTIVES: Final = slo.parse(TEXT)


def test_bounds_are_those_of_buckets() -> None:
    """Between two bounds nothing can be told."""
    for each in OBJECTIVES.slos:
        assert each.metric in CATALOGUE
        if each.bounds_seconds:
            bounds = CATALOGUE[each.metric].buckets
            assert bounds is not None
            assert [bound for bound in each.bounds_seconds if bound in bounds] == [each.bounds_seconds[0]]
        assert {*each.bad_outcomes, *each.good_outcomes} <= set(OUTCOMES)


def test_windows_are_those_of_the_workbook() -> None:
    assert [(burn.factor, burn.long, burn.short) for burn in OBJECTIVES.burns] == [
        (14.4, "1h", "5m"),
        (6, "6h", "30m"),
        (1, "3d", "6h"),
    ]


def test_pages_of_known_engines_have_a_bound_of_each_latency() -> None:
    """Which bounds an engine's page has stands in the recorded pages."""
    pages = {path.stem: path.read_text() for path in (ALERTS.parent / "tests" / "fixtures" / "pages").glob("*.prom")}
    of_engines = {
        "vllm-0.33-dp2": ("time_to_first_token", "inter_token", "e2e_request"),
        "sglang-0.5.23-dp2-tp2": ("time_to_first_token",),
    }
    by_part = {"time_to_first_token": "ttft", "inter_token": "inter_token", "e2e_request": "duration"}
    for page, parts in of_engines.items():
        for part in parts:
            bounds = {float(le) for le in re.findall(rf'{part}_\w+_bucket{{[^}}]*le="([\d.]+)"', pages[page])}
            wanted = next(each.bounds_seconds for each in OBJECTIVES.slos if each.name == by_part[part])
            assert len(bounds & set(wanted)) == 1


def test_each_window_is_recorded_once_and_each_recording_used() -> None:
    table = yaml.safe_load(slo.rules(OBJECTIVES))
    recorded = [
        (rule["record"], rule.get("labels", {}).get("slo"))
        for group in table["groups"]
        for rule in group["rules"]
        if "record" in rule
    ]
    assert len(recorded) == len(set(recorded))
    alerts = "\n".join(rule["expr"] for group in table["groups"] for rule in group["rules"] if "alert" in rule)
    for name, of in recorded:
        if of is not None and ":aie_slo_events:" not in name:
            assert f'{name}{{slo="{of}"}}' in alerts


def test_little_traffic_is_no_trend() -> None:
    table = yaml.safe_load(slo.rules(OBJECTIVES))
    burning = [rule for group in table["groups"] for rule in group["rules"] if "window" in rule.get("labels", {})]
    assert len(burning) == len(OBJECTIVES.slos) * len(OBJECTIVES.burns)
    for rule in burning:
        if rule["alert"] != "AieSloAvailability":
            assert f">= {OBJECTIVES.least_bad_events} / " in rule["expr"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("objective = 0.99\n", "objective = 99\n", "no share"),
        ("least_bad_events = 5", "least = 5", "least_bad_events"),
        ('title = "Time to first token"', 'titel = "Time to first token"', "titel"),
        ('good_outcomes = ["ok"]', "", "good_outcomes"),
    ],
)
def test_what_is_no_objective(old: str, new: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        slo.parse(TEXT.replace(old, new, 1))
