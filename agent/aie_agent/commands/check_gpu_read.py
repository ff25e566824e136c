"""Asks the GPUs for `aie-agent check`, each by itself: one whose driver hangs takes nobody with it.

Every call to NVML is made on a thread of `lanes.py`. What does not return in time is left behind, and ends with the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aie_agent.sources.nvml.devices import Identity, identify
from aie_agent.sources.nvml.door import Absent, Device, Door
from aie_agent.sources.nvml.facts import GpuFacts, Pair, cuda_version, read_facts, read_pairs
from aie_agent.sources.nvml.lanes import Job, Lanes
from aie_agent.sources.nvml.mig import MigReader
from aie_agent.sources.nvml.processes import Context, ProcessReader
from aie_agent.sources.nvml.session import Session

SESSION_PATIENCE_S: Final = 60.0
"""Opening NVML wakes every GPU where nothing keeps the driver loaded: seconds each."""

_SESSION: Final = "session"
_HANDLE: Final = "nvmlDeviceGetHandleByIndex"


@dataclass(slots=True)
class Asked:
    """What one GPU has told so far, written by the thread that asks it. `refused` is why it does not answer, `hung_s` for how long
    it has not."""

    index: int
    device: Device | None = None
    identity: Identity | None = None
    facts: GpuFacts | None = None
    contexts: list[Context] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    refused: str | None = None
    hung_s: float | None = None
    reader: ProcessReader | None = None
    mig: MigReader | None = None


class GpuHost:
    """NVML for the time of one check. `patience_s` is how long one GPU may take. `exists` is as of `ProcessReader`."""

    def __init__(self, patience_s: float, exists: Callable[[int], bool] | None) -> None:
        self.session = Session(lambda: None)
        self.cuda: tuple[int, int] | None = None
        self.asked: list[Asked] = []
        self._patience_s = patience_s
        self._exists = exists
        self._lanes = Lanes("check-nvml")

    async def open(self) -> str | None:
        """Opens NVML. Returns why it cannot be used, None where it can."""
        began_s = time.monotonic()
        await self._lanes.run([Job(_SESSION, self._open)], max(self._patience_s, SESSION_PATIENCE_S))
        if _SESSION in self._lanes.away():
            return f"NVML hangs while it is opened, for {time.monotonic() - began_s:.0f} s: see the kernel log"
        if self.session.error is not None or self.session.door is None:
            return self.session.error or "NVML is closed"
        return None

    async def ask(self) -> None:
        """Asks every GPU everything, and then how it reaches those after it."""
        assert self.session.door is not None
        door = self.session.door
        self.asked = [Asked(index) for index in range(len(self.session.gpus))]
        await self._each(self.asked, lambda asked: self._ask(door, asked))
        whole = [asked for asked in self.asked if asked.facts is not None]
        await self._each(whole, lambda asked: _ask_pairs(door, asked, whole))

    async def look_again(self) -> set[int]:
        """The pids that hold a context now, on the GPUs that answer."""
        whole = [asked for asked in self.asked if asked.reader is not None]
        await self._each(whole, _ask_contexts)
        return {context.pid for asked in whole for context in asked.contexts}

    async def close(self) -> None:
        """Ends the session, unless a call hangs in it: then the end of the process does."""
        if not self._lanes.away():
            await self._lanes.run([Job(_SESSION, self.session.close)], self._patience_s)
        self._lanes.close()

    async def _each(self, gpus: Sequence[Asked], work: Callable[[Asked], None]) -> None:
        await self._lanes.run([Job(asked.index, partial(work, asked)) for asked in gpus], self._patience_s)
        for index, away_s in self._lanes.away().items():
            if isinstance(index, int):
                self.asked[index].hung_s = away_s

    def _open(self) -> None:
        self.session.open()
        if self.session.door is not None and self.session.error is None:
            self.cuda = cuda_version(self.session.door)

    def _ask(self, door: Door, asked: Asked) -> None:
        handle = door.query(_HANDLE, None, asked.index)
        asked.device = Device(asked.index, None if isinstance(handle, Absent) else handle)
        identity = handle if isinstance(handle, Absent) else identify(door, asked.device)
        if isinstance(identity, Absent):
            asked.refused = identity.reason
            return
        asked.identity = identity
        asked.facts = read_facts(door, asked.device, identity)
        asked.reader = ProcessReader(door, asked.device, self._exists)
        asked.mig = MigReader(door, asked.device, self._exists)
        _ask_contexts(asked)


def _ask_contexts(asked: Asked) -> None:
    """Where the GPU as a whole tells of none, its MIG instances are asked: it tells only who has the privilege."""
    assert asked.reader is not None
    assert asked.mig is not None
    wall_s = time.time()
    found = asked.reader.read(None, wall_s)
    asked.contexts = [] if isinstance(found, Absent) else found
    if not asked.contexts:
        asked.mig.find()
        asked.contexts = asked.mig.contexts(None, wall_s) or []


def _ask_pairs(door: Door, asked: Asked, whole: Sequence[Asked]) -> None:
    assert asked.device is not None
    assert asked.facts is not None
    others = [
        (other.device, other.facts)
        for other in whole
        if other.index > asked.index and other.hung_s is None and other.device is not None and other.facts is not None
    ]
    asked.pairs = list(read_pairs(door, asked.device, asked.facts, others))
