"""Wires sources, store, analysis and outputs. Contains no logic of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version

from aie_agent.about import About
from aie_agent.analysis.memory import unaccounted
from aie_agent.clock import SteadyClock
from aie_agent.config import Config
from aie_agent.identity import Engines, Origin
from aie_agent.outputs.http import HttpServer
from aie_agent.outputs.prometheus import PrometheusPage
from aie_agent.outputs.snapshot import SnapshotBuilder
from aie_agent.samples import Batch
from aie_agent.sources.base import Runner, Source
from aie_agent.sources.configured import ConfiguredEngines
from aie_agent.sources.host import HostSource
from aie_agent.sources.process import ProcessSource
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.scrape import ScrapeSource
from aie_agent.sources.selfmetrics import SelfSource
from aie_agent.sources.statsd import StatsdSource
from aie_agent.store import Store

log = logging.getLogger(__name__)

TICK_S = 1.0
DISTRIBUTION = "aie-observability"

# Who named an engine, by the source that brought the hello; the rest is StatsD.
_ORIGINS = {ConfiguredEngines.name: Origin.CONFIG}


class Agent:
    """One agent, built from a configuration."""

    def __init__(self, config: Config, clock: Callable[[], float] | None = None) -> None:
        self._config = config
        self._clock = clock or SteadyClock()
        procfs = Procfs()
        self._engines = Engines(procfs.start_ticks)
        for engine in config.engines:
            self._engines.declare(engine.name, Origin.CONFIG)
        self._store = Store(
            max_series=config.store.max_series,
            retention_s=config.store.retention,
            canonical=self._engines.canonical,
        )
        self._statsd = StatsdSource.from_config(config.statsd)
        self._processes = ProcessSource(self._engines, procfs, period_s=config.sources.process_period)
        scrapes = list(_scrapes(config))
        sources: list[Source] = [self._statsd, HostSource(procfs, period_s=config.sources.host_period), self._processes, *scrapes]
        if config.engines:
            sources.append(ConfiguredEngines(config.engines))
        runners = [Runner(source, self._deliver, self._clock) for source in sources]
        health = [runner.health for runner in runners]
        about = About(version(DISTRIBUTION), os.uname().nodename, os.uname().release, self._clock())
        self._snapshots = SnapshotBuilder(self._store, self._engines, self._processes, health, about, float(config.store.window))
        self._page = PrometheusPage(self._store)
        self._http = HttpServer(self._store, lambda: self._page.render(self._clock()))
        own = SelfSource(
            about, self._store, health, extra=(self._statsd.counts, self._http.counts, *(scrape.counts for scrape in scrapes))
        )
        self._runners = [*runners, Runner(own, self._deliver, self._clock)]

    async def run(self, stop: asyncio.Event, on_ready: Callable[[int], None]) -> None:
        """Serves until `stop` is set. `on_ready` gets the port of the HTTP server. Raises ListenError."""
        on_ready(await self._http.start(self._config.api.listen))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(runner.run(), name=runner.source.name) for runner in self._runners]
                tasks.append(group.create_task(self._tick_for_ever(), name="tick"))
                await stop.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await self._http.close()
            for runner in self._runners:
                await runner.source.close()

    def _deliver(self, batch: Batch) -> None:
        origin = _ORIGINS.get(batch.source, Origin.STATSD)
        for hello in batch.hellos:
            self._engines.declare(hello.engine, origin, hello.tgid)
        self._store.refused["engine_limit"] = self._engines.refused
        self._store.apply(batch)

    async def _tick_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        failed = ""
        while True:
            try:
                await self.tick()
            except Exception as error:  # one bad tick must not end the agent; it is logged whole, once
                if repr(error) != failed:
                    log.exception("tick failed")
                failed = repr(error)
            next_s = max(next_s + TICK_S, loop.time())
            await asyncio.sleep(next_s - loop.time())

    async def tick(self) -> None:
        """What happens once a second: engines that went are noted, analysis runs, outputs get the new state."""
        now_s = self._clock()
        for engine in self._engines.prune(now_s):
            log.warning("engine %s has no process left", engine)
        # Each time: what was on its way when the last process went must not make it look alive again.
        for engine in self._engines.silent():
            self._store.expire_engine(engine)
        self._store.apply(unaccounted(self._store, self._engines.names(), now_s))
        self._store.evict(now_s)
        await self._http.publish(self._snapshots.build(now_s, time.time()))


def _scrapes(config: Config) -> Iterable[ScrapeSource]:
    """One source for each engine of which the configuration knows the page."""
    for engine in config.engines:
        if engine.metrics_url is not None:
            yield ScrapeSource(
                engine.name,
                engine.metrics_url,
                period_s=config.sources.scrape_period,
                timeout_s=config.sources.scrape_timeout,
            )
