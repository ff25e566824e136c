"""Wires sources, store, analysis and outputs. Contains no logic of its own."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

from aie_agent import analysers
from aie_agent.about import About
from aie_agent.analysis.causes import WITH_STACKS
from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.findings import Limits, ProcessState, SourceHealth, Stacks, View, as_batch
from aie_agent.analysis.history import FindingHistory, is_current, is_finding
from aie_agent.analysis.hung import CAUSE as HUNG
from aie_agent.analysis.hung import looks_back_s
from aie_agent.analysis.leaks.told import LEAK
from aie_agent.analysis.lock_contention import LOCK_CONTENTION, contended
from aie_agent.analysis.memory import unaccounted
from aie_agent.clock import SteadyClock, Watchfulness
from aie_agent.config import Config
from aie_agent.discovered import Discovered
from aie_agent.events import EventLog
from aie_agent.identity import ROOT_UID, Engines, Origin
from aie_agent.outputs.dcgm import DcgmPage
from aie_agent.outputs.drift_files import DriftFiles
from aie_agent.outputs.finding_lines import FindingLines
from aie_agent.outputs.gpu_since import Since
from aie_agent.outputs.gpus import GpuRows
from aie_agent.outputs.http import HttpServer
from aie_agent.outputs.otlp import build as otlp
from aie_agent.outputs.probe_requests import ProbeRequests
from aie_agent.outputs.prometheus import PrometheusPage
from aie_agent.outputs.snapshot import SnapshotBuilder
from aie_agent.own_versions import own_versions
from aie_agent.recalled import PART as RECALLED
from aie_agent.recalled import Recalled
from aie_agent.request_values import RequestValues
from aie_agent.runners import Runners
from aie_agent.samples import Batch
from aie_agent.sources.base import next_start_s
from aie_agent.sources.bpf import build as bpf
from aie_agent.sources.bpf.source import BpfSource, nobody
from aie_agent.sources.configured import ConfiguredEngines, home_of
from aie_agent.sources.discovery import DiscoverySource
from aie_agent.sources.every_pid import every_pid
from aie_agent.sources.host import HostSource
from aie_agent.sources.lineage import Lineage
from aie_agent.sources.memory_maps import MemoryMaps
from aie_agent.sources.neighbours import NeighbourSource
from aie_agent.sources.numa import numa_nodes
from aie_agent.sources.nvml import build as nvml
from aie_agent.sources.process import ProcessSource
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.selfmetrics import SelfSource
from aie_agent.sources.statsd import StatsdSource
from aie_agent.sources.statsd_namesakes import Namesakes
from aie_agent.stacks.evidence import StackEvidence
from aie_agent.stacks.native.evidence import NativeEvidence
from aie_agent.stacks.shown import LinedProbes, for_causes, fought, page, stuck
from aie_agent.stacks.waiting import Address
from aie_agent.state import SAVE_EVERY_S, StateFile
from aie_agent.store import Store
from aie_telemetry.api import Finding, Snapshot, StacksPage

log = logging.getLogger(__name__)

TICK_S = 1.0
EVENTS_SHOWN = 20
DISTRIBUTION = "aie-observability"

# The causes of which native stacks tell more.
NATIVE = (LOCK_CONTENTION, HUNG)

# Who named an engine, by the source that brought the hello; the rest is StatsD.
_ORIGINS = {ConfiguredEngines.name: Origin.CONFIG}


def _without_scan(_: int) -> None:
    """Nobody looks for engines: processes that announce one name are one engine."""


class Agent:
    """One agent, built from a configuration."""

    def __init__(self, config: Config, clock: Callable[[], float] | None = None) -> None:
        self._config = config
        self._clock = clock or SteadyClock()
        self._watch = Watchfulness(config.findings.hung_after / 2)
        procfs = self._procfs = Procfs()
        root_of = Lineage(procfs).root if config.discovery.enabled else _without_scan
        self._engines = Engines(procfs.start_ticks, procfs.uid, frozenset({ROOT_UID, os.geteuid()}), root_of)
        for engine in config.engines:
            self._engines.configure(engine.name, home_of(engine))
        self._store = Store(
            max_series=config.store.max_series,
            retention_s=max(config.store.retention, looks_back_s(config.findings.hung_after)),
            canonical=self._engines.canonical,
            configured=[engine.name for engine in config.engines],
        )
        self._events = EventLog(self._engines.canonical)
        self._history = FindingHistory()
        self._lines = FindingLines(sys.stdout if config.findings.print else None)
        self._state = StateFile(config.state.path)
        own_analysers = analysers.build(config)
        self._drift = analysers.drift_of(own_analysers)
        self._diagnosis = Diagnosis(own_analysers)
        remembered = self._state.read()
        self._diagnosis.restore(remembered, self._clock())
        self._recalled = Recalled(remembered.get(RECALLED), self._clock())
        self._own_versions = own_versions(config)
        self._saved_s = self._clock()
        self._values = RequestValues(self._engines.canonical)
        self._drift_files = DriftFiles(config.drift)
        self._probe_requests = ProbeRequests(
            config.statsd.unix.path if config.leaks.memory_probe else None, config.leaks.time_scale
        )
        self._aliases: dict[str, str] = {}
        self._runners = Runners(self._deliver, self._clock)
        self._nodes = numa_nodes()
        self._namesakes = Namesakes(root_of)
        self._statsd = StatsdSource.from_config(config.statsd, self._namesakes)
        self._processes = ProcessSource(self._engines, procfs, period_s=config.sources.process_period)
        self._neighbours = NeighbourSource(procfs, self._own_tgids)
        for source in (self._statsd, HostSource(procfs, period_s=config.sources.host_period), self._processes, self._neighbours):
            self._runners.add(source)
        self._maps = MemoryMaps(self._engines, procfs, config.leaks.time_scale)
        self._runners.add(self._maps)
        self._discovered = Discovered(config, self._engines, self._runners)
        if config.engines:
            self._runners.add(ConfiguredEngines(config.engines, procfs))
        if config.discovery.enabled:
            self._runners.add(DiscoverySource(config.discovery.period))
        self._nvml = nvml.build(config.gpu, procfs, self._engines)
        if self._nvml is not None:
            self._runners.add(self._nvml)
        tell_xid = self._nvml.tell_xid if self._nvml is not None else nobody
        self._probes = bpf.build(config.bpf, self._engines, procfs, float(config.store.window), tell_xid)
        if isinstance(self._probes, BpfSource):
            self._runners.add(self._probes)
        self._stacks = StackEvidence(float(config.store.retention), self._clock)
        self._native = NativeEvidence(self._probes.lock_stacks, float(config.store.retention), self._clock)
        lined = LinedProbes(self._probes, self._stacks.of, self._native.sentences)
        self._locks = lined.locks
        self._gpus = GpuRows(self._store, float(config.store.window), self._nvml, Since())
        about = About(version(DISTRIBUTION), os.uname().nodename, os.uname().release, self._clock())
        self._snapshots = SnapshotBuilder(
            self._store,
            self._engines,
            self._processes,
            self._runners.health,
            about,
            float(config.store.window),
            self._discovered,
            self._gpus.rows,
            lambda engine: None if self._nvml is None else self._nvml.engine_note(engine),
            lined,
        )
        self._page = PrometheusPage(self._store)
        dcgm = DcgmPage(self._store, about.hostname)
        more = {"/metrics/dcgm": lambda: dcgm.render(self._clock())} if config.dcgm.enabled else {}
        self._http = HttpServer(
            self._store,
            lambda: self._page.render(self._clock()),
            self._events.newest,
            more,
            self._stacks_page,
            lambda: self._page.render(self._clock(), openmetrics=True),
        )
        self._otlp = otlp.build_or_say_why(config.otlp, about.hostname)
        sent = self._drift_files.webhook.counts
        extra = [sent, self._statsd.counts, self._http.counts, self._discovered.counts, self._probes.counts, self._otlp.counts]
        if self._nvml is not None:
            extra.append(self._nvml.counts)
        own = SelfSource(about, self._store, self._runners.health, extra)
        self._runners.add(own, show=False)

    async def run(self, stop: asyncio.Event, on_ready: Callable[[int], None]) -> None:
        """Serves until `stop` is set. `on_ready` gets the port of the HTTP server. Raises ListenError."""
        port = await self._http.start(self._config.api.listen)
        try:
            await self._statsd.open()  # whoever reads that the agent is ready may send at once
            on_ready(port)
            async with asyncio.TaskGroup() as group:
                self._runners.start(group)
                own = [
                    group.create_task(self._tick_for_ever(), name="tick"),
                    group.create_task(self._stacks.run(), name="stacks"),
                    group.create_task(self._native.run(), name="native stacks"),
                ]
                await stop.wait()
                for task in own:
                    task.cancel()
                self._runners.cancel()
        finally:
            self._state.write(self._remembered(self._clock()))
            self._drift_files.close()
            self._otlp.tick_last(self._store.everything, self._clock())
            await asyncio.to_thread(self._otlp.close)
            await self._http.close()
            await self._runners.close()

    def release_gpus(self) -> None:
        """Gives NVML back for a while, so that driver or MIG can be changed; called again, takes it at once."""
        if self._nvml is not None:
            self._nvml.release()

    def _deliver(self, batch: Batch) -> None:
        origin = _ORIGINS.get(batch.source, Origin.STATSD)
        for hello in batch.hellos:
            self._engines.declare(hello.engine, origin, hello.tgid)
        for event in batch.events:
            self._events.add(event, batch.time_s)
        self._values.take(batch)
        if batch.found is not None:
            self._discovered.take(batch.found)
        aliases = self._engines.aliases()
        for before, after in aliases.items() - self._aliases.items():
            self._store.rename_engine(before, after)
        self._aliases = aliases
        self._namesakes.know(self._engines.namesakes.holders(), self._engines.namesakes.own())
        for name in self._engines.displaced:
            self._store.interrupt_engine(self._engines.canonical(name), self._statsd.name)
        self._engines.displaced.clear()
        self._store.refused["engine_limit"] = self._engines.refused
        self._store.apply(batch)

    async def _tick_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        failed = ""
        while True:
            try:
                await self.tick()
            except Exception as error:  # one bad tick must not end the agent; it is logged whole, once
                if repr(error) != failed:
                    log.exception("tick failed")
                failed = repr(error)
            start_s = next_start_s(loop.time(), start_s, TICK_S)
            await asyncio.sleep(start_s - loop.time())

    async def tick(self) -> None:
        """What happens once a second: engines that went are noted, analysis runs, outputs get the new state."""
        now_s = self._clock()
        self._watch.look(now_s)
        for engine in self._engines.prune(now_s, self._processes.just_read()):
            log.warning("engine %s has no process left", engine)
        self._recalled.update(self._engines, now_s)
        # Each time: what was on its way when the last process went must not make it look alive again.
        for engine in self._engines.silent():
            self._store.expire_engine(engine)
        self._store.apply(unaccounted(self._store, self._engines.names(), now_s))
        view = self._view(now_s)
        findings = self._diagnosis.update(view, now_s)
        if self._config.findings.stacks:
            suspicions = {(each.cause, each.subject) for each in findings if each.cause in WITH_STACKS}
            suspicions |= {(cause, engine) for engine in view.engines for cause in contended(view, engine, now_s)}
            self._stacks.follow(suspicions, self._tgids, now_s)
            self._native.follow({engine for cause, engine in suspicions if cause in NATIVE}, self._waited_for, now_s)
        for event in self._history.update(findings, now_s):
            self._events.add(event, now_s)
        self._lines.update(findings, now_s)
        await self._drift_files.update(self._values, findings, now_s)
        self._maps.follow({each.subject for each in findings if each.cause == LEAK} & set(self._engines.names()))
        if self._probe_requests.is_on:
            await asyncio.to_thread(self._probe_requests.update, findings, self._engines.names(), self._aliases, now_s)
        self._store.apply(as_batch(findings, self._diagnosis.points(now_s), now_s))
        if now_s - self._saved_s >= SAVE_EVERY_S:
            await asyncio.to_thread(self._state.write, self._remembered(now_s))
            self._saved_s = now_s
        self._store.retire("aie_finding", now_s)
        self._store.evict(now_s)
        self._otlp.tick(self._store.everything, now_s)
        await self._http.publish(functools.partial(self._snapshot, findings))

    def _snapshot(self, findings: tuple[Finding, ...]) -> Snapshot:
        """As things are now, but for the findings, which are those of the last tick."""
        now_s = self._clock()
        events = self._events.newest(EVENTS_SHOWN, is_current)  # what holds stands among the findings
        return self._snapshots.build(now_s, time.time(), findings, events, self._drift(self._engines.names(), now_s))

    def _view(self, now_s: float) -> View:
        return View(
            store=self._store,
            engines=self._engines.names(),
            state=self._engines.state,
            processes=functools.cache(self._process_states),
            unanswered_since_s=self._unanswered_since_s,
            progress=self._discovered.progress,
            limits=Limits(hung_after_s=self._config.findings.hung_after),
            stacks=self._stacks_of,
            locks=self._locks,
            gpus=functools.cache(lambda: self._gpus.rows(now_s, for_people=False)),
            drivers=self._drivers,
            sources=[SourceHealth(each.name, each.reason, each.down_since_s, each.last_read_s) for each in self._runners.health],
            events=self._events.newest(without=is_finding),
            values=self._values.since,
            down_since_s=self._engines.down_since_s,
            back_since_s=self._engines.back_since_s,
            configured=frozenset(engine.name for engine in self._config.engines),
            nodes=self._nodes,
            coverage=self._probes.coverage,
            recalled=self._recalled.gone,
            neighbours=self._neighbours.busy,
            asked=self._probe_requests.asked,
            pids=lambda engine: every_pid(self._procfs, self._tgids(engine)),
        )

    def _remembered(self, now_s: float) -> dict[str, object]:
        """What must survive a restart of the agent."""
        return {**self._diagnosis.dump(), RECALLED: self._recalled.dump(self._engines, now_s)}

    def _drivers(self) -> dict[str, str]:
        versions = {dict(series.tags).get("driver", "") for series in self._store.scalars("aie_gpu_info")} - {""}
        drivers = {"the NVIDIA driver": ", ".join(sorted(versions))} if versions else {}
        return {**drivers, **self._own_versions}

    def _stacks_of(self, engine: str, cause: str) -> Stacks | None:
        pair = self._stacks.of(engine, cause)
        if pair is None:
            return None
        problems = self._native.problems(engine) if cause == LOCK_CONTENTION else ()  # who hangs has no later waits
        return for_causes(pair, self._locks(engine), problems, functools.partial(self._native.sentences, engine))

    def _waited_for(self, engine: str) -> tuple[Address, ...]:
        return fought(self._locks(engine)) + stuck(self._stacks.of(engine, HUNG))

    def _stacks_page(self, engine: str) -> StacksPage | None:
        pair = self._stacks.of(engine)
        return None if pair is None else page(pair)

    def _tgids(self, engine: str) -> list[int]:
        return [row.tgid for row in self._processes.rows(engine)]

    def _own_tgids(self) -> set[int]:
        """The processes of all engines, and the agent's own."""
        return {each.tgid for engine in self._engines.names() for each in self._engines.processes(engine)} | {os.getpid()}

    def _process_states(self, engine: str) -> list[ProcessState]:
        return [
            ProcessState(
                *(row.tgid, row.state, self._watch.seen_since_s(row.state_since_s), row.cpu_cores, row.cpus_allowed, row.arguments)
            )
            for row in self._processes.rows(engine)
        ]

    def _unanswered_since_s(self, engine: str) -> float | None:
        health = self._discovered.page_health(engine)
        if health is None or health.unanswered_since_s is None:
            return None
        return self._watch.seen_since_s(health.unanswered_since_s)
