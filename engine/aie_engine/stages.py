"""How long each stage of a request takes and how long requests are: exact, one observation a request and stage."""

from __future__ import annotations

from aie_engine.request import Request
from aie_telemetry.instruments import Registry


class StageTimes:
    """The catalogue's stage histograms of one engine and model. Thread-safe. Times are seconds of the engine's monotonic clock.

    The queue is not among them: `EngineMetrics` has it, with the other moments that the ledger knows.
    """

    def __init__(self, registry: Registry, engine: str, model: str) -> None:
        labels = (engine, model)
        self._tokenize = registry.distribution("aie_engine_tokenize_seconds", *labels)
        self._prefill = registry.distribution("aie_engine_prefill_seconds", *labels)
        self._decode = registry.distribution("aie_engine_decode_seconds", *labels)
        self._detokenize = registry.distribution("aie_engine_detokenize_seconds", *labels)
        self._per_output_token = registry.distribution("aie_engine_time_per_output_token_seconds", *labels)
        self._prompt_tokens = registry.distribution("aie_engine_request_prompt_tokens", *labels)
        self._generation_tokens = registry.distribution("aie_engine_request_generation_tokens", *labels)

    def tokenized(self, duration_s: float, prompt_tokens: int) -> None:
        """A request's prompt became so many tokens. Prompts that are refused before they are all encoded are not here."""
        self._tokenize.observe(duration_s)
        self._prompt_tokens.observe(prompt_tokens)

    def first_token(self, request: Request, now: float) -> None:
        """A request's first token came."""
        if request.admitted_at is not None:
            self._prefill.observe(now - request.admitted_at)

    def generated(self, request: Request) -> None:
        """A request ended. Its tokens are counted if it ever ran; the spaces between them need two of them."""
        if request.admitted_at is None:
            return
        tokens = len(request.output_ids)
        self._generation_tokens.observe(tokens)
        if request.first_token_at is None or request.last_token_at is None:
            return
        decode_s = request.last_token_at - request.first_token_at
        self._decode.observe(decode_s)
        if tokens > 1:
            self._per_output_token.observe(decode_s / (tokens - 1))

    def detokenized(self, duration_s: float) -> None:
        """All tokens of one answer became text, in so much time together."""
        self._detokenize.observe(duration_s)
