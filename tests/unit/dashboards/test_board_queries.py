"""What the boards ask: PromQL that parses, metrics and labels of the catalogue, and none of the known ways to ask wrongly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import promql_parser as promql
import pytest

from aie_agent.analysis.host_causes import cpu, memory
from aie_telemetry.catalogue import CATALOGUE, Kind, Metric
from dashboards import promql as forms
from dashboards.boards import BOARDS, host, hot
from dashboards.boards import memory as memory_board
from dashboards.boards.slo import burn, good
from dashboards.objectives import OBJECTIVES
from dashboards.table import Board, Situation
from dashboards.variables import VARIABLES
from tests.fakes.alert_files import ALERT_RULES
from tests.fakes.board_files import CHOSEN, JSON_FILES, Asked, board, concrete, queries

SCRAPED: Final = frozenset({"job", "instance"})
"""Labels that Prometheus gives every series."""
OF_PROMETHEUS: Final = frozenset({"up"})
"""Metrics of its own."""
GUARDS: Final = {"max_over_time(up[1m] offset 4m)": "whether Prometheus read anything at all five minutes ago"}
"""What may follow `and on ()`, and what it says: of no job, so that it mixes none. All or nothing of the left side passes."""
_PARTS: Final = ("_bucket", "_sum", "_count")
_RATES: Final = frozenset({"rate", "increase"})
_FIRST: Final = "min_over_time"

QUERIES: Final = pytest.mark.parametrize("asked", queries(), ids=str)


def metric_of(name: str) -> Metric | None:
    """The row of the catalogue whose series are called so."""
    for suffix in _PARTS:
        found = CATALOGUE.get(name.removesuffix(suffix))
        if name.endswith(suffix) and found is not None and found.kind is Kind.HISTOGRAM:
            return found
    found = CATALOGUE.get(name)
    return None if found is not None and found.kind is Kind.HISTOGRAM else found


def nodes(expr: str) -> list[Any]:
    """All nodes of a query, outermost first. Raises ValueError where it is no PromQL."""
    found: list[Any] = []
    promql.walk(promql.parse(expr), found.append)
    return found


def of_type(expr: str, *types: type) -> Iterator[Any]:
    """Its nodes of some types."""
    return (node for node in nodes(expr) if isinstance(node, types))


def complaints(expr: str) -> list[str]:
    """What is wrong with a query, in words."""
    return [complaint for check in CHECKS for complaint in check(expr)]


def _unknown_names(expr: str) -> Iterator[str]:
    for selector in of_type(expr, promql.VectorSelector):
        metric = metric_of(selector.name)
        if metric is None:
            if selector.name not in OF_PROMETHEUS:
                yield f"{selector.name} is not in the catalogue"
            continue
        labels = SCRAPED | set(metric.labels) | ({"le"} if selector.name.endswith("_bucket") else set())
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels:
                yield f"{selector.name} has no label {matcher.name}"


def _wrong_rates(expr: str) -> Iterator[str]:
    """A rate is of what only rises, and what only rises is looked at by its rate; or by what it began with, beside its rise."""
    calls = [
        (call.func.name, argument.vector_selector)
        for call in of_type(expr, promql.Call)
        for argument in call.args
        if isinstance(argument, promql.MatrixSelector)
    ]
    rated = {selector.prettify() for name, selector in calls if name in _RATES}
    for name, selector in calls:
        if name in _RATES and not _rises(selector.name):
            yield f"{name} of {selector.name}, which is a gauge"
        if name not in _RATES and _rises(selector.name) and (name != _FIRST or selector.prettify() not in rated):
            yield f"{name} of {selector.name}, which is a counter"
    within = {selector.prettify() for _, selector in calls}
    for selector in of_type(expr, promql.VectorSelector):
        # A count of starts is small enough to be read.
        plain = selector.prettify() in within or selector.name == "aie_agent_bpf_starts_total"
        if _rises(selector.name) and not plain:
            yield f"{selector.name} is a counter, and no rate is taken"


def _rises(name: str) -> bool:
    metric = metric_of(name)
    return metric is not None and metric.kind in (Kind.COUNTER, Kind.HISTOGRAM)


def _lost_jobs(expr: str) -> Iterator[str]:
    """An engine that is scraped twice is two jobs, which are never added up."""
    for node in of_type(expr, promql.AggregateExpr):
        if node.modifier is None:
            if not _ranks(node):
                yield f"no `by`: {node.prettify()}"
        elif node.modifier.type != promql.AggModifierType.By or "job" not in node.modifier.labels:
            yield f"job is lost: {node.prettify()}"
    for node in of_type(expr, promql.BinaryExpr):
        matching = node.modifier.matching if node.modifier is not None else None
        if matching is not None and "job" not in matching.labels and not _guarded(node):
            yield f"jobs are mixed: {node.prettify()}"


def _guarded(node: Any) -> bool:
    """Whether it only asks a guard."""
    return _own_operator(node) == " and on () " and node.rhs.prettify() in GUARDS


def _ranks(node: Any) -> bool:
    """topk and bottomk take some of what is there, and add nothing up."""
    return node.param is not None and node.prettify().lstrip().startswith(("topk", "bottomk"))


def _wrong_quantiles(expr: str) -> Iterator[str]:
    """Over rates of buckets, which are added up: never a mean of percentiles, or of means."""
    for call in of_type(expr, promql.Call):
        if call.func.name == "histogram_quantile":
            inner = call.args[1]
            rates = list(of_type(inner.prettify(), promql.Call)) if isinstance(inner, promql.AggregateExpr) else []
            if not rates or rates[0].func.name != "rate" or "le" not in inner.modifier.labels:
                yield f"not a sum of rates of buckets by le: {inner.prettify()}"
    for node in of_type(expr, promql.AggregateExpr):
        text = node.prettify().lstrip()
        if text.startswith("avg") and any(
            "_sum" in each.name or "_bucket" in each.name for each in of_type(text, promql.VectorSelector)
        ):
            yield f"a mean of means: {text}"


def _added_bounds(expr: str) -> Iterator[str]:
    """Each kind of engine has bounds of its own: their buckets by `le` are of one engine, or counts fall that cannot."""
    for node in of_type(expr, promql.AggregateExpr):
        if node.modifier is None or "le" not in node.modifier.labels or "engine" in node.modifier.labels:
            continue
        metrics = {metric_of(each.name) for each in of_type(node.prettify(), promql.VectorSelector)}
        if any(metric is not None and "engine" in metric.labels for metric in metrics):
            yield f"buckets of engines are added up: {node.prettify()}"


def _unguarded_shares(expr: str) -> Iterator[str]:
    """Nothing divided by nothing is NaN, which looks like an answer."""
    for node in of_type(expr, promql.BinaryExpr):
        if " / " not in _own_operator(node):
            continue
        whole = node.rhs.expr if isinstance(node.rhs, promql.ParenExpr) else node.rhs
        if isinstance(whole, promql.NumberLiteral):
            continue
        guarded = isinstance(whole, promql.BinaryExpr) and " > " in _own_operator(whole)
        if not guarded or not isinstance(whole.rhs, promql.NumberLiteral) or whole.rhs.val != 0:
            yield f"what if it is 0? {node.rhs.prettify()}"


def _own_operator(node: Any) -> str:
    """The text between the two sides of a binary expression: the parser tells the operator by no name."""
    left, right, whole = (" ".join(each.prettify().split()) for each in (node.lhs, node.rhs, node))
    return f" {whole.removeprefix(left).removesuffix(right).strip()} "


def _unscoped(expr: str) -> Iterator[str]:
    """Every series is of the jobs that are chosen, and of the instances; but what only tells which jobs, of these."""
    of_jobs = {
        selector.prettify()
        for node in of_type(expr, promql.BinaryExpr)
        if _own_operator(node).startswith(" and on (job) ")
        for selector in of_type(node.rhs.prettify(), promql.VectorSelector)
    }
    guards = {
        selector.prettify()
        for node in of_type(expr, promql.BinaryExpr)
        if _guarded(node)
        for selector in of_type(node.rhs.prettify(), promql.VectorSelector)
    }
    for selector in of_type(expr, promql.VectorSelector):
        if selector.prettify() in guards:
            continue
        matchers = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
        wide = selector.name in OF_PROMETHEUS or selector.prettify() in of_jobs
        for name in ("job",) if wide else ("job", "instance"):
            if matchers.get(name) != CHOSEN[name]:
                yield f"{selector.name} is not of the {name} that is chosen"


CHECKS: Final[tuple[Callable[[str], Iterator[str]], ...]] = (
    _unknown_names,
    _wrong_rates,
    _lost_jobs,
    _wrong_quantiles,
    _added_bounds,
    _unguarded_shares,
    _unscoped,
)


@QUERIES
def test_every_query_is_right(asked: Asked) -> None:
    assert complaints(concrete(asked.expr)) == []
    assert "$" not in concrete(asked.expr)


@pytest.mark.parametrize("table", BOARDS, ids=lambda table: table.name)
def test_every_variable_of_a_board_chooses_what_it_can(table: Board) -> None:
    """Where a metric has the label that a variable chooses by, no query passes over what is chosen."""
    chosen = {**CHOSEN, "engine": "an engine", "model": "a model", "gpu": "a GPU"}
    names = {variable.removeprefix("one_") for variable in table.variables} - SCRAPED
    for query in (query for panel in table.panels for query in panel.queries):
        for selector in of_type(concrete(query.expr, chosen), promql.VectorSelector):
            metric = metric_of(selector.name)
            matchers = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
            for name in names & set(metric.labels if metric is not None else ()):
                assert matchers.get(name) == chosen[name], (query.expr, selector.name, name)


def test_hot_spots_are_ten_in_order_the_worst_first() -> None:
    """The most of everything; but of those that idle, the least."""
    for panel in hot.HOT.panels:
        (query,) = panel.queries
        assert query.expr.startswith("sort(bottomk(10, " if panel.title.startswith("Idlest") else "sort_desc(topk(10, "), (
            panel.title
        )


@pytest.mark.parametrize("path", JSON_FILES, ids=lambda path: path.stem)
def test_marks_on_pictures_are_asked_for_rightly(path: Any) -> None:
    for annotation in board(path)["annotations"]["list"]:
        assert complaints(concrete(annotation["expr"])) == []


def test_jobs_are_asked_for_by_promql() -> None:
    found = nodes(concrete(VARIABLES["job"].query).removeprefix("query_result(").removesuffix(")"))
    names = [matcher.value for node in found if isinstance(node, promql.VectorSelector) for matcher in node.matchers.matchers]
    assert {name for each in (*names, "aie_agent_info") for name in each.split("|")} <= CATALOGUE.keys()


@pytest.mark.parametrize("row", [row for row in VARIABLES.values() if not row.regex], ids=lambda row: row.name)
def test_variables_ask_for_labels_that_are_there(row: Any) -> None:
    inner, _, label = concrete(row.query).removeprefix("label_values(").removesuffix(")").rpartition(", ")
    (selector,) = of_type(inner, promql.VectorSelector)
    names = [matcher.value for matcher in selector.matchers.matchers if matcher.name == "__name__"]
    asked = names[0] if names else selector.name
    found = [metric for name, metric in CATALOGUE.items() if re.fullmatch(asked, name)]
    assert len(found) >= len(asked.split("|"))
    assert any(label in SCRAPED | set(metric.labels) for metric in found)


def test_the_queries_are_of_raw_metrics() -> None:
    """A recording rule has a colon in its name; boards work without any."""
    names = {selector.name for asked in queries() for selector in of_type(concrete(asked.expr), promql.VectorSelector)}
    assert not [name for name in names if ":" in name]
    assert len(names) > 100, "they look at most of what there is"


_S: Final = 'job=~"aie", instance=~".+"'
_WRONG: Final = {
    "is not in the catalogue": f"rate(aie_engine_request_total{{{_S}}}[5m])",
    "has no label colour": f'aie_engine_up{{{_S}, colour="red"}}',
    "which is a gauge": f"rate(aie_engine_requests_running{{{_S}}}[5m])",
    "which is a counter": f"max_over_time(aie_engine_requests_total{{{_S}}}[5m])",
    "no rate is taken": f"sum by (job) (aie_engine_requests_total{{{_S}}})",
    "no `by`": f"sum(aie_engine_up{{{_S}}})",
    "job is lost": f"sum by (engine) (aie_engine_up{{{_S}}})",
    "jobs are mixed": f"aie_engine_up{{{_S}}} * on (engine) aie_engine_up{{{_S}}}",
    "not a sum of rates": f"histogram_quantile(0.9, sum by (job) (rate(aie_engine_step_seconds_bucket{{{_S}}}[5m])))",
    "buckets of engines are added up": f"sum by (job, le) (rate(aie_engine_step_seconds_bucket{{{_S}}}[5m]))",
    "a mean of means": f"avg by (job) (rate(aie_engine_step_seconds_sum{{{_S}}}[5m]))",
    "what if it is 0?": f"aie_gpu_memory_used_bytes{{{_S}}} / aie_gpu_memory_total_bytes{{{_S}}}",
    "is not of the job that is chosen": "aie_engine_up",
}


@pytest.mark.parametrize("complaint", _WRONG)
def test_each_check_finds_what_it_is_for(complaint: str) -> None:
    found = complaints(_WRONG[complaint])
    assert any(complaint in each for each in found), found


_UP: Final = f"aie_engine_up{{{_S}}}"
_GUARD: Final = next(iter(GUARDS))


def test_a_guard_mixes_no_jobs() -> None:
    assert complaints(f"{_UP} and on () {_GUARD}") == []


@pytest.mark.parametrize(
    "expr",
    [
        f"{_UP} and on () {_UP}",
        f"{_UP} unless on () {_GUARD}",
        f"{_UP} and on () max_over_time(up[1m])",
        f"{_UP} and on () ({_GUARD} or {_UP})",
        f"{_UP} * on () group_left () {_GUARD}",
    ],
)
def test_what_is_no_guard_mixes_them(expr: str) -> None:
    assert any("jobs are mixed" in each for each in complaints(expr))


@pytest.mark.parametrize("expr", ["sum by (job) rate(x)", "rate(aie_engine_up)", "a /", ""])
def test_what_is_no_promql_is_refused(expr: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words are the parser's
        nodes(expr)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_an_objective_is_measured_at_a_bound_that_its_histogram_has(objective: Any) -> None:
    metric = CATALOGUE[objective.metric]
    if objective.bounds_s:
        assert objective.bounds_s[0] in metric.buckets
    assert set(objective.good) | set(objective.bad) <= {"ok", "error", "cancelled", "timeout", "rejected"}
    assert 0 < objective.budget < 1
    for expr in (good(objective, "5m"), burn(objective, "5m")):
        assert complaints(concrete(expr)) == []


def test_a_bound_is_found_however_a_page_writes_it() -> None:
    """Prometheus 3 writes 1.0 for 1."""
    ttft = next(objective for objective in OBJECTIVES if objective.name == "ttft")
    selectors = list(of_type(concrete(good(ttft, "5m")), promql.VectorSelector))
    (bound, *_) = [matcher.value for matcher in selectors[0].matchers.matchers if matcher.name == "le"]
    assert set(bound.split("|")) == {"1", r"1\.0"}


def test_day_one_needs_nothing_but_a_page() -> None:
    """Panels that an agent fills which reads a page and nothing else: on these boards the most of them."""
    for name, least in (("overview", 0.5), ("slo", 1.0), ("engine", 0.9)):
        found = next(board_ for board_ in BOARDS if board_.name == name)
        plain = [panel for panel in found.panels if panel.situation is Situation.PLAIN]
        assert len(plain) >= least * len(found.panels), name


def test_thresholds_are_those_of_the_agent() -> None:
    assert (host.VERY_LOW_MEMORY, host.LOW_MEMORY) == (memory.VERY_LOW_SHARE, memory.LOW_SHARE)
    assert (host.STOLEN, host.THROTTLED) == (cpu.STEAL_SHARE, cpu.THROTTLED_SHARE)


def test_the_line_of_the_control_group_is_the_alert_s() -> None:
    rule = next(rule for rule in ALERT_RULES if rule.name == "AieMemoryNearlyFull")
    assert rule.table["expr"].startswith(f"aie_process_cgroup_memory_held_ratio > {memory_board.HELD}\n")


def test_forms() -> None:
    assert forms.by("", "x") == "sum by (job) (x)"
    assert forms.by("engine", "x", "max") == "max by (job, engine) (x)"
    assert forms.share("a", "b") == "a / (b > 0)"
    assert forms.of("m", forms.JOB) == 'm{job=~"$job"}'
    assert forms.top(3, "x") == "sort_desc(topk(3, x))"
    assert forms.among("a", "engine", "b > 0") == "a and on (job, engine) (b > 0)"
    assert forms.bottom(3, "x") == "sort(bottomk(3, x))"
    assert forms.quantile(0.5, "h", "engine", forms.JOB) == (
        'histogram_quantile(0.5, sum by (job, engine, le) (rate(h_bucket{job=~"$job"}[$__rate_interval])))'
    )
