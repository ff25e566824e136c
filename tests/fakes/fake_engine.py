"""The engine's real HTTP side, scheduler and model loop on a port of its own, around a model without weights."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from fakes.fake_model import ByteTokenizer, FakeRunner

from aie_engine.chat_template import ChatTemplate
from aie_engine.config import EngineConfig
from aie_engine.exemplars import Exemplars
from aie_engine.kv_arena import KvArena
from aie_engine.loop import Delivery, ModelLoop
from aie_engine.metrics import EngineMetrics, Footprint, Loaded
from aie_engine.model_thread import ModelThread, forensics
from aie_engine.request import Outcome
from aie_engine.scheduler import Limits, Scheduler
from aie_engine.server import application
from aie_engine.serving import Model, Serving
from aie_hooks.emitter import Emitter
from aie_hooks.logits import LogitsHooks
from aie_hooks.requests import RequestHooks
from aie_hooks.tracing import Tracer

WAIT_S = 60.0
"""A bound for what should come soon; no test that passes waits for it."""

_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "


class FakeEngine:
    """One engine, served on `url` by a thread. `load` ends the loading phase; until then nothing is served."""

    def __init__(
        self,
        *,
        width: int = 1,
        template: str = _TEMPLATE,
        hook_rate: float = 0.1,
        tracer: Tracer | None = None,
        exemplars: Exemplars | None = None,
        **settings: Any,
    ) -> None:
        """`hook_rate` is the share of requests that the hooks follow. What they tell goes where the setting `statsd` says."""
        patient = {"kv_tokens": 4000, "statsd": "off", "body_timeout_s": 300.0}
        self.config = EngineConfig(model="fake", **(patient | settings))
        self.runner = FakeRunner(self.config.kv_tokens, self.config.max_step_tokens)
        self.emitter = Emitter("fake", self.config.statsd)
        self.hooks = RequestHooks(self.emitter, model="fake", rate=hook_rate, tracer=tracer, clock=time.monotonic)
        self.logits = LogitsHooks(self.emitter, model="fake", rate=hook_rate)
        self.metrics = EngineMetrics("fake", "fake", self.hooks, start_wall_s=time.time(), logits=self.logits, exemplars=exemplars)
        self.serving = Serving(self.config, self.metrics)
        self.url = ""
        self._width = width
        self._template = template
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def start(self) -> None:
        """Opens the port."""
        self._thread.start()
        assert self._up.wait(WAIT_S)

    def load(self) -> None:
        """Makes the model ready to serve."""
        self._model_thread = ModelThread(self._build)
        self._model_thread.start()
        model = self._model_thread.built.result(WAIT_S)
        self.call(lambda: self.serving.begin(model))

    def call(self, function: Callable[[], None]) -> None:
        """Runs a function on the server's thread and waits for it."""

        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self._events).result(WAIT_S)

    def close(self) -> None:
        """Stops everything."""
        self.runner.release()
        if self.serving._model is not None:
            self.serving._model.loop.stop()
            self._model_thread.finished.result(WAIT_S)
        self._events.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self.emitter.close()

    def settle(self) -> None:
        """Waits until the hooks have been told of everything that clients know, and all spans are made."""
        self.metrics.tell_hooks()
        self.wait_for(lambda: self.metrics.hooks_told)
        assert self.hooks.wait_for_spans(WAIT_S)

    def outcomes(self) -> dict[str, int]:
        """Ended requests by outcome, without zeros."""
        return {outcome.value: count for outcome, count in self.metrics.ledger.counts().ended.items() if count}

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Polls until the condition holds. Raises AssertionError after WAIT_S."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"never came: {self.metrics.ledger.counts()}"
            time.sleep(0.005)

    def wait_for_outcome(self, outcome: Outcome, count: int = 1) -> None:
        """Waits until so many requests have ended so, and nobody holds KV memory any more."""
        self.wait_for(lambda: self.outcomes().get(outcome.value) == count)
        assert self.serving.model().loop.kv_usage().used == 0

    def _build(self) -> Model:
        config, arena = self.config, KvArena(self.config.kv_tokens)
        tokenizer = ByteTokenizer(self._width)
        limits = Limits(config.max_running, config.max_waiting, config.max_step_tokens, config.kv_tokens, tokenizer.eos_ids)
        scheduler = Scheduler(limits, arena)
        watch = forensics(self.emitter, config.device, self.metrics)
        loop = ModelLoop(self.runner, scheduler, arena, self.metrics, self._hand_out, watch)
        self.metrics.loaded(Loaded("0", "r", "cpu", "float32", Footprint(1_000, 4_000, 10), loop.kv_usage))
        template = ChatTemplate(self._template)
        return Model(config.model_name, tokenizer, template, loop, scheduler.longest, int(time.time()), "r")

    def _hand_out(self, news: list[Delivery]) -> None:
        self._events.call_soon_threadsafe(lambda: [request.deliver(update) for request, update in news])

    async def _run(self) -> None:
        self._events = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        http = web.AppRunner(application(self.serving), handler_cancellation=True, access_log=None, shutdown_timeout=2.0)
        await http.setup()
        site = web.TCPSite(http, "127.0.0.1", 0)
        await site.start()
        host, port = http.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._up.set()
        await self._stop.wait()
        self.serving.close()
        await http.cleanup()


@contextmanager
def fake_engine(**settings: Any) -> Iterator[FakeEngine]:
    """A loaded engine; `settings` are FakeEngine's and EngineConfig's."""
    engine = FakeEngine(**settings)
    engine.start()
    try:
        engine.load()
        yield engine
    finally:
        engine.close()
