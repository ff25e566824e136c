"""A small real HTTP server that speaks the agent's API, for aie-top's tests and benchmark. It can go away, hang and send rubbish.

`python tests/fakes/agent_api.py [PORT] [--troubled|--fights] [--waits] [--gpus]` serves two busy engines
(`--fights`: four that wait), for looking at aie-top by hand.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import math
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal

import msgspec
from aiohttp import web

from aie_telemetry.api import (
    VERSION,
    Agent,
    Engine,
    Evidence,
    Finding,
    Host,
    Memory,
    Pressure,
    Process,
    Quantiles,
    Snapshot,
    Source,
)

TIME_S = 1_790_000_000.0
GIB = float(1 << 30)

Behaviour = Literal["ok", "garbage", "hang", "huge", "error", "page", "cut"]
Snapshots = Callable[[int], Snapshot]


class AgentApi:
    """Serves in a thread of its own until the `with` block ends. `behaviour` may change at any time; `start` keeps the port.

    `snapshots` gives the snapshot for each tick; a tick comes every `period_s`.
    """

    def __init__(self, snapshots: Snapshots, *, period_s: float = 0.05, port: int = 0, user: str = "", password: str = "") -> None:
        self.snapshots = snapshots
        self.period_s = period_s
        self.port = port
        self.behaviour: Behaviour = "ok"
        self.requests = 0
        self._credentials = f"{user}:{password}" if user else ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="fake-agent")
        self._thread.start()
        if not ready.wait(60):
            raise RuntimeError("the fake agent did not start")

    def stop(self) -> None:
        """Connections are cut, as when a process is killed."""
        if self._thread is not None and self._loop is not None and self._ending is not None:
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> AgentApi:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/api/v1/snapshot", self._snapshot)
        app.router.add_get("/api/v1/stream", self._stream)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = runner.addresses[0][1]
        ready.set()
        await self._ending.wait()
        await runner.cleanup()

    async def _snapshot(self, request: web.Request) -> web.StreamResponse:
        refused = await self._refuse(request)
        if refused is not None:
            return refused
        return web.Response(body=self._body(0), content_type="application/json")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        refused = await self._refuse(request)
        if refused is not None:
            return refused
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for tick in itertools.count():
            if self.behaviour == "hang":
                await asyncio.sleep(3600)
            if self.behaviour == "cut" and tick:
                request.transport.abort() if request.transport else None
                return response
            try:
                await response.write(b"event: snapshot\ndata: " + self._body(tick) + b"\n\n")
            except ConnectionResetError:
                return response
            await asyncio.sleep(self.period_s)
        return response

    async def _refuse(self, request: web.Request) -> web.Response | None:
        self.requests += 1
        expected = "Basic " + base64.b64encode(self._credentials.encode()).decode()
        if self._credentials and request.headers.get("Authorization") != expected:
            return web.json_response({"error": "unauthorized"}, status=401)
        if self.behaviour == "error":
            return web.json_response({"error": "on fire"}, status=503)
        if self.behaviour == "page":
            return web.Response(text="<html>it works</html>", content_type="text/html")
        if self.behaviour == "hang":
            await asyncio.sleep(3600)
        return None

    def _body(self, tick: int) -> bytes:
        if self.behaviour == "garbage":
            return b'{"version": 1, "time_s": "noon"}'
        if self.behaviour == "huge":
            return b"x" * (9 << 20)
        return msgspec.json.encode(self.snapshots(tick))


def wave(tick: int, length: int, level: float, swing: float, period: float) -> tuple[float, ...]:
    """A history that ends at `tick`; deterministic."""
    return tuple(round(level + swing * math.sin((tick - length + at) / period), 3) for at in range(length))


def engine(name: str, tick: int = 0, **changes: object) -> Engine:
    tokens = wave(tick, 120, 142.0, 38.0, 6.0)
    running = tuple(float(round(value)) for value in wave(tick, 120, 5.0, 3.0, 9.0))
    base = Engine(
        name=name,
        state="up",
        kind="aie-engine",
        model="SmolLM2-135M-Instruct",
        version="0.1.0",
        device="cpu",
        metrics_from=("scrape", "statsd"),
        uptime_s=11_520.0 + tick,
        requests_per_second=6.42 + 0.1 * math.sin(tick),
        errors_per_second=0.0,
        outcomes_per_second={"ok": 6.4, "cancelled": 0.02},
        running=running[-1],
        waiting=2.0,
        kv_usage_ratio=0.621 + 0.05 * math.sin(tick / 5),
        prompt_tokens_per_second=388.0,
        generation_tokens_per_second=tokens[-1],
        time_to_first_token=Quantiles(p50_seconds=0.0312, p99_seconds=0.184),
        inter_token=Quantiles(p50_seconds=0.0221, p99_seconds=0.0478),
        queue=Quantiles(p50_seconds=0.0012, p99_seconds=0.041),
        duration=Quantiles(p50_seconds=1.42, p99_seconds=6.8),
        last_token_age_s=0.02,
        cpu_cores=1.62,
        run_queue_threads=0.031,
        throttled_cores=0.0,
        major_faults_per_second=0.0,
        processes=(
            Process(
                tgid=41_877,
                start_time_s=1.0,
                command="aie-engine serve",
                resident_anon_bytes=1_288_490_188,
                cpu_cores=1.62,
                threads=14,
            ),
        ),
        generation_tokens_history=tokens,
        running_history=running,
    )
    return msgspec.structs.replace(base, **changes)


def memory(name: str, tick: int = 0, **changes: object) -> Memory:
    physical = tuple(1.2 * GIB + 2e5 * max(tick - 120 + at, 0) + 3e6 * math.sin((tick + at) / 7) for at in range(120))
    base = Memory(
        engine=name,
        device="cpu",
        physical_bytes=physical[-1],
        allocator_reserved_bytes=0.75 * GIB,
        allocator_allocated_bytes=0.61 * GIB,
        unaccounted_bytes=physical[-1] - 0.75 * GIB,
        swap_bytes=0.0,
        limit_bytes=4 * GIB,
        physical_history=physical,
        reserved_history=(0.75 * GIB,) * 120,
    )
    return msgspec.structs.replace(base, **changes)


def host(name: str = "gpu-07", tick: int = 0) -> Host:
    busy = wave(tick, 120, 0.62, 0.2, 11.0)
    return Host(
        hostname=name,
        kernel="6.1.0-32-amd64",
        cpus=2,
        cpu_busy_ratio=busy[-1],
        cpu_steal_ratio=0.004,
        cpu_iowait_ratio=0.0,
        load1=2.31,
        memory_total_bytes=7.76 * GIB,
        memory_available_bytes=4.4 * GIB,
        swap_total_bytes=2 * GIB,
        swap_used_bytes=0.0,
        major_faults_per_second=0.0,
        pressure={
            "cpu": Pressure(some_ratio=0.062),
            "memory": Pressure(some_ratio=0.0, full_ratio=0.0),
            "io": Pressure(some_ratio=0.0004),
        },
        cpu_busy_history=busy,
    )


UP = tuple(Source(name=name, state="up", last_success_age_s=0.4) for name in ("host", "statsd", "scrape:smollm2"))


def snapshot(tick: int = 0, **changes: object) -> Snapshot:
    """An agent that watches nothing yet."""
    base = Snapshot(
        version=VERSION,
        time_s=TIME_S + tick,
        window_s=30.0,
        agent=Agent(
            version="0.1.0", uptime_s=11_600.0 + tick, series=412, series_limit=20_000, cpu_cores=0.011, resident_bytes=61e6
        ),
        host=host(tick=tick),
        sources=UP,
    )
    return msgspec.structs.replace(base, **changes)


def healthy(tick: int = 0) -> Snapshot:
    """Two engines at work; the second is known from outside only."""
    second = engine(
        "embedder",
        tick + 40,
        kv_usage_ratio=None,
        inter_token=Quantiles(),
        waiting=0.0,
        requests_per_second=31.4,
        model=None,
        kind=None,
    )
    return snapshot(
        tick,
        engines=(engine("smollm2", tick), second),
        memory=(
            memory("smollm2", tick),
            memory("embedder", tick + 60, allocator_reserved_bytes=None, allocator_allocated_bytes=None, unaccounted_bytes=None),
        ),
    )


def troubled(tick: int = 0) -> Snapshot:
    """Findings of each severity, an engine that is down, a source that is blind, and drops."""
    leak = Finding(
        cause="memory_leak_outside_allocator",
        subject="smollm2",
        severity="critical",
        since_s=TIME_S - 10_980,
        summary="physical memory rises 380 MiB an hour outside the allocator; full in about 7 h",
        evidence=(
            Evidence(
                text="physical − reserved rose from 0.45 GiB to 1.58 GiB in 3 h, limit 64 MiB an hour",
                metric="aie_engine_memory_unaccounted_bytes",
            ),
            Evidence(text="allocated stayed at 0.61 GiB ± 1 %", metric="aie_engine_allocator_allocated_bytes"),
        ),
        advice="Restart smollm2 at the next quiet moment; look for what holds it: CUDA graphs, cuBLAS handles, pinned buffers.",
        runbook="https://runbooks.example/aie/memory-leak-outside-allocator",
        confidence=0.93,
        not_visible=("kernel launches: static libcudart",),
        changes=("3 h 10 min ago: smollm2 restarted with --graphs",),
    )
    slow = Finding(
        cause="cpu_starved",
        subject="smollm2",
        severity="warning",
        since_s=TIME_S - 95,
        summary="waits for a CPU 31 % of its time",
        evidence=(Evidence(text="run-queue share 0.31 over 30 s, limit 0.10", metric="aie_process_run_queue_seconds_total"),),
        advice="Move the neighbour `kcompactd`-heavy job away or give the engine cores of its own.",
    )
    base = healthy(tick)
    agent = msgspec.structs.replace(base.agent, drops={"statsd: series limit": 1204.0})
    down = Source(
        name="process",
        state="down",
        reason="processes of other users are hidden from the agent (/proc is mounted with hidepid)",
        down_since_s=TIME_S - 48,
    )
    gone = msgspec.structs.replace(
        base.engines[1],
        state="down",
        down_since_s=TIME_S - 48,
        requests_per_second=None,
        generation_tokens_per_second=None,
        time_to_first_token=Quantiles(),
        running=None,
        waiting=None,
        cpu_cores=None,
        processes=(),
    )
    return msgspec.structs.replace(
        base,
        agent=agent,
        findings=(leak, slow),
        sources=(*UP, down),
        engines=(msgspec.structs.replace(base.engines[0], kv_usage_ratio=0.962, waiting=31.0), gone),
    )


def on_eight_gpus(base: Snapshots) -> Snapshots:
    """The same host with eight GPUs, some of them in trouble."""
    import agent_gpus  # beside this file

    return lambda tick: msgspec.structs.replace(base(tick), gpus=agent_gpus.troubled(8, tick))


def that_wait(base: Snapshots) -> Snapshots:
    """The same engines with what probes see of the first two: one fights for the GIL, the other for a lock."""
    import agent_waits  # beside this file

    return lambda tick: agent_waits.of_two(base(tick), tick)


def fights() -> Snapshots:
    """Four engines, each with waits of another kind."""
    import agent_waits  # beside this file

    return agent_waits.fights


if __name__ == "__main__":
    # A fresh picture every second, which is the agent's own pace.
    served = troubled if "--troubled" in sys.argv else healthy
    if "--fights" in sys.argv:
        served = fights()
    if "--waits" in sys.argv:
        served = that_wait(served)
    if "--gpus" in sys.argv:
        served = on_eight_gpus(served)
    numbers = [argument for argument in sys.argv[1:] if argument.isdigit()]
    with AgentApi(served, period_s=1.0, port=int(numbers[0]) if numbers else 9465) as api:
        print(api.url, flush=True)
        threading.Event().wait()
