"""What every rule must have, whatever it is about: labels, texts, a runbook, and expressions that mean what they look like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import promql_parser as promql
import pytest

import aie_alerts
from aie_alerts.scale import duration_s
from aie_telemetry.catalogue import CATALOGUE, Kind
from tests.fakes.alert_files import ALERT_RULES, ALL, NAMES, RULE_FILES, Rule

OF_PROMETHEUS: Final = {"up": Kind.GAUGE}
RATES: Final = {"rate", "increase", "irate"}
OF_GAUGES: Final = {"delta", "idelta", "deriv", "predict_linear", "avg_over_time", "max_over_time"}
"""What makes no sense of a counter. `changes` and `last_over_time` do of both, and `min_over_time`: what a counter began with."""
SLOWEST_SCRAPE_S: Final = 60.0
"""Prometheus' own default."""
SEVERITIES: Final = {"info", "warning", "critical"}
HEADINGS: Final = ("Meaning", "Impact", "Diagnosis", "Mitigation", "False alarms")
RECORDED: Final = {rule.name for rule in ALL if "record" in rule.table}
EVERY_RULE: Final = pytest.mark.parametrize(
    "rules", [[rule for rule in ALL if rule.file == path.stem] for path in RULE_FILES], ids=[path.stem for path in RULE_FILES]
)
EVERY_ALERT: Final = pytest.mark.parametrize(
    "rules",
    [[rule for rule in ALERT_RULES if rule.file == path.stem] for path in RULE_FILES],
    ids=[path.stem for path in RULE_FILES],
)


def nodes(query: str) -> list[Any]:
    """All nodes of a query, outermost first. Raises ValueError where it is no PromQL."""
    found: list[Any] = []
    promql.walk(promql.parse(query), found.append)
    return found


def kind_of(series: str) -> Kind | None:
    """What a series of this name is; None where nobody makes it. Parts of a histogram are counters."""
    if series in RECORDED:
        return Kind.GAUGE
    for suffix in ("_bucket", "_sum", "_count"):
        metric = CATALOGUE.get(series.removesuffix(suffix))
        if series.endswith(suffix) and metric is not None and metric.kind is Kind.HISTOGRAM:
            return Kind.COUNTER
    metric = CATALOGUE.get(series)
    return OF_PROMETHEUS.get(series) if metric is None or metric.kind is Kind.HISTOGRAM else metric.kind


def labels_of(series: str) -> set[str]:
    """The labels that a series of the catalogue can have, those of Prometheus included."""
    base = re.sub(r"_(bucket|sum|count)$", "", series) if series not in CATALOGUE else series
    metric = CATALOGUE.get(base)
    of_metric = set(metric.labels) if metric is not None else {"slo", "engine", "model", "device"}
    return of_metric | {"job", "instance"} | ({"le"} if series.endswith("_bucket") else set())


def complaints(query: str) -> list[str]:
    """What is wrong with a query, in words."""
    return [text for check in CHECKS for node in nodes(query) for text in check(node)]


def _of_selectors(node: Any) -> Iterator[str]:
    if not isinstance(node, promql.VectorSelector):
        return
    if kind_of(node.name) is None:
        yield f"{node.name} is not in the catalogue"
    else:
        for matcher in node.matchers.matchers:
            if matcher.name not in labels_of(node.name):
                yield f"{node.name} has no label {matcher.name}"


def _of_rates(node: Any) -> Iterator[str]:
    if not isinstance(node, promql.Call):
        return
    for argument in node.args:
        if isinstance(argument, promql.MatrixSelector):
            name = argument.vector_selector.name
            if node.func.name in RATES and kind_of(name) is not Kind.COUNTER:
                yield f"{node.func.name} of {name}, which is no counter"
            if node.func.name in OF_GAUGES and kind_of(name) is Kind.COUNTER:
                yield f"{node.func.name} of {name}, which is a counter"


def _of_quantiles(node: Any) -> Iterator[str]:
    if not (isinstance(node, promql.Call) and node.func.name == "histogram_quantile"):
        return
    inside = node.args[1].prettify()
    if "rate(" not in inside or "_bucket" not in inside or not re.search(r"by \([^)]*\ble\b", inside):
        yield "a percentile is of the rates of buckets, with `le` kept"


def _of_aggregations(node: Any) -> Iterator[str]:
    if not isinstance(node, promql.AggregateExpr):
        return
    if node.modifier is None or node.modifier.type is not promql.AggModifierType.By or "job" not in node.modifier.labels:
        yield f"{node.prettify()[:60]}: `job` is not kept"


def _of_ratios(node: Any) -> Iterator[str]:
    """What is divided by must not be 0: a number, or what a comparison left."""
    if not (isinstance(node, promql.BinaryExpr) and str(node.op) == "/"):
        return
    divisor = node.rhs
    while isinstance(divisor, promql.ParenExpr):
        divisor = divisor.expr
    is_guarded = isinstance(divisor, promql.BinaryExpr) and str(divisor.op) == ">"
    if not (isinstance(divisor, promql.NumberLiteral) or is_guarded):
        yield f"{divisor.prettify()[:60]} may be 0"


def _of_topk(node: Any) -> Iterator[str]:
    """Its labels come and go: an alert on it flaps."""
    if isinstance(node, promql.AggregateExpr) and str(node.op) in ("topk", "bottomk"):
        yield "topk in a rule"


CHECKS: Final[tuple[Callable[[Any], Iterator[str]], ...]] = (
    _of_selectors,
    _of_rates,
    _of_quantiles,
    _of_aggregations,
    _of_ratios,
    _of_topk,
)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("aie_engine_nonsense > 0", "catalogue"),
        ("aie_engine_queue_seconds > 0", "catalogue"),
        ('aie_gpu_up{engine="x"}', "no label engine"),
        ("rate(aie_engine_kv_usage_ratio[5m])", "no counter"),
        ("max_over_time(aie_engine_requests_total[5m])", "a counter"),
        ("histogram_quantile(0.9, sum by (job, le) (aie_engine_queue_seconds_bucket))", "percentile"),
        ("sum by (engine) (aie_engine_up)", "job"),
        ("sum(aie_engine_up)", "job"),
        ("aie_agent_series / aie_agent_series_limit", "may be 0"),
        ("topk by (job) (1, aie_agent_series)", "topk"),
    ],
)
def test_what_is_wrong_is_found(query: str, words: str) -> None:
    assert any(words in text for text in complaints(query))


@EVERY_RULE
def test_expressions(rules: list[Rule]) -> None:
    for rule in rules:
        assert complaints(rule.table["expr"]) == [], rule.name


@EVERY_RULE
def test_queries_in_annotations(rules: list[Rule]) -> None:
    """They ask for one host and engine, whose `job` is known: only names, rates and ratios can be wrong."""
    for rule in rules:
        for query in rule.queries[1:]:
            wrong = [text for text in complaints(query) if "`job`" not in text]
            assert wrong == [], rule.name
            assert "instance=" in query or "aie_agent_info" in query


def test_queries_in_annotations_are_found() -> None:
    for rule in ALERT_RULES:
        texts = "".join(rule.table["annotations"].values())
        assert len(rule.queries) - 1 == len(re.findall(r"\bquery\b", texts)), rule.name


@EVERY_RULE
def test_names_of_recorded_series(rules: list[Rule]) -> None:
    """level:metric:operations, where the level is the labels of what comes out."""
    for rule in rules:
        if "record" in rule.table:
            level, metric, operations = rule.name.split(":")
            assert set(level.split("_")) <= {"job", "instance", "engine", "model", "device", "outcome"}
            assert level.startswith("job")
            assert metric.startswith("aie_")
            assert operations
            for node in nodes(rule.table["expr"]):
                if isinstance(node, promql.AggregateExpr):
                    assert [label for label in node.modifier.labels if label != "le"] == level.split("_"), rule.name


@EVERY_ALERT
def test_labels_and_annotations(rules: list[Rule]) -> None:
    for rule in rules:
        labels, annotations = rule.table["labels"], rule.table["annotations"]
        assert labels.keys() >= {"severity", "component", "action"}, rule.name
        assert labels["severity"] in SEVERITIES or "{{" in labels["severity"], rule.name
        assert annotations.keys() == {"summary", "description", "runbook_url"}, rule.name
        assert rule.name.startswith("Aie")
        assert "for" in rule.table, rule.name
        page = "{{ $labels.cause }}" if rule.name.startswith("AieFinding") else rule.name
        assert f"/runbooks/{page}" in annotations["runbook_url"], rule.name


@EVERY_ALERT
def test_an_alert_about_absence_waits_for_two_scrapes(rules: list[Rule]) -> None:
    for rule in rules:
        if "absent(" in rule.table["expr"] or rule.name.endswith("Absent"):
            assert duration_s(rule.table["for"]) >= 2 * SLOWEST_SCRAPE_S, rule.name


def test_runbooks() -> None:
    pages = aie_alerts.pages()
    for name in NAMES:
        text = pages[name].read_text()
        assert re.match(rf"# {name}\n\n[A-Z][^\n]+\?\n\n## ", text), name  # the question that the alert answers comes first
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(HEADINGS), name
        for link in re.findall(r"\]\(([^)]+)\)", text):
            assert (pages[name].parent / link).exists(), f"{name}: {link}"


def test_metrics_that_pages_name() -> None:
    for name, path in aie_alerts.pages().items():
        for metric in re.findall(r"`(?:rate\()?(aie_(?:agent|cuda|drift|engine|gpu|host|leak|process)_\w+)", path.read_text()):
            assert kind_of(metric) is not None or metric in CATALOGUE, f"{name}: {metric}"


def test_every_runbook_is_of_an_alert() -> None:
    of_alerts = {name for name in aie_alerts.pages() if name.startswith("Aie")}
    assert of_alerts == set(NAMES)


def said_above(text: str) -> Iterator[tuple[str, str]]:
    """Each alert of a rule file, and the comments right above it and above its group, in one line."""
    of_group = comment = ""
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped.startswith("#"):
            comment += stripped.removeprefix("#")
            continue
        if stripped.startswith("- name:"):
            of_group = comment
        if stripped.startswith("- alert:"):
            yield stripped.removeprefix("- alert:").strip(), f"{of_group} {comment}"
        if stripped and stripped != "rules:":
            comment = ""


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_false_alarms_are_stated(path: Path) -> None:
    """Above each alert, above its group, or, of generated rules, at the head of the file."""
    text = path.read_text()
    is_generated = text.startswith("# Generated")
    head = text.partition("groups:")[0] if is_generated else ""
    found = list(said_above(text))
    assert found
    for name, comments in found:
        assert "False alarms:" in " ".join(f"{head} {comments}".replace("#", " ").split()), name
