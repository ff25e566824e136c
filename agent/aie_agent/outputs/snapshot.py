"""The store as the API's snapshot: what a first look needs, computed once a second while somebody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aie_agent.about import About
from aie_agent.analysis.window import increase, level_history, rate, rate_history
from aie_agent.discovered import Discovered
from aie_agent.identity import Engines
from aie_agent.outputs.engine_rows import HISTORY_POINTS, HISTORY_STEP_S, EngineRows, live, rates_by_label
from aie_agent.sources.base import Health
from aie_agent.sources.bpf.build import Probes
from aie_agent.sources.process import ProcessSource
from aie_agent.store import SUPERSEDED, Store
from aie_telemetry import api

# CPU time in which this host did nothing of its own: what the hypervisor gave to others (steal), it did not use.
_NOT_BUSY = ("idle", "iowait", "steal")


class SnapshotBuilder:
    """Builds snapshots. Reads the store, the engines, their processes and the sources' health; changes nothing."""

    def __init__(
        self,
        store: Store,
        engines: Engines,
        processes: ProcessSource,
        health: Sequence[Health],
        about: About,
        window_s: float,
        discovered: Discovered | None = None,
        gpu_rows: Callable[[float], tuple[api.Gpu, ...]] = lambda now_s: (),
        gpu_note: Callable[[str], str | None] = lambda engine: None,
        probes: Probes | None = None,
    ) -> None:
        self._store = store
        self._engines = engines
        self._engine_rows = EngineRows(store, engines, processes, discovered, gpu_note, probes)
        self._health = health
        self._about = about
        self._window_s = window_s
        self._gpu_rows = gpu_rows

    def build(
        self,
        now_s: float,
        wall_s: float | None = None,
        findings: tuple[api.Finding, ...] = (),
        events: tuple[api.Event, ...] = (),
        drift: tuple[api.Drift, ...] = (),
    ) -> api.Snapshot:
        """The snapshot at `now_s` of the agent's time; engines' own timestamps are held against the wall clock, `wall_s`."""
        wall_s = now_s if wall_s is None else wall_s
        start_s = now_s - self._window_s
        return api.Snapshot(
            version=api.VERSION,
            time_s=now_s,
            window_s=self._window_s,
            history_step_s=HISTORY_STEP_S,
            agent=self._agent(now_s, start_s),
            host=self._host(now_s, start_s),
            findings=findings,
            events=events,
            engines=tuple(self._engine_rows.row(name, now_s, start_s, wall_s) for name in self._engines.names()),
            gpus=self._gpu_rows(now_s),
            memory=tuple(self._memory(now_s)),
            drift=drift,
            sources=tuple(self._sources(now_s)),
        )

    def _memory(self, now_s: float) -> Iterable[api.Memory]:
        for name in self._engines.names():
            devices = {
                device
                for metric in ("aie_engine_memory_physical_bytes", "aie_engine_allocator_reserved_bytes")
                for series in self._store.scalars(metric, engine=name)
                if series.valid_until_s >= now_s and (device := dict(series.tags).get("device"))
            }
            for device in sorted(devices):
                yield self._device_memory(name, device, now_s)

    def _device_memory(self, name: str, device: str, now_s: float) -> api.Memory:
        def level(metric: str) -> float | None:
            return self._store.current(metric, now_s, engine=name, device=device)

        on_cpu = device == "cpu"
        return api.Memory(
            engine=name,
            device=device,
            physical_bytes=level("aie_engine_memory_physical_bytes"),
            allocator_reserved_bytes=level("aie_engine_allocator_reserved_bytes"),
            allocator_allocated_bytes=level("aie_engine_allocator_allocated_bytes"),
            unaccounted_bytes=level("aie_engine_memory_unaccounted_bytes"),
            swap_bytes=self._store.current("aie_process_swap_bytes", now_s, engine=name) if on_cpu else None,
            limit_bytes=self._store.current("aie_process_cgroup_memory_limit_bytes", now_s, engine=name) if on_cpu else None,
            physical_history=self._levels("aie_engine_memory_physical_bytes", now_s, engine=name, device=device),
            reserved_history=self._levels("aie_engine_allocator_reserved_bytes", now_s, engine=name, device=device),
        )

    def _host(self, now_s: float, start_s: float) -> api.Host:
        modes = rates_by_label(self._store.scalars("aie_host_cpu_seconds_total"), "mode", now_s, start_s)
        total = sum(modes.values())

        def share(*names: str) -> float | None:
            return sum(modes.get(name, 0.0) for name in names) / total if total > 0 else None

        def level(metric: str) -> float | None:
            return self._store.current(metric, now_s)

        idle = share(*_NOT_BUSY)
        cpus = level("aie_host_cpus")
        return api.Host(
            hostname=self._about.hostname,
            kernel=self._about.kernel,
            cpus=None if cpus is None else int(cpus),
            cpu_busy_ratio=None if idle is None else 1.0 - idle,
            cpu_steal_ratio=share("steal"),
            cpu_iowait_ratio=share("iowait"),
            load1=level("aie_host_load1"),
            memory_total_bytes=level("aie_host_memory_total_bytes"),
            memory_available_bytes=level("aie_host_memory_available_bytes"),
            swap_total_bytes=level("aie_host_swap_total_bytes"),
            swap_used_bytes=level("aie_host_swap_used_bytes"),
            major_faults_per_second=rate(live(self._store.scalars("aie_host_major_faults_total"), now_s), start_s, now_s),
            pressure=self._pressure(now_s, start_s),
            cpu_busy_history=self._busy_history(now_s, cpus),
        )

    def _pressure(self, now_s: float, start_s: float) -> dict[str, api.Pressure]:
        pressure = {}
        for resource in ("cpu", "memory", "io"):
            series = self._store.scalars("aie_host_pressure_seconds_total", resource=resource)
            kinds = rates_by_label(series, "kind", now_s, start_s)
            if kinds:
                pressure[resource] = api.Pressure(some_ratio=kinds.get("some"), full_ratio=kinds.get("full"))
        return pressure

    def _busy_history(self, now_s: float, cpus: float | None) -> tuple[float | None, ...]:
        if not cpus:
            return ()
        modes = self._store.scalars("aie_host_cpu_seconds_total")
        idle = [series for series in modes if dict(series.tags).get("mode") in _NOT_BUSY]
        history = rate_history(idle, now_s, HISTORY_POINTS, HISTORY_STEP_S)
        return tuple(None if value is None else min(max(1.0 - value / cpus, 0.0), 1.0) for value in history)

    def _levels(self, metric: str, now_s: float, **labels: str) -> tuple[float | None, ...]:
        return level_history(self._store.scalars(metric, **labels), now_s, HISTORY_POINTS, HISTORY_STEP_S)

    def _sources(self, now_s: float) -> Iterable[api.Source]:
        for health in self._health:
            age_s = None if health.last_success_s is None else max(now_s - health.last_success_s, 0.0)
            yield api.Source(
                name=health.name,
                state=health.state,
                reason=health.reason,
                down_since_s=health.down_since_s,
                last_success_age_s=age_s,
            )

    def _agent(self, now_s: float, start_s: float) -> api.Agent:
        store = self._store
        return api.Agent(
            version=self._about.version,
            uptime_s=max(now_s - self._about.start_s, 0.0),
            series=store.size,
            series_limit=store.limit,
            cpu_cores=rate(store.scalars("aie_agent_cpu_seconds_total"), start_s, now_s),
            resident_bytes=store.current("aie_agent_resident_bytes", now_s),
            statsd_samples_per_second=rate(store.scalars("aie_agent_statsd_samples_total"), start_s, now_s),
            drops=self._drops(now_s, start_s),
        )

    def _drops(self, now_s: float, start_s: float) -> dict[str, float]:
        gained = {
            f"{what}:{' '.join(value for _, value in series.tags)}": increase(series, start_s, now_s)
            for metric, what in (
                ("aie_agent_samples_refused_total", "samples"),
                ("aie_agent_scrape_refused_total", "page"),
                ("aie_agent_statsd_dropped_total", "statsd"),
                ("aie_agent_statsd_kernel_drops_total", "kernel"),
                ("aie_agent_relay_dropped_total", "relay"),
            )
            for series in self._store.scalars(metric)
            if SUPERSEDED not in dict(series.tags).values()
        }
        return {name: rise[0] for name, rise in gained.items() if rise is not None and rise[0] > 0}
