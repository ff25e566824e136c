"""Reads the pages of one endpoint: what engine it is, what it says in aie's names, and what is wrong with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Set
from typing import Final, NamedTuple

from aie_agent.progress import PageSigns
from aie_agent.sources.pages.engines import KNOWN, recognise
from aie_agent.sources.pages.lint import LintFinding, lint
from aie_agent.sources.pages.mapping import PageMapper
from aie_agent.sources.pages.reading_again import PageAgain
from aie_agent.sources.pages.repeats import RepeatParser
from aie_agent.sources.pages.rows import EngineMap
from aie_agent.sources.scrape_page import MAX_SAMPLES, PREFIX, Reading
from aie_telemetry.exposition import MemoBudget, Page

OWN_KIND: Final = "aie"
LINT_EVERY: Final = 30
"""Pages of which one is held against the rules: what they look for does not come and go, and takes as long as all the rest."""
_JSON_HINT: Final = " (JSON: TensorRT-LLM serves Prometheus text at /prometheus/metrics)"


class PageReading(NamedTuple):
    """What came of one page: `kind` of engine (None when nobody knows it), what is taken, what is wrong with it, and when nothing
    could be taken at all, why. `signs` are what it says of the engine's progress."""

    kind: str | None
    reading: Reading
    lint: list[LintFinding]
    problem: str | None
    signs: PageSigns = PageSigns()


class PageReader:
    """Reads one page after the other of an endpoint; what repeats from page to page is parsed and mapped once."""

    def __init__(self, engine: str, budget: MemoBudget | None = None) -> None:
        """`engine` is the agent's name for the engine, under which its metrics are taken. `budget` is for what is remembered."""
        self._budget = budget
        self._parser = RepeatParser(budget)
        self._again = PageAgain(engine, budget)
        self._mapper: tuple[EngineMap, PageMapper] | None = None
        self._kind: str | None = None
        self._lint: list[LintFinding] = []
        self._pages_of_kind = 0
        self._reading = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Gives up what it remembers, so that others can; waits for a page that is being read. Nothing is read from then on."""
        with self._reading:
            self._forget()
            self._closed = True

    def _forget(self) -> None:
        self._parser.forget()
        self._again.forget()
        if self._mapper is not None:
            self._mapper[1].forget()

    def read(self, body: bytes, max_samples: int = MAX_SAMPLES) -> PageReading:
        """Raises nothing: what is no page is a `problem`, and not remembered. Looks at no more than `max_samples` samples of it."""
        with self._reading:
            if self._closed:
                return PageReading(None, Reading(), [], "closed")
            page = self._read(body, max_samples)
            if page.problem is not None:
                self._forget()
            return page

    def _read(self, body: bytes, max_samples: int) -> PageReading:
        text = _unquoted(body.decode("utf-8", "replace"))
        page = self._parser.parse(text, max_samples)
        if not page.samples and (page.bad_lines or not page.kinds):
            return PageReading(None, Reading(), [], f"no Prometheus text page, but {_beginning(text)!r}{_hint(text)}")
        names = self._parser.names
        if any(name.startswith(PREFIX) for name in names):
            reading = self._again.read(page)
            found = self._lint_of(OWN_KIND, None, page, names, page)
            return PageReading(OWN_KIND, reading, found, _nothing(reading, OWN_KIND))
        engine = recognise(names)
        if engine is None:
            return PageReading(None, Reading(), [], f"a metrics page of no engine that is known here: {', '.join(KNOWN)}")
        mapped = self._mapper_of(engine).map(page, names)
        begun = mapped.page._replace(samples=[*mapped.page.samples, *mapped.begun]) if mapped.begun else mapped.page
        reading = self._again.read(begun)
        reading.refused += mapped.refused
        found = self._lint_of(engine.kind, engine, page, names, mapped.page)
        return PageReading(engine.kind, reading, found, _nothing(reading, engine.kind), mapped.signs)

    def _lint_of(self, kind: str, engine: EngineMap | None, page: Page, names: Set[str], mapped: Page) -> list[LintFinding]:
        if kind != self._kind:
            self._kind, self._pages_of_kind = kind, 0
        if self._pages_of_kind % LINT_EVERY == 0:
            self._lint = lint(engine, page, names, mapped)
        self._pages_of_kind += 1
        return self._lint

    def _mapper_of(self, engine: EngineMap) -> PageMapper:
        if self._mapper is None or self._mapper[0] is not engine:
            if self._mapper is not None:
                self._mapper[1].forget()
            self._mapper = (engine, PageMapper(engine, self._budget))
        return self._mapper[1]


def _nothing(reading: Reading, kind: str) -> str | None:
    if reading.points or reading.histograms:
        return None
    reasons = ", ".join(sorted(reading.refused)) or "it has none of the metrics that are read"
    return f"a page of {kind} of which nothing could be taken: {reasons}"


def _unquoted(text: str) -> str:
    """The page within a JSON string: versions of llama.cpp's server sent it so (llama.cpp#17384)."""
    if text[:1] != '"':
        return text
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # JSON can hold halves of characters, which no encoding takes.
    return inner.encode("utf-8", "replace").decode() if isinstance(inner, str) else text


def _hint(text: str) -> str:
    return _JSON_HINT if text[:1] in ("[", "{") else ""


def _beginning(text: str) -> str:
    return " ".join(text[:60].split())
