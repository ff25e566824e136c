"""The schema of the agent's HTTP API, version 1: what `aie-top` and scripts read.

Numbers are numbers, with the unit in the key. What is not known is null, never 0. Fields are only ever added within a version;
a reader passes over keys it does not know.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from aie_telemetry.api_drift import Drift as Drift
from aie_telemetry.api_drift import DriftCanary as DriftCanary
from aie_telemetry.api_drift import DriftStatistic as DriftStatistic
from aie_telemetry.api_probes import Coverage as Coverage
from aie_telemetry.api_probes import CoverageState as CoverageState
from aie_telemetry.api_probes import CudaCopies as CudaCopies
from aie_telemetry.api_probes import CudaSyncs as CudaSyncs
from aie_telemetry.api_probes import CudaUse as CudaUse
from aie_telemetry.api_probes import Lock as Lock
from aie_telemetry.api_probes import Waits as Waits
from aie_telemetry.api_stacks import Frame as Frame
from aie_telemetry.api_stacks import StackDump as StackDump
from aie_telemetry.api_stacks import StacksPage as StacksPage
from aie_telemetry.api_stacks import ThreadStack as ThreadStack

VERSION: Final = 1

Severity = Literal["info", "warning", "critical"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence that supports a finding: the number, the threshold and the metric it came from."""

    text: str
    metric: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something is wrong: what, with whom, since when, how we know, what to do. Produced by the agent's analysis.

    `confidence` is null where the rule is exact and there is nothing to estimate. `changes` are what changed before it began, the
    latest first. `explained_by` is the cause of another finding that explains this one, or "", and `explained_by_subject` its
    subject ("" also from agents that do not say). `device` is of what concerns memory on one device: "cpu", "cuda0"; else "".
    `model` is of what concerns one model of an engine that may serve several; else "".
    """

    cause: str
    subject: str
    severity: Severity
    since_s: float
    summary: str
    evidence: tuple[Evidence, ...] = ()
    advice: str = ""
    runbook: str = ""
    confidence: float | None = None
    not_visible: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    explained_by: str = ""
    explained_by_subject: str = ""
    device: str = ""
    model: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it the same finding a second later: its cause, subject and model."""
        return self.cause, self.subject, self.model


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened at one moment and that hooks told of. `details` are numbers and words by name, units in the names."""

    time_s: float
    kind: str
    engine: str
    summary: str
    details: dict[str, float | str] = {}


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of a latency histogram over the window, interpolated within buckets as Prometheus does. Null without observations."""

    p50_seconds: float | None = None
    p99_seconds: float | None = None


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process of an engine, by the pid and start time that the agent sees."""

    tgid: int
    start_time_s: float
    command: str
    resident_anon_bytes: int | None = None
    cpu_cores: float | None = None
    threads: int | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine over the last `Snapshot.window_s` seconds. Histories hold one point every `Snapshot.history_step_s` seconds,
    oldest first, the last one at `Snapshot.time_s`.

    `run_queue_threads` is how many of its threads were ready and waited for a CPU, on average; `throttled_cores` how many CPUs its
    quota took from it. `state` is "unknown" while no process of it was seen; `note` says why. `container` is the beginning of
    its container's id, `pod` the uid of its Kubernetes pod. `page_reason` is why its metrics page cannot be read at present.
    `running_at_end` is of an engine that is down: how many requests ran when it was last heard, for as long as the agent remembers
    its metrics. `waits`, `locks` (the worst five), `cuda` and `coverage` are what probes see of it, `probe_overhead_ratio` the
    share of one CPU that they took from it.
    """

    name: str
    state: Literal["up", "down", "unknown"]
    down_since_s: float | None = None
    kind: str | None = None
    model: str | None = None
    version: str | None = None
    device: str | None = None
    container: str | None = None
    pod: str | None = None
    metrics_from: tuple[str, ...] = ()
    uptime_s: float | None = None
    requests_per_second: float | None = None
    errors_per_second: float | None = None
    outcomes_per_second: dict[str, float] = {}
    running: float | None = None
    waiting: float | None = None
    kv_usage_ratio: float | None = None
    prompt_tokens_per_second: float | None = None
    generation_tokens_per_second: float | None = None
    time_to_first_token: Quantiles = Quantiles()
    inter_token: Quantiles = Quantiles()
    queue: Quantiles = Quantiles()
    prefill: Quantiles = Quantiles()
    decode: Quantiles = Quantiles()
    tokenize: Quantiles = Quantiles()
    duration: Quantiles = Quantiles()
    last_token_age_s: float | None = None
    cpu_cores: float | None = None
    run_queue_threads: float | None = None
    throttled_cores: float | None = None
    major_faults_per_second: float | None = None
    processes: tuple[Process, ...] = ()
    generation_tokens_history: tuple[float | None, ...] = ()
    running_history: tuple[float | None, ...] = ()
    page_reason: str | None = None
    running_at_end: float | None = None
    waits: Waits | None = None
    locks: tuple[Lock, ...] = ()
    cuda: CudaUse | None = None
    coverage: tuple[Coverage, ...] = ()
    probe_overhead_ratio: float | None = None
    note: str | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Physical memory of an engine on a device, against what its allocator knows of."""

    engine: str
    device: str
    physical_bytes: float | None = None
    allocator_reserved_bytes: float | None = None
    allocator_allocated_bytes: float | None = None
    unaccounted_bytes: float | None = None
    swap_bytes: float | None = None
    limit_bytes: float | None = None
    physical_history: tuple[float | None, ...] = ()
    reserved_history: tuple[float | None, ...] = ()


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a context on a GPU. `engine` is None for one that belongs to no engine: an orphan when it is `orphan`;
    before it is told so, for some seconds it may be one that has `ended`, and is in the driver's list still.

    `memory_bytes` is None where the driver does not tell it; `sm_ratio` where it has no fresh sample. `pod` is the uid of its
    Kubernetes pod, as its control group has it.
    """

    tgid: int
    command: str
    engine: str | None = None
    orphan: bool = False
    ended: bool = False
    kind: str = "compute"
    memory_bytes: int | None = None
    sm_ratio: float | None = None
    container: str | None = None
    pod: str | None = None
    parent_tgid: int | None = None


class GpuFault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a GPU: `text` says what, and what to do. `since_s` is when the agent first saw it, in the time
    of `Snapshot.time_s`.

    `cause` is gpu_row_remap_failed, gpu_ecc, gpu_row_remap, gpu_orphan, gpu_link_width, gpu_slot_width, gpu_link_generation,
    gpu_nvlink_inactive, gpu_nvlink_errors, gpu_power_limit or gpu_pid_namespace.
    """

    cause: str
    text: str
    severity: Severity = "warning"
    since_s: float | None = None


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that a GPU in MIG mode is divided into. `mig` is its GPU instance and compute instance, such as 1/0.

    `sm_active_ratio` is of its own multiprocessors; None before Hopper.
    """

    mig: str
    profile: str = ""
    uuid: str = ""
    memory_total_bytes: float | None = None
    memory_used_bytes: float | None = None
    sm_active_ratio: float | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU now. `index` is NVML's. What the GPU or its driver does not tell is None. `reason` says why it is not up, and
    `not_up_since_s` since when the agent knows.

    `clock_events` are the reasons that hold the clocks down now, without "idle", and `clock_events_since_s` since when each does.
    `throttled_seconds` is for how long each reason held them down since the driver was loaded, `throttled_ratio` for which share of
    the window. `xids` are counts by number, only those above 0. Counts of errors are since the driver was loaded, `*_lifetime`
    since the board was made; NVLink's are of all links, by kind, and rows by what caused their replacement.
    `faults` are what is wrong with memory, link, processes and the like, the worst first, each by its cause; `problems` are the
    same, the sentences alone.
    """

    index: int
    name: str
    uuid: str
    pci_bus_id: str
    up: bool
    reason: str | None = None
    not_up_since_s: float | None = None
    simulated: bool = False
    unified_memory: bool = False
    architecture: str | None = None
    memory_total_bytes: float | None = None
    memory_used_bytes: float | None = None
    memory_reserved_bytes: float | None = None
    memory_free_bytes: float | None = None
    utilization_ratio: float | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    sm_clock_hertz: float | None = None
    sm_clock_max_hertz: float | None = None
    memory_clock_hertz: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    fan_speed_ratio: float | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    slowdown_celsius: float | None = None
    clock_events: tuple[str, ...] = ()
    clock_events_since_s: dict[str, float] = {}
    throttled_seconds: dict[str, float] = {}
    throttled_ratio: dict[str, float] = {}
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_tx_bytes_per_second: float | None = None
    pcie_rx_bytes_per_second: float | None = None
    pcie_replays: float | None = None
    pcie_replays_per_second: float | None = None
    nvlink_tx_bytes_per_second: float | None = None
    nvlink_rx_bytes_per_second: float | None = None
    nvlinks_active: int | None = None
    nvlink_errors: dict[str, float] = {}
    ecc_uncorrected: float | None = None
    ecc_corrected: float | None = None
    ecc_uncorrected_lifetime: float | None = None
    ecc_corrected_lifetime: float | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    remapped_rows: dict[str, float] = {}
    retired_pages: dict[str, float] = {}
    numa_node: int | None = None
    mig_instances: tuple[str, ...] = ()
    mig: tuple[MigInstance, ...] = ()
    xids: dict[str, float] = {}
    processes: tuple[GpuProcess, ...] = ()
    problems: tuple[str, ...] = ()
    faults: tuple[GpuFault, ...] = ()
    utilization_history: tuple[float | None, ...] = ()
    memory_used_history: tuple[float | None, ...] = ()
    power_history: tuple[float | None, ...] = ()


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """Share of time stalled on a resource over the window: `some` task, or all of them (`full`)."""

    some_ratio: float | None = None
    full_ratio: float | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The host over the window. Ratios are of all CPUs together."""

    hostname: str
    kernel: str
    cpus: int | None = None
    cpu_busy_ratio: float | None = None
    cpu_steal_ratio: float | None = None
    cpu_iowait_ratio: float | None = None
    load1: float | None = None
    memory_total_bytes: float | None = None
    memory_available_bytes: float | None = None
    swap_total_bytes: float | None = None
    swap_used_bytes: float | None = None
    major_faults_per_second: float | None = None
    pressure: dict[str, Pressure] = {}
    cpu_busy_history: tuple[float | None, ...] = ()


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a source of the agent works, and if not, why, and since when (seconds since the epoch).

    `state` "waiting" is before its first collection.
    """

    name: str
    state: Literal["up", "down", "waiting"]
    reason: str | None = None
    down_since_s: float | None = None
    last_success_age_s: float | None = None


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """The agent about itself. `drops` are counts within the window, by what was dropped and why; only those above 0."""

    version: str
    uptime_s: float
    series: int
    series_limit: int
    cpu_cores: float | None = None
    resident_bytes: float | None = None
    statsd_samples_per_second: float | None = None
    drops: dict[str, float] = {}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a first look needs. `/api/v1/snapshot` gives one, `/api/v1/stream` one a second as server-sent events."""

    version: int
    time_s: float
    window_s: float
    history_step_s: float = 1.0
    agent: Agent
    host: Host
    findings: tuple[Finding, ...] = ()
    events: tuple[Event, ...] = ()
    engines: tuple[Engine, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    memory: tuple[Memory, ...] = ()
    drift: tuple[Drift, ...] = ()
    sources: tuple[Source, ...] = ()


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """`/api/v1/findings`."""

    version: int
    time_s: float
    findings: tuple[Finding, ...]


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """`/api/v1/events`: all that the agent keeps, the newest first."""

    version: int
    time_s: float
    events: tuple[Event, ...]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One series: the points of the last minutes as `[time_s, value]`, oldest first. Histograms give their count."""

    name: str
    kind: str
    labels: dict[str, str]
    points: tuple[tuple[float, float], ...] = ()


class SeriesPage(msgspec.Struct, frozen=True, kw_only=True):
    """`/api/v1/series?name=NAME[&engine=ENGINE]`; without a name, every series without its points."""

    version: int
    time_s: float
    series: tuple[Series, ...]


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer with a status of 400 or above."""

    error: str
