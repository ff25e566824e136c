"""The table of faults: what is done, to whom, and which cause names it. A new one is a row, and what it does a function."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aie_agent.analysis.leaks.lines import LeakClass
from aie_telemetry.api import Severity
from tests.faultlab.clients import brief_chat, repeated_chat
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
    """`expected` are the causes of which one must be named, and stand first; none: nothing may be found (a null fault). `classes`
    are those of a leak of which its finding must name one, and `severity` is what it must have; empty: any will do. `beside`
    are those that are true as well, and may stand beside it. `healthy_s` is for how long nothing is wrong before. `renews`: engine
    and agent are started anew after it; `tells_on`: the agent is, since it tells of this for minutes; `apart`: nobody else breaks
    what it breaks, so that nothing of it need be gone before the next. `fast`: people would know within seconds."""

    name: str
    what: str
    setup: Setup
    inject: Inject
    expected: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    limit_s: float = 60.0
    healthy_s: float = 10.0
    fast: bool = True
    renews: bool = False
    tells_on: bool = False
    apart: bool = False
    classes: tuple[LeakClass, ...] = ()
    severity: Severity | None = None


def inside(fault: str, **arguments: float | str) -> Inject:
    """A fault of `inside/breakage.py`."""
    return lambda world: world.inside(fault, **arguments)
