"""From an engine's page in its own names to a page in aie's.

What comes out is a page again, so that all that is checked of our own engine's page is checked of every other one too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aie_agent.progress import PageSigns
from aie_agent.sources.monotonic import MonotonicSum
from aie_agent.sources.pages.outcomes import Beginnings
from aie_agent.sources.pages.replicas import Numbers, Slot, Sums, begun_anew, contradictory, unlike
from aie_agent.sources.pages.rows import HISTOGRAM_PARTS, EngineMap, Fold, Row, Term, exposed_names
from aie_agent.sources.pages.signs import signs_of
from aie_agent.sources.scrape_page import MAX_SERIES, length
from aie_agent.sources.statsd_reasons import Reason
from aie_agent.sources.statsd_series import MAX_TEXT
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.exposition import MemoBudget, Page, PageSample, Tags, number

MAX_NUMBERS: Final = 20_000
"""Most lines of a page that are mapped: 64 replicas with 300 lines each."""
_MEMO_BYTES: Final = 4 << 20
_ENTRY_BYTES: Final = 300
_TARGET_BYTES: Final = 900
_SHARDS: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "pid"})
"""Labels of parts of one replica: each of them sees all of its requests, so they must not be added up. Of processes (`pid`) that
report one gauge all but one say 0 or what was (vllm#28792)."""

_NOT_REPLICAS: Final = _SHARDS | {"model_name", "model", "le"}

_START: Final = "aie_engine_start_time_seconds"
_NO_MODEL: Final[Tags] = (("model", ""),)

_NAMES_OF_KINDS: Final = {"counter": Kind.COUNTER, "gauge": Kind.GAUGE, "histogram": Kind.HISTOGRAM}
_NO_KIND: Final = ("untyped", "unknown")


@dataclass(slots=True)
class Mapped:
    """What a page says in aie's names and of its progress, which counters it does not have yet, and how many of its samples were
    refused, by reason."""

    page: Page
    begun: list[PageSample] = field(default_factory=list)
    signs: PageSigns = field(default_factory=PageSigns)
    refused: Counter[str] = field(default_factory=Counter)


class _Use(NamedTuple):
    """What a line with a certain name is: one part of a term of a row."""

    row: int
    term: int
    part: str  # "", or a suffix of a histogram's lines


class _Target(NamedTuple):
    slot: Slot
    replica: Tags


_Differences = dict[tuple[int, str, Tags], tuple[float, float]]
"""Of each number that is a difference what it was taken from, and what it was."""


class _Plan(NamedTuple):
    """What is to be done with the lines of each name, on a page with certain families."""

    uses: dict[str, list[_Use]]
    conflicts: Set[str]  # names of lines that are declared to be of another kind


class PageMapper:
    """Maps pages of one endpoint. Remembers what each line means, since a page repeats all but its numbers."""

    def __init__(self, engine: EngineMap, budget: MemoBudget | None = None) -> None:
        """What is remembered is bounded by 4 MiB and `budget`."""
        self._map = engine
        self._budget = budget or MemoBudget(_MEMO_BYTES)
        self._memo_bytes = 0
        self._memo_full = False
        self._plan = _Plan({}, set())
        self._seen: tuple[Set[str], dict[str, str]] | None = None
        self._memo: dict[tuple[str, Tags], list[_Target] | str] = {}
        self._sums: dict[Slot, MonotonicSum[Tags]] = {}
        self._differences: _Differences = {}
        self._beginnings = Beginnings(engine)

    def forget(self) -> None:
        """Gives up what it remembers of lines; not what totals stood at."""
        self._memo.clear()
        self._budget.give(self._memo_bytes)
        self._memo_bytes, self._memo_full = 0, False

    def map(self, page: Page, names: Set[str]) -> Mapped:
        """`names` are those of the lines of `page`. Raises nothing.

        Reasons: "kind_conflict" for a family that the page declares to be what it cannot be, "unknown_outcome", "duplicate",
        "not_finite", "series_too_long", "series_limit", and "bad_histogram" where replicas have other buckets.
        """
        if self._memo_full:
            self.forget()
        if self._seen != (names, page.kinds):
            self._plan = _plan(self._map, names, page.kinds)
            self._seen = (names, page.kinds)
            self.forget()
        mapped = Mapped(Page({}, [], page.bad_lines, page.unread_lines))
        numbers, broken = self._numbers(page.samples, mapped.refused)
        samples: dict[tuple[str, Tags], float] = {}
        self._sums = {slot: self._sums.get(slot) or MonotonicSum() for slot in self._to_add_up(numbers)}
        for index, of_row in sorted(numbers.items()):
            bad = broken.get(index, set()) | unlike(of_row) | contradictory(of_row, self._sums)
            if bad:
                mapped.refused["bad_histogram"] += len(bad)
            _say(self._map.rows[index], of_row, bad, self._sums, samples, self._differences)
        started_s = samples.pop((_START, _NO_MODEL), None)
        models = {value for _, tags in samples for label, value in tags if label == "model"}
        if started_s is not None:  # of the process: no label of a model is on it, and all of them began with it
            samples |= {(_START, (("model", model),)): started_s for model in models}
        mapped.page.samples.extend(_infos(self._map, page.samples, models))
        mapped.page.samples.extend(PageSample(name, tags, value) for (name, tags), value in samples.items())
        if Reason.KIND_CONFLICT not in mapped.refused:
            is_whole = not (mapped.refused or page.bad_lines or page.unread_lines)
            mapped.begun = self._beginnings.of(samples, is_whole=is_whole)
        mapped.signs = signs_of(self._map, numbers, page.samples)
        return mapped

    def _to_add_up(self, numbers: dict[int, Numbers]) -> Iterator[Slot]:
        """The totals that have, or had, several replicas: one that is gone or begins anew must not make their sum fall."""
        for index, of_row in numbers.items():
            if CATALOGUE[self._map.rows[index].metric].kind is not Kind.GAUGE:
                for slot, of_replicas in of_row.items():
                    if (len(of_replicas) > 1 or slot in self._sums) and all(map(math.isfinite, of_replicas.values())):
                        yield slot

    def _numbers(self, samples: Iterable[PageSample], refused: Counter[str]) -> tuple[dict[int, Numbers], dict[int, set[Tags]]]:
        """The numbers of each row by replica, and its histograms of which a line came twice."""
        numbers: dict[int, Numbers] = {}
        broken: dict[int, set[Tags]] = {}
        seen: set[tuple[str, Tags]] = set()
        series: set[tuple[int, Tags]] = set()
        uses, conflicts = self._plan.uses, self._plan.conflicts
        for sample in samples:
            if sample.name not in uses:
                if sample.name in conflicts:
                    refused[Reason.KIND_CONFLICT] += 1
                continue
            key = (sample.name, sample.tags)
            targets = self._memo.get(key)
            if targets is None:
                targets = self._remember(key)
            if isinstance(targets, str):
                refused[targets] += 1
                continue
            is_double = key in seen
            if len(seen) >= MAX_NUMBERS and not is_double:
                refused[Reason.SERIES_LIMIT] += 1
                continue
            seen.add(key)
            for slot, replica in targets:
                if is_double and slot.is_scalar:
                    refused["duplicate"] += 1
                elif is_double:
                    broken.setdefault(slot.row, set()).add(slot.series)
                elif slot.is_scalar and not math.isfinite(sample.value):
                    refused["not_finite"] += 1
                else:
                    of_replicas = _room(numbers, slot, series)
                    if of_replicas is None:
                        refused[Reason.SERIES_LIMIT] += 1
                        continue
                    # Of a replica's shards the one that has seen most; NaN stays, and makes the histogram a bad one.
                    before = of_replicas.get(replica)
                    of_replicas[replica] = sample.value if before is None or not sample.value <= before else before
        return numbers, broken

    def _remember(self, key: tuple[str, Tags]) -> list[_Target] | str:
        name, tags = key
        chars = length(name, tags)
        if chars > MAX_TEXT:
            return Reason.SERIES_TOO_LONG
        targets = _targets(self._map, self._plan.uses[name], dict(tags))
        size = _ENTRY_BYTES + 2 * chars + (0 if isinstance(targets, str) else _TARGET_BYTES * len(targets))
        self._memo_full = self._memo_full or self._memo_bytes + size > _MEMO_BYTES or not self._budget.take(size)
        if not self._memo_full:
            self._memo_bytes += size
            self._memo[key] = targets
        return targets


def _room(numbers: dict[int, Numbers], slot: Slot, series: set[tuple[int, Tags]]) -> dict[Tags, float] | None:
    """Where the numbers of a slot are put; None where the page has more series than are taken."""
    of_row = numbers.setdefault(slot.row, {})
    of_replicas = of_row.get(slot)
    if of_replicas is None:
        key = (slot.row, slot.series)
        if key not in series:
            if len(series) >= MAX_SERIES:
                return None
            series.add(key)
        of_replicas = of_row[slot] = {}
    return of_replicas


def _plan(engine: EngineMap, names: Set[str], kinds: dict[str, str]) -> _Plan:
    uses: dict[str, list[_Use]] = {}
    conflicts: set[str] = set()
    for index, row in enumerate(engine.rows):
        if any(_is_there(family, names) for family in row.unless) or not all(_is_there(family, names) for family in row.needs):
            continue
        lines = [_lines_of(row, term, names) for term in row.terms]
        if not all(lines):
            continue
        wrong = [name for term, of_term in zip(row.terms, lines, strict=True) for name in of_term if _lies(name, kinds, row, term)]
        if wrong:
            conflicts.update(wrong)
            continue
        for term_index, (term, of_term) in enumerate(zip(row.terms, lines, strict=True)):
            for name, part in of_term.items():
                uses.setdefault(name, []).append(_Use(index, term_index, "" if term.observed_total else part))
    return _Plan(uses, conflicts)


def _is_there(family: str, names: Set[str]) -> bool:
    return any(family + suffix in names for suffix in ("", "_total", *HISTOGRAM_PARTS))


def _lines_of(row: Row, term: Term, names: Set[str]) -> dict[str, str]:
    """The names of the lines that say `term`, with the part of a histogram that each is; empty where the page has none."""
    kind = row.exposed_kind(term)
    for family in term.families:
        found = [name for name in exposed_names(family, kind) if name in names]
        if found and term.observed_total:
            return {family + "_sum": "_sum"} if family + "_sum" in names else {}
        if found and kind is Kind.HISTOGRAM:
            return {name: name.removeprefix(family) for name in found}
        if found:
            return {found[0]: ""}
    return {}


def _lies(name: str, kinds: dict[str, str], row: Row, term: Term) -> bool:
    """Whether the page declares the family of the line `name` to be something else than it is."""
    declared = declared_kind(name, kinds)
    return declared is not None and declared not in _NO_KIND and _NAMES_OF_KINDS.get(declared) is not row.exposed_kind(term)


def declared_kind(name: str, kinds: dict[str, str]) -> str | None:
    """What the page declares the family of a line to be; None where it does not."""
    if name in kinds:
        return kinds[name]
    for suffix in (*HISTOGRAM_PARTS, "_total", "_created"):
        if name.endswith(suffix) and (kind := kinds.get(name.removesuffix(suffix))) is not None:
            return kind
    return None


def _targets(engine: EngineMap, uses: Iterable[_Use], labels: dict[str, str]) -> list[_Target] | str:
    """What a line with these labels is for, or the reason why that cannot be told."""
    targets = []
    for use in uses:
        row = engine.rows[use.row]
        where = row.terms[use.term].where
        if where and labels.get(where[0], "") not in where[1:]:
            continue
        series = {"model": labels.get("model_name") or labels.get("model", "")}
        outcome = row.outcome if row.outcomes is None else row.outcomes.of(labels.get(row.outcomes.label, ""))
        if outcome is not None:
            series["outcome"] = outcome
        elif row.outcomes is not None:
            return "unknown_outcome"
        ours = series | ({"le": _bound(labels.get("le", ""), row.divide_by)} if use.part == "_bucket" else {})
        slot = Slot(use.row, use.term, row.metric + use.part, _sorted(ours), _sorted(series), not use.part)
        targets.append(_Target(slot, tuple(pair for pair in labels.items() if pair[0] not in _NOT_REPLICAS)))
    return targets


def _sorted(labels: dict[str, str]) -> Tags:
    return tuple(sorted(labels.items()))


def _bound(le: str, divide_by: float) -> str:
    """A bucket's bound in aie's unit. What is no number stays, and makes the histogram a bad one."""
    if divide_by == 1.0:
        return le
    try:
        return number(float(le) / divide_by)
    except ValueError:
        return le


def _say(
    row: Row,
    numbers: Numbers,
    bad: Set[Tags],
    sums: Sums,
    samples: dict[tuple[str, Tags], float],
    differences: _Differences,
) -> None:
    """Adds what `row` says to `samples`."""
    anew = begun_anew(numbers, sums)
    terms: dict[tuple[str, Tags], dict[int, float]] = {}
    row_index = 0
    for slot, of_replicas in numbers.items():
        row_index = slot.row
        if slot.is_scalar or slot.series not in bad:
            values = of_replicas.values()
            if slot in sums:
                value = sums[slot].update(of_replicas, (), anew.get((slot.term, slot.series), ()))
            else:
                value = sum(values) if row.terms[slot.term].fold is Fold.SUM else max(values)
            terms.setdefault((slot.name, slot.tags), {})[slot.term] = value
    for key, of_terms in terms.items():
        if len(of_terms) == len(row.terms):
            if any(term.subtract for term in row.terms):
                total = _difference(row, of_terms, (row_index, *key), differences)
            else:
                total = math.prod(of_terms.values()) if row.product else sum(of_terms.values())
            is_count = key[0].endswith(("_bucket", "_count")) and key[0] != row.metric
            samples[key] = samples.get(key, 0.0) + (total if is_count else total / row.divide_by)


def _difference(row: Row, of_terms: Mapping[int, float], key: tuple[int, str, Tags], differences: _Differences) -> float:
    """The terms that are added less those that are subtracted. What is subtracted may be written a moment later than the rest,
    which is no step back: the difference falls only when what it is taken from does."""
    whole = sum(value for term, value in of_terms.items() if not row.terms[term].subtract)
    found = whole - sum(value for term, value in of_terms.items() if row.terms[term].subtract)
    before = differences.get(key)
    if before is not None and whole >= before[0]:
        found = max(found, before[1])
    differences[key] = (whole, found)
    return found


def _infos(engine: EngineMap, samples: Iterable[PageSample], models: Set[str]) -> Iterable[PageSample]:
    """`aie_engine_info` for each model: what kind of engine it is, and what the page says of it besides."""
    labels = {"kind": engine.kind, "version": "", "revision": "", "device": "", "dtype": ""}
    families = {info.family: info.labels for info in engine.info}
    if families:
        for sample in samples:
            for theirs, ours in families.get(sample.name, ()):
                labels[ours] = dict(sample.tags).get(theirs, "")
    for model in sorted(models):
        yield PageSample("aie_engine_info", _sorted(labels | {"model": model}), 1.0)
