"""Rules at another pace, and at another address of runbooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import aie_alerts
from aie_alerts.scale import duration_s, milliseconds, scaled, shown
from tests.fakes.alert_files import RULE_FILES

AGE = re.compile(r"(?:time\(\) - \w+(?:\{[^}]*\})? <|> time\(\) -) ([\d.]+)\b")
DURATION = re.compile(r"(?:\[|offset )((?:\d+(?:ms|[ywdhms]))+)")


@given(st.integers(min_value=1, max_value=10**12))
def test_durations_are_read_back(total_ms: int) -> None:
    assert milliseconds(shown(total_ms)) == total_ms


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("0s", 0), ("250ms", 0.25), ("1h30m", 5400), ("3d", 259200), ("1w", 604800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "1.5h", "5 m", "-5m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        milliseconds(text)


def test_each_place_of_a_duration() -> None:
    rules = """
# rate over [5m], for: 5m
  - name: a
    interval: 30s
    rules:
      - alert: B
        expr: rate(x_total{le="5m"}[5m]) > 3600 and max_over_time(y[1h:1m] offset 2h) > 60 or z[90s:]
          or v > 0 and time() - w_seconds < 600 or time() - w_seconds > 600
          or last_over_time(w_seconds[1h]) > time() - 1800 or time() - w_seconds{a="b"} < 600
        for: 10m
        keep_firing_for: 0s
        annotations:
          description: for 10m it was so
"""
    assert (
        scaled(rules, 60)
        == """
# rate over [5m], for: 5m
  - name: a
    interval: 500ms
    rules:
      - alert: B
        expr: rate(x_total{le="5m"}[5s]) > 3600 and max_over_time(y[1m:1s] offset 2m) > 60 or z[1s500ms:]
          or v > 0 and time() - w_seconds < 10 or time() - w_seconds > 600
          or last_over_time(w_seconds[1m]) > time() - 30 or time() - w_seconds{a="b"} < 10
        for: 10s
        keep_firing_for: 0s
        annotations:
          description: for 10m it was so
"""
    )


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_every_duration_of_every_rule_is_scaled(path: Path) -> None:
    text = path.read_text()
    before, after = (list(_durations(each)) for each in (text, scaled(text, 60)))
    assert len(before) == len(after) > 0
    assert after == [(where, seconds / 60) for where, seconds in before]


def test_every_moment_that_a_rule_counts_back_to_is_scaled() -> None:
    """`time() - N` is a moment whatever stands before it: none is left as it was, and the test above sees each of them."""
    for path in RULE_FILES:
        text = path.read_text()
        moments = re.findall(r"time\(\) - (\d+)\b", text)
        assert re.findall(r"time\(\) - ([\d.]+)\b", scaled(text, 60)) == [f"{float(each) / 60:g}" for each in moments]
        assert len(re.findall(r"> time\(\) - [\d.]+", text)) == len(moments)


def _durations(text: str) -> list[tuple[str, float]]:
    found = []
    for group in yaml.load(text, Loader=yaml.CSafeLoader)["groups"]:
        found += [("interval", duration_s(group["interval"]))] if "interval" in group else []
        for rule in group["rules"]:
            found += [(key, duration_s(rule[key])) for key in ("for", "keep_firing_for") if key in rule]
            found += [("expr", duration_s(each)) for each in DURATION.findall(rule["expr"])]
            found += [("age", float(each)) for each in AGE.findall(rule["expr"])]
    return found


def test_an_xid_is_told_as_long_as_its_window_is() -> None:
    """However fast the rehearsal is: else its alert fires ten minutes beyond all others."""
    (path,) = [path for path in RULE_FILES if path.stem == "gpu"]
    rules = [rule for rule in _rules(scaled(path.read_text(), 30)) if "Xid" in rule.get("alert", "")]
    told = [(DURATION.findall(rule["expr"]), AGE.findall(rule["expr"])) for rule in rules if "timestamp" in rule["expr"]]
    assert len(told) == 7
    assert all(duration_s(window) == float(age) == 20 for windows, ages in told for window, age in zip(windows, ages, strict=True))


LONG = re.compile(r"\b(?:second|minute|hour|day)s?\b")
NO_WINDOW = ("a second", "B an hour", "30 days")
"""What is of a rate, and the budget of an objective, which is no shorter in a rehearsal."""


def _told(text: str) -> list[str]:
    """All that alerts of a rule file say, less what is no window."""
    said = [rule["annotations"][key] for rule in _rules(text) if "alert" in rule for key in ("summary", "description")]
    for words in NO_WINDOW:
        said = [each.replace(words, "") for each in said]
    return said


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_descriptions_say_the_windows_that_a_rehearsal_has(path: Path) -> None:
    """No window is left in words where all are divided, and as long as they were nothing is changed."""
    text = path.read_text()
    assert _told(scaled(text, 1)) == _told(text)
    assert [each for each in _told(scaled(text, 30)) if LONG.search(each)] == []


@pytest.mark.parametrize(
    ("said", "after"),
    [
        ("XID 31 within ten minutes: 2", "XID 31 within 20s: 2"),
        ("over the last five minutes", "over the last 10s"),
        ("the best of five busy minutes", "the best of busy 10s"),
        ("For half an hour 5 B", "For 1m 5 B"),
        ("at the rate of the last half hour", "at the rate of the last 1m"),
        ("within a quarter of an hour", "within 30s"),
        ("within the last hour, and", "within the last 2m, and"),
        ("heard of within the hour", "heard of within 2m"),
        ("has grown for a day", "has grown for 48m"),
        ("of each four hours rose six times, by 3 B an hour", "of each 8m rose six times, by 3 B an hour"),
        ("Over 6h 3 % were bad: the budget of 30 days, 4 a second", "Over 12m 3 % were bad: the budget of 30 days, 4 a second"),
    ],
)
def test_durations_in_words(said: str, after: str) -> None:
    assert scaled(f"  description: {said}\n  # within ten minutes\n", 30) == f"  description: {after}\n  # within ten minutes\n"


def _rules(text: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.load(text, Loader=yaml.CSafeLoader)["groups"] for rule in group["rules"]]


def test_nothing_is_shorter_than_prometheus_can_tell() -> None:
    assert scaled("    for: 1s\n    interval: 0s\n", 1e9) == "    for: 1ms\n    interval: 0s\n"


@pytest.mark.parametrize("by", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_is_none(by: float) -> None:
    with pytest.raises(ValueError, match="time scale"):
        scaled("", by)


def test_runbooks_at_another_address() -> None:
    files = aie_alerts.files("https://wiki.example/aie/")
    urls = [
        rule["annotations"]["runbook_url"]
        for path, text in files.items()
        if path.parts[0] == aie_alerts.RULES
        for group in yaml.load(text, Loader=yaml.CSafeLoader)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert urls
    for url in urls:
        name = url.removeprefix("https://wiki.example/aie/").removesuffix(".md")
        assert name == "{{ $labels.cause }}" or name in aie_alerts.pages()


def test_pages_lead_to_pages_beside_them() -> None:
    for path, text in aie_alerts.files().items():
        if path.parts[0] == aie_alerts.RUNBOOKS and path.name.startswith("Aie"):
            for link in re.findall(r"\]\(([^)]+)\)", text):
                assert link.removesuffix(".md") in aie_alerts.pages()
