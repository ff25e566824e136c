"""How long each stage of a request takes and how long requests are: exact, one observation a request and stage.

What each stage is stands in the catalogue; `aie_hooks.requests` follows the same words, and a test holds one against the other.
"""

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

    def tokenized(self, duration_s: float) -> None:
        """A request's prompt became tokens. Prompts that are refused before they are all encoded are not here."""
        self._tokenize.observe(duration_s)

    def first_token(self, request: Request, now: float) -> None:
        """A request's first token came."""
        if request.admitted_at is not None:
            self._prefill.observe(now - request.admitted_at)

    def generated(self, request: Request) -> None:
        """A request ended. One without tokens leaves nothing; the time between tokens needs two of them."""
        tokens = len(request.output_ids)
        if not tokens:
            return
        self.answered(len(request.prompt_ids), tokens)
        if tokens > 1 and request.first_token_at is not None and request.last_token_at is not None:
            decode_s = request.last_token_at - request.first_token_at
            self._decode.observe(decode_s)
            self._per_output_token.observe(decode_s / (tokens - 1))

    def answered(self, prompt_tokens: int, answer_tokens: int) -> None:
        """A request ended that had tokens, from the model or from the response cache."""
        self._prompt_tokens.observe(prompt_tokens)
        self._generation_tokens.observe(answer_tokens)

    def detokenized(self, duration_s: float) -> None:
        """All tokens of one answer became text, in so much time together."""
        self._detokenize.observe(duration_s)
