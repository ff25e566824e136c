"""One engine's page, read once, as the agent reads it. Apart from `check`, since the HTTP client takes long to load."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from aie_agent.sources.base import SourceError
from aie_agent.sources.pages.lint import LintFinding
from aie_agent.sources.scrape import ScrapeSource


class PageCheck(NamedTuple):
    """What came of it: the kind of engine and how many of aie's metrics its page says, the reasons why samples were not taken, what
    is wrong with the page; or in `problem` why it cannot be read."""

    kind: str
    metrics: int
    refused: tuple[str, ...]
    lint: tuple[LintFinding, ...]
    problem: str | None = None


def check_page(engine: str, url: str, timeout_s: float) -> PageCheck:
    """Reads the page at `url`. Takes no longer than `timeout_s`."""
    return asyncio.run(_check(ScrapeSource(engine, url, timeout_s=timeout_s)))


async def _check(source: ScrapeSource) -> PageCheck:
    try:
        batch = await source.collect(time.time())
    except SourceError as error:
        return PageCheck("", 0, (), (), str(error))
    finally:
        await source.close()
    names = {point.name for point in batch.points} | {histogram.name for histogram in batch.histograms}
    return PageCheck(source.kind or "", len(names), tuple(sorted(source.refused)), tuple(source.lint or ()))
