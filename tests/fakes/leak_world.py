"""An engine on a real store whose memory a test shapes, sixty times as fast as life, and a leak analyser that sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

import numpy as np

from aie_agent.analysis.findings import Limits, ProcessState, View
from aie_agent.analysis.leaks.analyser import LeakAnalyser
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.samples import Batch, Point
from aie_agent.store import Store
from aie_telemetry.api import Event, Finding, Gpu, GpuProcess
from aie_telemetry.catalogue import CATALOGUE

SCALE = 60.0
HOUR = 3600.0 / SCALE
MB = 1e6
GB = 1e9
LEAK_S = 2.8 * MB  # a second of the test is a minute


class World:
    """An engine on a CPU or a GPU whose memory a test shapes, and an analyser that sees it once a second."""

    def __init__(self, device: str = "cuda:0") -> None:
        self.store = Store(max_series=1000, retention_s=300.0)
        self.state: Literal["up", "down", "unknown"] = "up"
        self.tgids = [100, 101]
        self.gpus: tuple[Gpu, ...] = ()
        self.events: list[Event] = []
        self.device = device
        self.now_s = 1_000_000.0
        self.random = np.random.default_rng(0)
        self.analyser = LeakAnalyser(LeakSettings().scaled(SCALE))
        self.requests = 0.0
        self.asked: str | None = None
        self.view = View(
            store=self.store,
            engines=["e"],
            state=lambda _: self.state,
            processes=lambda _: [ProcessState(tgid, "S", 0.0, 0.1) for tgid in self.tgids],
            unanswered_since_s=lambda _: None,
            limits=Limits(),
            gpus=lambda: self.gpus,
            events=self.events,
            asked=lambda _: self.asked,
            pids=lambda _: frozenset(self.tgids),
        )

    def gauge(self, name: str, value: float | None, **labels: str) -> list[Point]:
        tags = tuple(sorted({"engine": "e", **labels}.items()))
        return [] if value is None else [Point(name, CATALOGUE[name].kind, tags, value)]

    def tick(
        self, physical: float | None = None, allocated: float | None = None, reserved: float | None = None, **more: float
    ) -> None:
        """A second passes. `more` are metrics of the engine without a device, after `aie_engine_`."""
        self.now_s += 1.0
        self.requests += 5.0
        points = [
            *self.gauge("aie_engine_memory_physical_bytes", physical, device=self.device),
            *self.gauge("aie_engine_allocator_allocated_bytes", allocated, device=self.device),
            *self.gauge("aie_engine_allocator_reserved_bytes", reserved, device=self.device),
            *self.gauge("aie_engine_requests_total", self.requests, model="m", outcome="ok"),
        ]
        for name, value in {"requests_running": 3.0, "requests_waiting": 0.0, **more}.items():
            points += self.gauge(f"aie_engine_{name}", value, model="m")
        self.store.apply(Batch("scrape:e", self.now_s, points))
        self.analyser.observe(self.view, self.now_s)

    def run(self, hours: float, shape: Callable[[float], dict[str, float]]) -> None:
        """So many scaled hours; `shape` gives what `tick` takes, of seconds since the beginning of this run."""
        for second in range(int(hours * HOUR)):
            self.tick(**shape(float(second)))

    def noise(self, mb: float = 30.0) -> float:
        return float(self.random.normal(0.0, mb * MB))

    def answer(self, number: str = "1", process: str = "100.a", *, asked: bool = True, **details: float | str) -> None:
        """The engine answers, a moment ago, what it was asked to give back; or what nobody `asked`."""
        self.asked = number if asked else self.asked
        facts = {"id": number, "process": process, **details}
        self.events.insert(0, Event(time_s=self.now_s, kind="memory_probe", engine="e", summary="", details=facts))

    def found(self) -> list[Finding]:
        return list(self.analyser.findings(self.now_s))

    def only(self) -> Finding:
        (finding,) = self.found()
        return finding

    def restart_agent(self) -> None:
        """Its state goes through JSON, as through a file."""
        state = json.loads(json.dumps(self.analyser.dump()))
        self.analyser = LeakAnalyser(LeakSettings().scaled(SCALE))
        self.analyser.restore(state, self.now_s)

    def states(self) -> dict[str, float]:
        points = [each for each in self.analyser.points(self.now_s) if each.name == "aie_leak_state"]
        return {dict(each.tags)["line"]: each.value for each in points}


def live_tensors(world: World, rate: float = LEAK_S) -> Callable[[float], dict[str, float]]:
    def shape(second: float) -> dict[str, float]:
        allocated = 10 * GB + rate * second
        reserved = allocated + GB
        return {"allocated": allocated, "reserved": reserved, "physical": reserved + 0.4 * GB + world.noise(5.0)}

    return shape


def flat(world: World) -> Callable[[float], dict[str, float]]:
    return lambda second: {"physical": 12 * GB + world.noise(), "allocated": 8 * GB + world.noise(), "reserved": 9.5 * GB}


def gpu(others: int | None, used: float) -> Gpu:
    processes = (
        GpuProcess(tgid=100, command="engine", engine="e", memory_bytes=int(9 * GB)),
        GpuProcess(tgid=900, command="notebook", memory_bytes=others),
    )
    return Gpu(
        index=0, uuid="u", pci_bus_id="0000:01:00.0", name="H100", up=True, memory_free_bytes=80 * GB - used, processes=processes
    )
