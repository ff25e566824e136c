"""What is wrong with a page that is read well: complaints that its readers have filed against engines, looked for on every page.

Each rule looks at one page and nothing else, and speaks only of what cannot be otherwise, so on a page of a healthy engine of a
version that `docs/engines.md` lists the false-alarm rate is 0: the tests hold every recorded page against every rule. Counters that
are compared with each other may be read a moment apart, hence `SLACK`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import islice, pairwise
from typing import Final, NamedTuple

from aie_agent.sources.pages.engines import ENGINES
from aie_agent.sources.pages.mapping import declared_kind
from aie_agent.sources.pages.rows import EngineMap, Expected, Row, exposed_names
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.exposition import Page, PageSample, Tags

RULES: Final = ("missing_family", "duplicate_pid", "gauge_for_counter", "counter_for_gauge", "totals_disagree", "undeclared")
SLACK: Final = 10.0
"""Requests by which two counts of the same thing may differ: those that ended while the page was written."""

SLACK_TOKENS: Final = 100.0
SLACK_SHARE: Final = 0.01
"""By how much two counts of the same tokens may differ, whichever is more."""

MAX_FINDINGS: Final = 50
"""Most findings that are kept of one page."""

_MOST_NAMED: Final = 3
_MOST_CHARS: Final = 200
_OUR_PREFIX: Final = "aie_engine_"
_RECEIVED: Final = ("aie_engine_requests_received_total", "aie_engine_requests_total")


class LintFinding(NamedTuple):
    """One rule that a page breaks, the family by which it does, and what it means."""

    rule: str
    family: str
    text: str


class _Facts(NamedTuple):
    """What the rules look at: the page, the names of its lines, and its sums in aie's names."""

    engine: EngineMap | None
    page: Page
    names: Set[str]
    ours: Mapping[str, float]


def lint(engine: EngineMap | None, page: Page, names: Set[str], mapped: Page) -> list[LintFinding]:
    """What is wrong with `page`, the lines of which have `names`. `engine` is None for a page in aie's own names; `mapped` is what
    the page says in them."""
    ours: dict[str, float] = {}
    for sample in mapped.samples:
        ours[sample.name] = ours.get(sample.name, 0.0) + sample.value
    facts = _Facts(engine, page, names, ours)
    rules = (_missing, _kinds_that_lie, _hit_rates, _outcomes, _same_counts, _vanished, _broken_histograms, _pids, _undeclared)
    found = islice((finding for rule in rules for finding in rule(facts)), MAX_FINDINGS)
    return [LintFinding(rule, family[:_MOST_CHARS], text[:_MOST_CHARS]) for rule, family, text in found]


def _missing(facts: _Facts) -> Iterator[LintFinding]:
    """vllm#8612, #7782: a page without its families, since the process that has them is not the one that serves it."""
    rows = facts.engine.rows if facts.engine is not None else ()
    served = any(facts.ours.get(name, 0.0) > 0 for name in ("aie_engine_requests_total", "aie_engine_generation_tokens_total"))
    wanted = {Expected.ALWAYS, Expected.ONCE_SERVED} if served else {Expected.ALWAYS}
    for row in rows:
        families = [family for term in row.terms for family in term.families]
        if row.expected in wanted and not any(_on_page(family, row, facts) for family in families):
            text = f"every page of this engine has it{' once a request was served' if row.expected is Expected.ONCE_SERVED else ''}"
            yield LintFinding("missing_family", families[0], f"{text}: is this the page of the process that serves?")


def _on_page(family: str, row: Row, facts: _Facts) -> bool:
    names = exposed_names(family, row.exposed_kind(row.terms[0]))
    return family in facts.page.kinds or any(name in facts.names or name in facts.page.kinds for name in names)


def _kinds_that_lie(facts: _Facts) -> Iterator[LintFinding]:
    kinds = _OURS if facts.engine is None else _MEANT[facts.engine.kind]
    for name in sorted(facts.names):
        declared = declared_kind(name, facts.page.kinds)
        meant = kinds.get(name)
        if declared == "gauge" and (meant is Kind.COUNTER or (meant is None and _is_foreign_total(name, facts.engine))):
            yield LintFinding(
                "gauge_for_counter", name, "a total that only rises, declared a gauge: rates of it are not told from resets"
            )
        elif declared == "counter" and meant is Kind.GAUGE:
            yield LintFinding(
                "counter_for_gauge", name, "a level that rises and falls, declared a counter: every fall reads as a restart"
            )


def _is_foreign_total(name: str, engine: EngineMap | None) -> bool:
    return engine is not None and name.startswith(engine.prefixes) and name.endswith("_total")


def _kinds_of(engine: EngineMap) -> dict[str, Kind]:
    """The kinds of the lines of counters and gauges that the map knows."""
    terms = [(term, row.exposed_kind(term)) for row in engine.rows for term in row.terms]
    return {
        name: kind
        for term, kind in terms
        if kind is not Kind.HISTOGRAM
        for family in term.families
        for name in exposed_names(family, kind)
    }


_OURS: Final = {metric.name: metric.kind for metric in CATALOGUE.values()}
_MEANT: Final = {engine.kind: _kinds_of(engine) for engine in ENGINES}


def _tells_good_ends(engine: EngineMap) -> bool:
    rows = (row for row in engine.rows if row.metric == "aie_engine_requests_total")
    return any(row.outcome == "ok" or (row.outcomes is not None and "ok" in row.outcomes.values.values()) for row in rows)


_TELL_GOOD_ENDS: Final = {engine.kind for engine in ENGINES if _tells_good_ends(engine)}


def _hit_rates(facts: _Facts) -> Iterator[LintFinding]:
    """sglang#26608, LMCache#1260: a hit rate that each batch overwrites says nothing of mixed traffic. A rate of 0 is passed over:
    the counters may appear with the first hit."""
    for rate in facts.engine.hit_rates if facts.engine is not None else ():
        known = facts.names | facts.page.kinds.keys()
        has_counters = any(family in known or f"{family}_total" in known for family in rate.counters)
        if not has_counters and any(sample.value > 0 for sample in facts.page.samples if sample.name == rate.gauge):
            yield LintFinding(
                "gauge_for_counter", rate.gauge, "a hit rate without counters of queries and hits: of one batch, not of a window"
            )


def _outcomes(facts: _Facts) -> Iterator[LintFinding]:
    received, ended = (facts.ours.get(name) for name in _RECEIVED)
    if received is not None and ended is not None and ended > received + SLACK:
        text = f"{ended:.0f} requests ended, of {received:.0f} that were received"
        yield LintFinding("totals_disagree", _RECEIVED[1], text)


def _same_counts(facts: _Facts) -> Iterator[LintFinding]:
    for counter, histogram in facts.engine.same_count if facts.engine is not None else ():
        counted = _sum(facts.page.samples, exposed_names(counter, Kind.COUNTER))
        observed = _sum(facts.page.samples, (f"{histogram}_count",))
        if counted is not None and observed is not None and abs(counted - observed) > SLACK:
            yield LintFinding(
                "totals_disagree", counter, f"{counted:.0f}, and {histogram} has {observed:.0f} observations of the same requests"
            )


def _vanished(facts: _Facts) -> Iterator[LintFinding]:
    """vllm#55634, #31503: requests whose clients leave move the tokens and end in no outcome. Certain while nothing is under way:
    those that run have not ended yet. Where the page has the tokens of those that ended too, each that left is missed in them.
    An engine that counts none that ended well (SGLang: only the aborted ones) is not judged by the ends that it tells."""
    ours = facts.ours
    idle = ours.get("aie_engine_requests_running") == 0 and ours.get("aie_engine_requests_waiting") == 0
    if not idle:
        return
    tokens = ours.get("aie_engine_generation_tokens_total", 0.0)
    ended = ours.get("aie_engine_requests_total")
    if tokens > 0 and ended == 0 and (facts.engine is None or facts.engine.kind in _TELL_GOOD_ENDS):
        text = f"{tokens:.0f} tokens were generated, nothing is under way, and no request has ended: aborted ones are not counted"
        yield LintFinding("totals_disagree", "aie_engine_requests_total", text)
    for same in facts.engine.same_sum if facts.engine is not None else ():
        counted = _sum(facts.page.samples, exposed_names(same.counter, Kind.COUNTER))
        observed = _sum(facts.page.samples, (f"{same.histogram}_sum",))
        counts_so = any(name in facts.names for family in same.needs for name in exposed_names(family, Kind.COUNTER))
        if counts_so and counted is not None and observed is not None and counted - observed > _slack_tokens(counted):
            text = f"{counted:.0f} tokens, and {observed:.0f} in requests that ended, while nothing is under way: aborted ones"
            yield LintFinding("totals_disagree", same.counter, f"{text} are not counted")


def _slack_tokens(counted: float) -> float:
    return max(SLACK_TOKENS, SLACK_SHARE * counted)


def _sum(samples: Iterable[PageSample], names: tuple[str, ...]) -> float | None:
    values = [sample.value for sample in samples if sample.name in names]
    return sum(values) if values else None


def _broken_histograms(facts: _Facts) -> Iterator[LintFinding]:
    """Histograms of the engine that contradict themselves: buckets that fall, or that end elsewhere than the count."""
    buckets: dict[tuple[str, Tags], list[tuple[float, float]]] = {}
    counts: dict[tuple[str, Tags], float] = {}
    for sample in _of_engine(facts):
        if sample.name.endswith("_bucket"):
            tags = tuple(tag for tag in sample.tags if tag[0] != "le")
            le = dict(sample.tags).get("le", "")
            buckets.setdefault((sample.name.removesuffix("_bucket"), tags), []).append((_float(le), sample.value))
        elif sample.name.endswith("_count"):
            counts[sample.name.removesuffix("_count"), sample.tags] = sample.value
    wrong = set()
    for key, of_series in buckets.items():
        of_series.sort()
        falls = any(after[1] < before[1] for before, after in pairwise(of_series))
        if falls or of_series[-1][0] != float("inf") or counts.get(key, of_series[-1][1]) != of_series[-1][1]:
            wrong.add(key[0])
    for family in sorted(wrong):
        yield LintFinding("totals_disagree", family, "a histogram whose buckets fall, or do not end at its count")


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0  # sorts first, and so is not the last bound


def _pids(facts: _Facts) -> Iterator[LintFinding]:
    """vllm PR#28792: one level, reported by each of several processes, of which one knows it."""
    seen: dict[tuple[str, Tags], set[str]] = {}
    for sample in _of_engine(facts):
        pid = next((value for name, value in sample.tags if name == "pid"), None)
        if pid is not None:
            seen.setdefault((sample.name, tuple(tag for tag in sample.tags if tag[0] != "pid")), set()).add(pid)
    most: dict[str, int] = {}
    for (name, _), pids in seen.items():
        most[name] = max(most.get(name, 0), len(pids))
    for name, pids_of_one in sorted(most.items()):
        if pids_of_one > 1:
            yield LintFinding(
                "duplicate_pid", name, f"{pids_of_one} processes report one series: the highest is taken, a sum would be wrong"
            )


def _undeclared(facts: _Facts) -> Iterator[LintFinding]:
    prefixes = facts.engine.prefixes if facts.engine is not None else (_OUR_PREFIX,)
    bare = sorted(name for name in facts.names if name.startswith(prefixes) and declared_kind(name, facts.page.kinds) is None)
    if bare:
        more = f" and {len(bare) - _MOST_NAMED} more" if len(bare) > _MOST_NAMED else ""
        yield LintFinding("undeclared", bare[0], f"without a TYPE line: {', '.join(bare[:_MOST_NAMED])}{more}")


def _of_engine(facts: _Facts) -> Iterable[PageSample]:
    prefixes = facts.engine.prefixes if facts.engine is not None else (_OUR_PREFIX,)
    return (sample for sample in facts.page.samples if sample.name.startswith(prefixes))
