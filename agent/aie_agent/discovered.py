"""What follows from a scan: engines get their processes, and those with a page that nobody named get a source that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from aie_agent.config import Config
from aie_agent.identity import Engines
from aie_agent.progress import Progress
from aie_agent.runners import Runners
from aie_agent.samples import Count, Found
from aie_agent.sources.base import Health
from aie_agent.sources.listeners import is_this_host
from aie_agent.sources.scrape import ScrapeSource
from aie_telemetry.exposition import MemoBudget

MAX_PAGES: Final = 16
"""Pages that are read because a scan found them: any user can start something that looks like an engine."""

MEMO_BYTES: Final = 24 << 20
"""What the lines of all pages are remembered in: some twenty pages of 1,000 lines."""

MakePage = Callable[[str, str], ScrapeSource]


class Discovered:
    """The engines of the last scan by the names that they go by, and the sources of all pages."""

    def __init__(self, config: Config, engines: Engines, runners: Runners) -> None:
        self._config = config
        self._engines = engines
        self._runners = runners
        self._found: dict[str, Found] = {}
        self._memos = MemoBudget(MEMO_BYTES)
        self._pages: dict[tuple[str, str], ScrapeSource] = {}
        self._configured = list(self._configured_pages())
        for page in self._configured:
            runners.add(page)
        self._urls = [engine.metrics_url for engine in config.engines if engine.metrics_url is not None]
        self._with_page = {engine.name for engine in config.engines if engine.metrics_url is not None}

    def take(self, found: Iterable[Found]) -> None:
        """All that a scan found, the most deserving first: what is not there any more is not read any more."""
        self._found = {}
        wanted: dict[str, str] = {}
        for each in found:
            name = self._engines.discover(each.name, each.tgids, each.place)
            if name is None:
                continue
            self._found.setdefault(name, each)
            if each.url is not None and len(wanted) < MAX_PAGES and not self._is_configured(name, each.url):
                wanted.setdefault(name, each.url)
        for key in [key for key in self._pages if key not in wanted.items()]:
            self._runners.remove(self._pages.pop(key))
        for key in wanted.items():
            if key not in self._pages:
                self._pages[key] = self._page(*key)
                self._runners.add(self._pages[key])

    def of(self, engine: str) -> Found | None:
        """What the last scan found of an engine, by the name under which it is known now."""
        found = self._found.get(engine)
        if found is None:
            return next((each for name, each in self._found.items() if self._engines.canonical(name) == engine), None)
        return found

    def page_health(self, engine: str) -> Health | None:
        """How reading the page of an engine goes; None where no page of it is read."""
        for health in self._runners.health:
            kind, _, name = health.name.partition(":")
            if kind == "scrape" and self._engines.canonical(name) == engine:
                return health
        return None

    def progress(self, engine: str) -> Progress | None:
        """What the pages of an engine say of its progress; None where none was read."""
        for page in (*self._configured, *self._pages.values()):
            if self._engines.canonical(page.engine) == engine and page.progress is not None:
                return page.progress
        return None

    def counts(self) -> Iterable[Count]:
        """What all pages' sources count, for the agent's own metrics."""
        for page in (*self._configured, *self._pages.values()):
            yield from page.counts()

    def _configured_pages(self) -> Iterable[ScrapeSource]:
        for engine in self._config.engines:
            if engine.metrics_url is not None:
                yield self._page(engine.name, engine.metrics_url)

    def _page(self, engine: str, url: str) -> ScrapeSource:
        sources = self._config.sources
        period_s, timeout_s = sources.scrape_period, sources.scrape_timeout
        return ScrapeSource(engine, url, period_s=period_s, timeout_s=timeout_s, budget=self._memos)

    def _is_configured(self, name: str, url: str) -> bool:
        """Whether the configuration has this page, or another of this engine."""
        port = int(url.split("/")[2].rpartition(":")[2])
        return name in self._with_page or any(each.port == port and is_this_host(each.host) for each in self._urls)
