"""From what the agent holds to what is wrong. A cause is a row of a table: a pure function of the view, an engine and the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from aie_agent.neighbour import Neighbour
from aie_agent.progress import Progress
from aie_agent.request_values import Arrived
from aie_agent.samples import Batch, Point, Tags
from aie_agent.store import Store
from aie_telemetry.api import Coverage, Event, Finding, Gpu, Lock
from aie_telemetry.catalogue import Kind


class ProcessState(NamedTuple):
    """What causes need of a process: `state` is the letter of /proc/PID/stat (R, S, D, T, t, ...), found at each look since
    `state_since_s`; CPU is of the last period. `cpus_allowed` are those that it may run on, None where that is not known.
    `arguments` are those that it was started with, its program first."""

    tgid: int
    state: str
    state_since_s: float
    cpu_cores: float | None
    cpus_allowed: frozenset[int] | None = None
    arguments: tuple[str, ...] = ()


class SourceHealth(NamedTuple):
    """What causes need of a source of the agent: `reason` is why it is down, None while it works; `last_read_s` is when
    it last delivered something, also at a look that failed all the same (a page that takes too long); None while it never has."""

    name: str
    reason: str | None
    down_since_s: float | None
    last_read_s: float | None = None


class Limits(NamedTuple):
    """The thresholds that the configuration gives."""

    hung_after_s: float = 30.0


def _no_progress(engine: str) -> None:
    """Of engines without a page."""


def _never(engine: str) -> None:
    """Of engines that never went down."""


def _no_stacks(engine: str, cause: str) -> None:
    """Where nobody takes any."""


def _no_locks(engine: str) -> tuple[Lock, ...]:
    """Where no probe sees any."""
    return ()


class Stacks(NamedTuple):
    """What two dumps of an engine's Python stacks show, taken after something was found wrong with it: sentences for who hangs, for
    who waits for locks, and for who holds the GIL; at which futexes (tgid, address) only idle workers wait; and why what could not
    be read could not."""

    hang: tuple[str, ...] = ()
    locks: tuple[str, ...] = ()
    gil: tuple[str, ...] = ()
    idle: frozenset[tuple[int, int]] = frozenset()
    problems: tuple[str, ...] = ()


class Heard(NamedTuple):
    """What ran in an engine when it was last heard, how long before it went that was, and whether it still ran at the end: it was
    just heard, and does not show requests that have ended."""

    running: float
    before_s: float
    is_of_end: bool

    @property
    def are_lost(self) -> bool:
        """Whether requests went with it."""
        return self.running > 0 and self.is_of_end


def _not_remembered(engine: str) -> None:
    """Where nobody remembers more than the store."""


def _no_gpus() -> tuple[Gpu, ...]:
    """Where there are none."""
    return ()


def _no_drivers() -> dict[str, str]:
    """Where no version is known."""
    return {}


def _no_coverage(engine: str) -> tuple[Coverage, ...]:
    """Where nobody knows of probes."""
    return ()


def _no_neighbours() -> tuple[Neighbour, ...]:
    """Where nobody looks."""
    return ()


def _nobody_asked(engine: str) -> str | None:
    """Where no engine is asked for its memory."""


def _no_pids(engine: str) -> frozenset[int]:
    """Where no process is known."""
    return frozenset()


def _no_values(position: int) -> tuple[int, tuple[Arrived, ...]]:
    """Where no single values are kept."""
    return position, ()


def _not_held(cause: str, subject: str) -> None:
    """Where nothing was found before."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a cause may look at. `unanswered_since_s` is since when an engine's page has not answered in time, without
    any other outcome in between; None while it answers, refuses, or has no page. `progress` is what its page says beyond
    the metrics, None where it has no page. `stacks` are those taken since a cause was found, None until then; `locks` are those
    that probes see its threads wait for, the worst first. `gpus` are as the API shows them. `drivers` are versions by what they are
    of ("NVIDIA driver"). `sources` are the agent's own, with why one is down. `events` are what hooks and probes told of lately,
    the newest first. `down_since_s` is since when an engine has no process, None while it has one or none was ever seen;
    `back_since_s` since when it has one again after minutes without, None where it never was away so long. `values`
    are single numbers of requests that came since a position, and the next position (request_values.py). `nodes` are the CPUs of
    each NUMA node of the host. `coverage` is what probes see of an engine, and what not. `configured` are
    the engines that the configuration names. `recalled` are those that the agent knows only from before it was restarted.
    `neighbours` are busy processes of no engine. `asked` is the id of the memory probe that an engine was asked for; `pids` are its
    processes by every pid that they have, out here and in their containers. `held_since_s` is since when a cause is found of a
    subject without having ended, None where it is not: for a cause that ends elsewhere than it begins, later than the store
    remembers; `held` is what was found of it last, which may say what the store has forgotten. `last_heard` is what ran in an
    engine that is down, also when the store has forgotten it; None where nobody remembers it."""

    store: Store
    engines: Sequence[str]
    state: Callable[[str], Literal["up", "down", "unknown"]]
    processes: Callable[[str], Sequence[ProcessState]]
    unanswered_since_s: Callable[[str], float | None]
    limits: Limits
    progress: Callable[[str], Progress | None] = _no_progress
    stacks: Callable[[str, str], Stacks | None] = _no_stacks
    locks: Callable[[str], Sequence[Lock]] = _no_locks
    gpus: Callable[[], Sequence[Gpu]] = _no_gpus
    drivers: Callable[[], Mapping[str, str]] = _no_drivers
    sources: Sequence[SourceHealth] = ()
    events: Sequence[Event] = ()
    down_since_s: Callable[[str], float | None] = _never
    back_since_s: Callable[[str], float | None] = _never
    configured: frozenset[str] = frozenset()
    values: Callable[[int], tuple[int, Sequence[Arrived]]] = _no_values
    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    coverage: Callable[[str], Sequence[Coverage]] = _no_coverage
    recalled: frozenset[str] = frozenset()
    neighbours: Callable[[], Sequence[Neighbour]] = _no_neighbours
    asked: Callable[[str], str | None] = _nobody_asked
    pids: Callable[[str], frozenset[int]] = _no_pids
    held_since_s: Callable[[str, str], float | None] = _not_held
    held: Callable[[str, str], Finding | None] = _not_held
    last_heard: Callable[[str], Heard | None] = _not_remembered


EngineCause = Callable[[View, str, float], Finding | None]
"""A cause that is looked for in each engine by itself."""

SubjectCause = Callable[[View, float], Sequence[Finding]]
"""A cause that names its own subjects: GPUs ("gpu0"), the host ("host"), the agent ("agent")."""


def find(view: View, causes: Sequence[EngineCause], now_s: float) -> tuple[Finding, ...]:
    """What these causes find of all engines at `now_s`, in no particular order."""
    return tuple(found for engine in view.engines for cause in causes if (found := cause(view, engine, now_s)) is not None)


def as_batch(findings: Sequence[Finding], more: Sequence[Point], now_s: float) -> Batch:
    """`aie_finding`, one series a finding that nothing else explains, 1 while it holds; and what else the analysis measures."""
    points = [Point("aie_finding", Kind.GAUGE, _labels(each), 1.0) for each in findings if not each.explained_by]
    return Batch("analysis", now_s, [*points, *more])


def _labels(finding: Finding) -> Tags:
    """The label `model` only where it is of one: an empty one is none (Prometheus)."""
    model = (("model", finding.model),) if finding.model else ()
    return (("cause", finding.cause), *model, ("severity", finding.severity), ("subject", finding.subject))
