"""The engine's canary: one fixed text, computed every so often, and the log-probability of its last token after the others.

It is no request: it waits for a place that nobody else wants, computes in a step of its own between those of others, has token
slots of its own behind those of the KV cache, meets no response cache, and stands in no metric of requests. Alone in its step it
is computed alike each time, whatever else the engine does: on a CPU to the last bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch

from aie_engine.plan import Chunk, SamplingParams
from aie_hooks.logits import token_stats

if TYPE_CHECKING:
    from aie_engine.runner import Runner
    from aie_engine.serving import TextCodec

TEXT: Final = "The quick brown fox jumps over the lazy dog. Water boils at a hundred degrees, and freezes at zero"
"""Never to be changed: an agent that has learnt what it gives would take that for a change of the model. Its last word is not what
a model would bet on (-4.9 with SmolLM2), which moves it more than a sure one would."""

_log = logging.getLogger(__name__)


class Prompt:
    """The text as tokens: all but the last are given, the last is expected. `tokens` are the slots that it takes."""

    def __init__(self, tokenizer: TextCodec, longest: int, step_tokens: int) -> None:
        """Raises ValueError where the text does not fit a sequence of `longest` tokens, or a step of `step_tokens`."""
        ids = tokenizer.encode(TEXT, allow_special=False)
        if not 2 <= len(ids) <= min(longest, step_tokens):
            raise ValueError(f"the canary takes {len(ids)} tokens, and a step or a sequence here is shorter")
        self.given, self.expected = ids[:-1], ids[-1]

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return len(self.given)

    def logprob(self, runner: Runner, kv_start: int) -> float:
        """Of the expected token. The given ones are computed in the slots from `kv_start` on, which nobody else may have. Raises
        what the runner raises."""
        logits = runner.logits([Chunk(kv_start, 0, self.given, True, SamplingParams(temperature=0.0))])
        with torch.inference_mode():
            stats: list[list[float]] = token_stats(logits, torch.tensor([self.expected], device=logits.device)).tolist()
        return stats[0][0]


class Canary:
    """When the canary is due, and what came of it. For the model loop's thread alone; times are seconds of the loop's clock."""

    def __init__(self, every_s: float, compute: Callable[[], float], tell: Callable[[str, float | None], object]) -> None:
        """`tell` is given an outcome ("ok", "failed", "skipped") and a log-probability, which may be NaN, where there is one."""
        self._every_s = every_s
        self._compute = compute
        self._tell = tell
        self._due_s: float | None = None
        self._failing = False

    def due_in_s(self, now: float) -> float:
        """Seconds until it is due; 0 when it is. The first run is due at once."""
        return 0.0 if self._due_s is None else max(0.0, self._due_s - now)

    def passed_over(self, now: float) -> None:
        """It is due, and there is no place for it: it stays due, and is told as skipped once in each period that it missed."""
        if self._due_s is None:
            self._due_s = now
        elif now - self._due_s >= self._every_s:
            self._due_s = now
            self._tell("skipped", None)

    def run(self, now: float) -> None:
        """Computes it. Never raises: an engine that cannot compute its canary serves whom it can."""
        self._due_s = now + self._every_s
        try:
            logprob = self._compute()
        except Exception as error:  # noqa: BLE001 - whatever a broken model raises
            if not self._failing:
                _log.error("the canary failed; said once until it does not", exc_info=error)
            self._failing = True
            self._tell("failed", None)
            return
        self._failing = False
        self._tell("ok", logprob)
