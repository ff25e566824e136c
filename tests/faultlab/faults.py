"""The table of faults: what is done, to whom, and which cause names it. A new one is a row, and what it does a function."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faultlab.clients import brief_chat, repeated_chat
from tests.faultlab.judge import Answer, Expected, Key
from tests.faultlab.world import Setup, World

PLAIN: Final = Setup("plain")
MEMORY: Final = Setup("memory")
GPUS: Final = Setup("gpus", gpus=8)
CACHED: Final = Setup("cached", engine_options=("--response-cache-bytes", str(64 << 20)), body=repeated_chat)
DRIFT: Final = Setup(
    "drift",
    engine_options=("--sample-outputs", "1", "--canary-every", "1s"),
    body=brief_chat,
    share=0.5,
    reference=Path(__file__).with_name("brief.aieref"),
)
CANARY_LEARNS_S: Final = 40.0
"""A canary's first twenty runs tell what it gives."""

SLOW: Final = ("queue_saturation", "prefill_interference", "tokenizer_bound", "gil_contention")
"""What a slow engine shows as well."""

Inject = Callable[[World], AbstractContextManager[None]]
"""Breaks the world while it is entered, and repairs it when it is left."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`answer` is what must be found, and stand first; None: nothing may be found (a null fault). `beside` are causes that are true
    as well, and may stand beside it; `suspected` may be for a while, as information. Every other is a false alarm. `healthy_s` is
    for how long nothing is wrong before. `renews`: engine and agent are started anew after it; `tells_on`: the agent is, since it
    tells of this, or remembers it, for a minute or more; `apart`: nobody else breaks what it breaks, so that nothing of it need be
    gone before the next. `fast`: people would know within seconds."""

    name: str
    what: str
    setup: Setup
    inject: Inject
    answer: Answer | None = None
    beside: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    limit_s: float = 60.0
    healthy_s: float = 10.0
    fast: bool = True
    renews: bool = False
    tells_on: bool = False
    apart: bool = False

    @property
    def expected(self) -> Expected:
        """What it is judged by."""
        return Expected(self.answer, self.beside, self.suspected)

    @property
    def keys(self) -> frozenset[Key]:
        """Who must be named, and what for; empty for a null fault."""
        return frozenset() if self.answer is None else frozenset({self.answer.key})


def inside(fault: str, **arguments: float | str) -> Inject:
    """A fault of `inside/breakage.py`."""
    return lambda world: world.inside(fault, **arguments)
