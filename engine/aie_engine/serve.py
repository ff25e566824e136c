"""The life of the process: bind, load, serve, stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from aie_engine.config import EngineConfig
from aie_engine.exemplars import Exemplars
from aie_engine.loop import Delivery
from aie_engine.metrics import EngineMetrics
from aie_engine.model_thread import ModelThread, StartError, build_model
from aie_engine.server import application
from aie_engine.serving import Model, Phase, Serving
from aie_engine.tracing import otlp_tracing, request_tracer, shut_down
from aie_hooks.allocator import AllocatorHook
from aie_hooks.canary import ALONE_NOISE_NATS, Canary
from aie_hooks.emitter import Emitter
from aie_hooks.logits import LogitsHooks
from aie_hooks.memory_probe import MemoryProbe
from aie_hooks.requests import RequestHooks

if TYPE_CHECKING:
    from aie_engine.span_counts import SpanCounts

EXIT_OK: Final = 0
EXIT_CRASHED: Final = 1
EXIT_CANNOT_START: Final = 2

_ALLOCATOR_PERIOD_S: Final = 1.0
_IDLE_POLL_S: Final = 0.02
_LAST_STEP_S: Final = 5.0  # for the step under way, once the grace time is over
_LAST_WRITES_S: Final = 2.0
_LAST_SPANS_S: Final = 1.0
_BACKLOG: Final = 512

_log = logging.getLogger(__name__)


def serve(config: EngineConfig) -> int:
    """Runs the engine until a signal; returns the exit status. Raises ModelError and StartError when it cannot start."""
    tracing = otlp_tracing(config)
    emitter = _emitter(config)
    try:
        exemplars = Exemplars()
        tracer = None if tracing is None else request_tracer(config, tracing.provider, exemplars.note)
        spans = None if tracing is None else tracing.counts
        # Before anything is loaded: a port in use should not take seconds to be found out.
        hooks = RequestHooks(emitter, model=config.model_name, tracer=tracer, clock=time.monotonic)
        process = _Process(config, _bind(config.host, config.port), emitter, hooks, exemplars, spans)
        status = asyncio.run(process.run())
        hooks.wait_for_spans(_LAST_SPANS_S)
    finally:
        emitter.close()
        if tracing is not None:
            shut_down(tracing.provider)
    if process.thread.is_alive():
        # It hangs in native code or still loads. Taking the interpreter down around it could crash, so leave at once.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _bind(host: str, port: int) -> socket.socket:
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # With SO_REUSEADDR it is listening, not binding, that a second engine on the port fails at.
        listener.listen(_BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error} (choose with --host and --port)") from error
    return listener


def _emitter(config: EngineConfig) -> Emitter:
    try:
        return Emitter(config.name, config.statsd)
    except ValueError as error:
        raise StartError(f"--statsd or --name: {error}") from error


def memory_probe(config: EngineConfig, emitter: Emitter, metrics: EngineMetrics) -> MemoryProbe | None:
    """What gives back retained memory when the agent asks; None where the operator did not want that. Raises StartError for metrics
    that go where there is no agent's file."""
    if config.memory_probe_s is None:
        return None

    def is_idle() -> bool:
        counts = metrics.ledger.counts()
        return counts.running + counts.waiting == 0

    try:
        return MemoryProbe(emitter, metrics.allocator_stats, idle=is_idle, every_s=config.memory_probe_s)
    except ValueError as error:
        raise StartError(f"--memory-probe: {error}; give --statsd the agent's Unix socket") from error


def _deliver(news: list[Delivery]) -> None:
    for request, update in news:
        request.deliver(update)


class _Process:
    """Wires the parts together and takes them down again, in order."""

    def __init__(
        self,
        config: EngineConfig,
        listener: socket.socket,
        emitter: Emitter,
        hooks: RequestHooks,
        exemplars: Exemplars,
        spans: SpanCounts | None = None,
    ) -> None:
        self._config = config
        self._listener = listener
        share = config.sample_outputs
        logits = LogitsHooks(emitter, model=config.model_name, rate=share) if share else None
        canary = None if config.canary_every_s is None else Canary(emitter, model=config.model_name, noise_nats=ALONE_NOISE_NATS)
        self._metrics = EngineMetrics(
            config.name,
            config.model_name,
            hooks,
            start_wall_s=time.time(),
            logits=logits,
            canary=canary,
            exemplars=exemplars,
            spans=spans,
        )
        self._allocator = AllocatorHook(emitter, self._metrics.allocator_stats)
        self._probe = memory_probe(config, emitter, self._metrics)
        self._serving = Serving(config, self._metrics)
        self._signalled = asyncio.Event()
        self.thread = ModelThread(lambda: build_model(config, self._metrics, self._hand_out, emitter))

    async def run(self) -> int:
        """From the first answer on /health to the exit status."""
        self._events = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._events.add_signal_handler(number, self._signalled.set)
        app = application(self._serving)
        # handler_cancellation: the handler of a client that hangs up is cancelled, and with it the request.
        http = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_LAST_WRITES_S)
        await http.setup()
        site = web.SockSite(http, self._listener, backlog=_BACKLOG)
        await site.start()
        _log.info("listening on %s, loading %s", self._url(), self._config.model)
        try:
            model = await self._load()
            return EXIT_OK if model is None else await self._serve(model, site)
        finally:
            self._serving.close()
            await http.cleanup()

    async def _load(self) -> Model | None:
        """Waits for the model; None when a signal comes first. Raises what loading raised."""
        started = time.monotonic()
        self.thread.start()
        built = asyncio.wrap_future(self.thread.built)
        if not await self._before_signal(built):
            return None
        model = built.result()
        self._serving.begin(model)
        kv = model.loop.kv_usage()
        print(
            f"aie-engine: ready on {self._url()}, model {model.name}, loaded in {time.monotonic() - started:.1f} s, "
            f"KV cache {kv.capacity} tokens",
            flush=True,
        )
        return model

    async def _serve(self, model: Model, site: web.SockSite) -> int:
        finished = asyncio.wrap_future(self.thread.finished)
        reports = asyncio.create_task(self._report_allocator())
        try:
            if await self._before_signal(finished):
                _log.critical("the model loop died", exc_info=finished.exception())
                return EXIT_CRASHED
            await self._stop(model, site, finished)
            return EXIT_OK
        finally:
            reports.cancel()

    async def _stop(self, model: Model, site: web.SockSite, finished: asyncio.Future[None]) -> None:
        """Takes no more requests, lets those at work finish within the grace time (or until a second signal), ends the loop."""
        self._serving.phase = Phase.STOPPING
        self._signalled.clear()
        await site.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.grace_s):
                # Polled: the ledger belongs to several threads, and this is the one time that anybody waits for it.
                while self._requests() and not self._signalled.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(_IDLE_POLL_S)
        if self._requests():
            _log.warning("%d requests did not finish in time and are ended", self._requests())
        model.loop.stop()
        await asyncio.wait({finished}, timeout=_LAST_STEP_S)

    async def _before_signal(self, future: asyncio.Future[Any]) -> bool:
        """Waits; True when the future is done, False when a signal came first."""
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait({future, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        return future.done()

    async def _report_allocator(self) -> None:
        while True:
            self._allocator.report()
            if self._probe is not None:
                await asyncio.to_thread(self._probe.look)  # malloc_trim takes a while, and does not hold the interpreter
            await asyncio.sleep(_ALLOCATOR_PERIOD_S)

    def _hand_out(self, news: list[Delivery]) -> None:
        self._events.call_soon_threadsafe(_deliver, news)

    def _requests(self) -> int:
        counts = self._metrics.ledger.counts()
        return counts.running + counts.waiting

    def _url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
