"""What the HTTP handlers share: the configuration, the metrics, and the model once it is there."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from aiohttp import web

from aie_engine.chat_template import ChatTemplate
from aie_engine.config import EngineConfig
from aie_engine.degrade import State
from aie_engine.generation import TextStream
from aie_engine.http_errors import unavailable
from aie_engine.loop import ModelLoop
from aie_engine.metrics import EngineMetrics
from aie_engine.response_cache import ResponseCache
from aie_engine.uploads import Uploads

_PREPARING_THREADS: Final = 2
_MAX_RETRY_AFTER_S: Final = 60

T = TypeVar("T")


class TextCodec(Protocol):
    """Text to token ids and back: `Tokenizer`. Thread-safe."""

    eos_ids: frozenset[int]
    vocab_size: int

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Token ids of `text`."""
        ...

    def stream(self) -> TextStream:
        """A decoder for one answer."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; none for control tokens."""
        ...

    def token_name(self, token_id: int) -> str:
        """How the vocabulary writes a token."""
        ...


class Phase(StrEnum):
    """Where the process stands; it passes these in order."""

    LOADING = "loading"
    SERVING = "serving"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Model:
    """The model that is served. `longest` is how many tokens prompt and answer may have together."""

    name: str
    tokenizer: TextCodec
    chat_template: ChatTemplate | None
    loop: ModelLoop
    longest: int
    created_wall_s: int
    revision: str


class Serving:
    """The one mutable thing of the HTTP side; used on the event loop's thread alone."""

    def __init__(self, config: EngineConfig, metrics: EngineMetrics) -> None:
        self.config = config
        self.metrics = metrics
        # No more memory than the bodies of all requests that there are places for.
        self.uploads = Uploads(config.max_body_bytes, config.max_requests * config.max_body_bytes)
        self.cache = ResponseCache(config.response_cache_bytes) if config.response_cache_bytes else None
        if self.cache is not None:
            metrics.watch_cache(self.cache)
        self.phase = Phase.LOADING
        self.degraded = State()
        self._model: Model | None = None
        # Long prompts take milliseconds to encode: neither the event loop nor the model loop may wait for them.
        self._preparing = ThreadPoolExecutor(_PREPARING_THREADS, "aie-tokenize")

    def begin(self, model: Model) -> None:
        """The model is there: requests are taken from now on."""
        self._model = model
        self.phase = Phase.SERVING

    def degrade(self, state: State) -> None:
        """From now on answers are marked as not to be trusted, and none is kept; or are trusted again."""
        self.degraded = state
        if state.causes and self.cache is not None:
            self.cache.clear()

    def model(self) -> Model:
        """The model. Raises ApiError (503) while it loads and once the process stops."""
        if self.phase is Phase.STOPPING:
            raise unavailable("The engine is shutting down.", "shutting_down")
        if self._model is None:
            raise unavailable("The model is still loading.", "loading")
        return self._model

    async def prepare(self, work: Callable[[], T]) -> T:
        """Runs `work` (encoding of a prompt) beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._preparing, work)

    def retry_after_s(self, model: Model) -> int:
        """Whole seconds until the queue that is full now will probably be worked off, 1 to 60."""
        return min(_MAX_RETRY_AFTER_S, max(1, math.ceil(model.loop.drain_s() or 0.0)))

    def not_ready(self) -> str | None:
        """Why no requests should be sent here; None when they should.

        Beside loading and stopping: an agent says that answers are worthless. Or requests run, and neither has a token come nor did
        the first of them begin for `stall_s`. That counters stand still while requests run is the one reliable sign of a hang.
        """
        if self.phase is not Phase.SERVING:
            return self.phase.value
        if self.degraded.critical:
            return f"answers are not to be trusted: {', '.join(self.degraded.causes)}"
        busy_since = self.metrics.ledger.counts().busy_since
        if busy_since is None:
            return None
        silent_s = time.monotonic() - max(busy_since, self.metrics.last_token_at or busy_since)
        if silent_s < self.config.stall_s:
            return None
        return f"requests run, but no token has come for {silent_s:.0f} s"

    def close(self) -> None:
        """Ends the tokenizer threads."""
        self._preparing.shutdown(wait=False, cancel_futures=True)


SERVING: Final = web.AppKey("serving", Serving)
