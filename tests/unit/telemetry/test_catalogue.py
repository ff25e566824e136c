"""The naming rules of the catalogue, its document, and that nothing of ours uses a name that is not in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from aie_telemetry.catalogue import CATALOGUE, FAMILIES, OUTCOMES, RESERVED_PREFIX, Kind, Metric
from aie_telemetry.catalogue.markdown import markdown

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = {
    "aie_telemetry": ROOT / "telemetry",
    "aie_hooks": ROOT / "engine",
    "aie_engine": ROOT / "engine",
    "aie_ebpf": ROOT / "ebpf",
    "aie_agent": ROOT / "agent",
    "aie_top": ROOT / "tui",
}

GROUPS: Final = ("engine", "gpu", "cuda", "process", "host", "leak", "drift", "kernel", "finding", "agent", "hooks")
BASE_UNITS: Final = ("seconds", "bytes", "ratio", "celsius", "watts", "joules", "hertz")
UNBASED: Final = re.compile(
    r"_(?:ms|us|ns|milliseconds|microseconds|minutes|hours|kb|mb|gb|kib|mib|gib|percent|mhz|milliwatts|mj)(?:_|$)"
)
# A label has few values and they do not change with every request (DESIGN, section 2.1).
UNBOUNDED_LABELS: Final = frozenset(
    {"pid", "tid", "tgid", "prompt", "user", "customer", "client", "request", "trace_id", "kernel_name", "time"}
)
EXCEPTIONS: Final = {
    "aie_hooks_process": {"pid"},  # the hello line: read by the agent, never stored
}

METRICS: Final = pytest.mark.parametrize("metric", CATALOGUE.values(), ids=CATALOGUE)


@METRICS
def test_names(metric: Metric) -> None:
    assert re.fullmatch(r"aie_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
    assert metric.name.split("_")[1] in GROUPS
    assert metric.name.startswith(RESERVED_PREFIX)
    assert not UNBASED.search(metric.name)
    assert not metric.name.endswith(("_bucket", "_sum", "_count", "_created")) or metric.name == "aie_process_instances"
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)


@METRICS
def test_units_stand_in_the_name(metric: Metric) -> None:
    assert metric.unit
    stem = metric.name.removesuffix("_total")
    if metric.unit in BASE_UNITS:
        assert stem.endswith(f"_{metric.unit}")
    for unit in BASE_UNITS:
        assert not stem.endswith(f"_{unit}") or metric.unit == unit


@METRICS
def test_info_metrics_describe(metric: Metric) -> None:
    if metric.name.endswith("_info"):
        assert metric.kind is Kind.GAUGE
        assert metric.unit == "1"
        assert metric.labels
        assert metric.help.startswith("Always 1;")


@METRICS
def test_labels_are_few_and_bounded(metric: Metric) -> None:
    assert len(set(metric.labels)) == len(metric.labels) <= 8
    for label in metric.labels:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", label)
        assert label not in ("le", "job", "instance", "quantile")
    assert not (set(metric.labels) & UNBOUNDED_LABELS) - EXCEPTIONS.get(metric.name, set())


@METRICS
def test_buckets(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    lowest = float("-inf") if metric.name in SIGNED else 0
    assert all(lowest < bound < float("inf") for bound in metric.buckets)
    if metric.name in LATENCIES_FROM_1_MS:
        assert metric.buckets[0] <= 0.001


SIGNED: Final = ("aie_engine_first_token_logsumexp_nats",)
LATENCIES_FROM_1_MS: Final = (
    "aie_engine_time_to_first_token_seconds",
    "aie_engine_inter_token_seconds",
    "aie_engine_queue_seconds",
)


@METRICS
def test_help_is_a_sentence(metric: Metric) -> None:
    assert not metric.help[0].islower()
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert "|" not in metric.help, "the Markdown table would break"


def test_hit_rates_are_two_counters() -> None:
    for name in CATALOGUE:
        assert not name.endswith(("_hit_ratio", "_hit_rate"))


def test_outcomes() -> None:
    assert OUTCOMES == ("ok", "error", "cancelled", "timeout", "rejected")
    for outcome in OUTCOMES:
        assert outcome in CATALOGUE["aie_engine_requests_total"].help


def test_no_metric_is_lost_between_its_family_and_the_table() -> None:
    assert [metric.name for _, family in FAMILIES for metric in family] == list(CATALOGUE)


def test_the_document_is_current() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert text == markdown(), "run python -m aie_telemetry.catalogue > docs/metrics.md"


def _names_used(path: Path) -> Iterator[tuple[str, int]]:
    """Every string in a source file that looks like a metric of ours, docstrings apart, with its line."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        if is_text and re.fullmatch(r"aie_[a-z0-9_]+", node.value):
            yield node.value, node.lineno


# Parts of names, which a program completes or compares with.
PREFIXES: Final = frozenset({"aie_", "aie_gpu_memory_", *(f"aie_{family}_" for family in GROUPS)})
# Names of C in the stand-in library for NVML.
SYMBOLS: Final = frozenset({"aie_stand_in_attach", "aie_config", "aie_state"})


def test_no_source_uses_a_name_that_is_not_in_the_catalogue() -> None:
    unknown = []
    for package, folder in PACKAGES.items():
        for path in sorted((folder / package).rglob("*.py")):
            for name, line in _names_used(path):
                histogram = CATALOGUE.get(re.sub(r"_(?:bucket|sum|count)$", "", name))
                is_part = histogram is not None and histogram.kind is Kind.HISTOGRAM
                if name not in CATALOGUE and name not in PACKAGES.keys() | PREFIXES | SYMBOLS and not is_part:
                    unknown.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert unknown == []


def test_the_scan_sees_names(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text('"""aie_doc_total"""\nx = ["aie_engine_nonsense"]\ndef f(y="aie_y_total"):\n    "aie_z_total"\n')
    assert sorted(name for name, _ in _names_used(source)) == ["aie_engine_nonsense", "aie_y_total"]
