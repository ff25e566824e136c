"""The view model: what the screen shows, as frozen rows. Built off the UI thread by model.py; the views only format it."""

from __future__ import annotations

from typing import Literal

import msgspec

from aie_telemetry.api import Agent, Drift, Engine, Gpu, GpuProcess, Host, Lock, Memory, Severity, Snapshot, Source
from aie_top.gpu_state import Condition
from aie_top.waits import are_probed

Phase = Literal["connecting", "live", "away"]


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """What the client knows of one agent. `label` is its URL without credentials; `received_s` is on the monotonic clock.

    `reason` says in a few words why it is away. The last snapshot stays when the agent goes.
    """

    label: str
    phase: Phase = "connecting"
    reason: str | None = None
    snapshot: Snapshot | None = None
    received_s: float | None = None


class ProblemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of "what is wrong". `why`, `advice` and `explains`, what else is wrong because of it, are sentences; `age_s` is
    since when."""

    severity: Severity
    summary: str
    subject: str = ""
    host: str = ""
    age_s: float | None = None
    why: tuple[str, ...] = ()
    advice: str = ""
    runbook: str = ""
    confidence: float | None = None
    not_visible: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()


class EngineRow(msgspec.Struct, frozen=True, kw_only=True):
    """`stale_s` is the age of the data when it is old, else None; `hangs` is whether the agent says so."""

    agent: str
    host: str
    engine: Engine
    stale_s: float | None = None
    hangs: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.agent, self.engine.name


class LockRow(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that threads of an engine wait for. `stale_s` as in EngineRow."""

    host: str
    engine: str
    lock: Lock
    stale_s: float | None = None


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    host: str
    memory: Memory
    stale_s: float | None = None


class DriftRow(msgspec.Struct, frozen=True, kw_only=True):
    """How far the comparison of an engine and model is. `stale_s` as in EngineRow."""

    agent: str
    host: str
    drift: Drift
    stale_s: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.agent, self.drift.engine, self.drift.model


class GpuRow(msgspec.Struct, frozen=True, kw_only=True):
    """`found` is what is worth a word about it, worst first; `time_s` is when its agent told of it, by the agent's clock."""

    agent: str
    host: str
    gpu: Gpu
    found: tuple[Condition, ...] = ()
    time_s: float | None = None
    stale_s: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.agent, self.gpu.uuid or str(self.gpu.index)

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of the engines that hold a context on it."""
        return tuple(sorted({one.engine for one in self.gpu.processes if one.engine}))


class GpuProcessRow(msgspec.Struct, frozen=True, kw_only=True):
    """A process and all GPUs on which it holds a context. `memory_bytes` is of all of them, `sm_ratio` the mean over them.

    `depth` is how far below a process of the table it stands in the tree.
    """

    agent: str
    host: str
    process: GpuProcess
    gpus: tuple[int, ...]
    memory_bytes: int | None = None
    sm_ratio: float | None = None
    depth: int = 0
    simulated: bool = False
    stale_s: float | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.agent, self.process.tgid


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """An agent and its host."""

    agent: str
    phase: Phase
    reason: str | None = None
    host: Host | None = None
    about: Agent | None = None
    sources: tuple[Source, ...] = ()
    stale_s: float | None = None

    @property
    def name(self) -> str:
        return self.host.hostname if self.host is not None else self.agent.partition("://")[2]


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the screen at one moment. `clock` is the time of the newest data, for the reader's eyes."""

    clock: str = ""
    window_s: float | None = None
    hosts: tuple[HostRow, ...] = ()
    problems: tuple[ProblemRow, ...] = ()
    engines: tuple[EngineRow, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    gpus: tuple[GpuRow, ...] = ()
    gpu_processes: tuple[GpuProcessRow, ...] = ()
    drift: tuple[DriftRow, ...] = ()

    @property
    def compared(self) -> tuple[DriftRow, ...]:
        """Those that have something to say: a reference, a canary, or requests that no reference fits."""
        return tuple(row for row in self.drift if row.drift.model)

    @property
    def several_hosts(self) -> bool:
        return len(self.hosts) > 1

    @property
    def waiting(self) -> tuple[EngineRow, ...]:
        """The engines, where probes see what any of them waits for; else none."""
        return self.engines if any(are_probed(row.engine.waits) for row in self.engines) else ()


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What the user chose: how to sort, what to show."""

    sort: str = "name"
    reverse: bool = False
    filter: str = ""
    paused: bool = False
