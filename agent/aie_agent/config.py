"""The agent's configuration: a TOML file, validated strictly. Every error is one line with file, key and what is accepted."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from aie_agent.config_drift import Moment, WebhookUrl
from aie_agent.config_values import (
    OFF,
    Address,
    AddressOrOff,
    Duration,
    HttpUrl,
    SimulatedGpus,
    SocketPath,
    StateFilePath,
    Upstream,
)
from aie_agent.state import default_path
from aie_ebpf.probes import SETS
from aie_telemetry.endpoints import AGENT_HTTP_PORT, STATSD_UDP_PORT, statsd_socket
from aie_telemetry.names import is_engine_name

PROBE_SETS = tuple(each.name for each in SETS)
"""Names of sets of probes."""


class ConfigError(Exception):
    """The configuration cannot be used: one line that names file, key and what is accepted."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class ApiSection(_Section, frozen=True):
    """[api]: the HTTP API and the Prometheus page."""

    listen: Address = Address(f"127.0.0.1:{AGENT_HTTP_PORT}")
    insecure: bool = False


class StatsdSection(_Section, frozen=True):
    """[statsd]: where hooks and other senders reach the agent, and whether their packets are passed on."""

    unix: SocketPath = msgspec.field(default_factory=lambda: SocketPath(str(statsd_socket())))
    udp: AddressOrOff = AddressOrOff(f"127.0.0.1:{STATSD_UDP_PORT}")
    datadog: bool = True
    relay: Upstream = Upstream(OFF)


class StoreSection(_Section, frozen=True):
    """[store]: how much is remembered, and over which window rates and quantiles are taken."""

    max_series: int = 10_000
    retention: Duration = Duration(300.0)
    window: Duration = Duration(60.0)


class SourcesSection(_Section, frozen=True):
    """[sources]: how often the host, the processes and the engines' pages are read."""

    host_period: Duration = Duration(1.0)
    process_period: Duration = Duration(1.0)
    scrape_period: Duration = Duration(1.0)
    scrape_timeout: Duration = Duration(2.0)


class DiscoverySection(_Section, frozen=True):
    """[discovery]: whether and how often the host is looked through for engines that nobody announced."""

    enabled: bool = True
    period: Duration = Duration(10.0)


class FindingsSection(_Section, frozen=True):
    """[findings]: from when on something counts as wrong, whether Python stacks are read when something begins to be, and whether
    what comes and goes is written to standard output, as lines of JSON."""

    hung_after: Duration = Duration(30.0)
    stacks: bool = True
    print: bool = False


class LeaksSection(_Section, frozen=True):
    """[leaks]: whether memory is followed for leaks, how fast its time runs (every window is divided by `time_scale`: 60 makes a
    day 24 minutes, for rehearsals), how long a warm-up takes at least, below which growth an hour, in MB, nothing is said, for how
    long memory must last for a leak to be told as information only, and whether an engine that is suspect is asked to give back
    what it only retains (a file beside statsd.unix, for those that watch it). docs/leaks.md."""

    enabled: bool = True
    time_scale: float = 1.0
    warm_up: Duration = Duration(1800.0)
    warm_up_requests: int = 100
    limit_mb_per_hour: float = 30.0
    horizon: Duration = Duration(30 * 86_400.0)
    memory_probe: bool = False


class DriftSection(_Section, frozen=True):
    """[drift]: whether requests are compared with references, with which ("FILE", "ENGINE=FILE", or "demo", which ships), a file
    that is there while an alarm holds, a URL that is told the same, a directory in which requests are recorded for a new reference,
    and before which moment (ISO 8601) what was learnt of canaries is no longer theirs. docs/drift.md."""

    enabled: bool = True
    references: tuple[str, ...] = ()
    on_alarm: StateFilePath = StateFilePath(OFF)
    webhook: WebhookUrl = WebhookUrl(OFF)
    record: StateFilePath = StateFilePath(OFF)
    canary_since: Moment = Moment(0.0)

    @property
    def alarm_file(self) -> Path | None:
        """None when there is none."""
        return None if self.on_alarm == OFF else Path(self.on_alarm)

    @property
    def record_directory(self) -> Path | None:
        """None when nothing is recorded."""
        return None if self.record == OFF else Path(self.record)


class GpuSection(_Section, frozen=True):
    """[gpu]: whether and how often the GPUs are read, how many there should be, whether GPM is used, and whether they are
    simulated ("8:H100")."""

    enabled: bool = True
    period: Duration = Duration(1.0)
    slow_period: Duration = Duration(10.0)
    hung_after: Duration = Duration(5.0)
    retry: Duration = Duration(30.0)
    released_for: Duration = Duration(60.0)
    expected: int = 0
    gpm: bool = True
    simulate: SimulatedGpus | None = None


class DcgmSection(_Section, frozen=True):
    """[dcgm]: whether /metrics/dcgm shows the GPUs under dcgm-exporter's names."""

    enabled: bool = False


class OtlpSection(_Section, frozen=True):
    """[otlp]: where metrics are pushed to, by which protocol ("http/protobuf", "grpc") and how often. What is not given is read
    from the standard OTEL_* variables; where neither names an endpoint, nothing is pushed. docs/otlp.md."""

    endpoint: HttpUrl | None = None
    protocol: Literal["http/protobuf", "grpc"] | None = None
    interval: Duration | None = None


class BpfSection(_Section, frozen=True):
    """[bpf]: whether probes in the kernel are used, what they may cost (a share of one CPU for each engine), which sets of them
    are left out, and how often they are read."""

    enabled: bool = True
    budget: float = 0.01
    without: tuple[str, ...] = ()
    period: Duration = Duration(1.0)


class StateSection(_Section, frozen=True):
    """[state]: the file in which what is watched for days survives a restart of the agent. By default it is in the directory that
    systemd makes (StateDirectory=), and "off" without one."""

    file: StateFilePath = msgspec.field(default_factory=lambda: StateFilePath(str(default_path() or OFF)))

    @property
    def path(self) -> Path | None:
        """None when nothing is kept."""
        return None if self.file == OFF else Path(self.file)


class EngineSection(_Section, frozen=True):
    """[[engines]]: an engine of this host. Hooks announce theirs by themselves; this names one and tells of its page."""

    name: str
    metrics_url: HttpUrl | None = None
    pid_file: str | None = None


class Config(_Section, frozen=True):
    """Everything. What is not given has the default that stands above."""

    api: ApiSection = ApiSection()
    statsd: StatsdSection = msgspec.field(default_factory=StatsdSection)
    store: StoreSection = StoreSection()
    sources: SourcesSection = SourcesSection()
    discovery: DiscoverySection = DiscoverySection()
    findings: FindingsSection = FindingsSection()
    leaks: LeaksSection = LeaksSection()
    drift: DriftSection = DriftSection()
    gpu: GpuSection = GpuSection()
    dcgm: DcgmSection = DcgmSection()
    otlp: OtlpSection = OtlpSection()
    bpf: BpfSection = BpfSection()
    state: StateSection = msgspec.field(default_factory=StateSection)
    engines: tuple[EngineSection, ...] = ()


def _decode_custom(type_: type, value: Any) -> Any:
    """msgspec's hook for the types above; their ValueErrors become its ValidationError, with the key's path."""
    return type_.parse(value)  # type: ignore[attr-defined]


def read(path: Path) -> dict[str, Any]:
    """The table in a TOML file, not validated yet. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:  # tomllib also fails at numbers and nesting beyond all sense
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def parse(table: Mapping[str, Any], origin: str) -> Config:
    """The configuration in a table read from `origin`. Raises ConfigError."""
    _refuse_unknown_keys(table, Config, "", origin)
    try:
        config = msgspec.convert(table, Config, dec_hook=_decode_custom)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {_readable(str(error))}") from error
    _check_values(config, origin)
    return config


def _refuse_unknown_keys(table: Mapping[str, Any], struct: type[msgspec.Struct], prefix: str, origin: str) -> None:
    """msgspec names an unknown key, but not the ones it knows; a typo should not need the manual."""
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for key, value in table.items():
        if key not in fields:
            close = difflib.get_close_matches(key, fields, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ConfigError(f"{origin}: unknown key {prefix}{key}: {hint}accepted: {', '.join(fields)}")
        type_ = fields[key]
        if isinstance(type_, type) and issubclass(type_, msgspec.Struct) and isinstance(value, Mapping):
            _refuse_unknown_keys(value, type_, f"{prefix}{key}.", origin)
        elif key == "engines" and isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, Mapping):
                    _refuse_unknown_keys(item, EngineSection, f"{prefix}engines[{index}].", origin)


def _readable(message: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.store.max_series`" as "store.max_series: expected int, got str"."""
    text, _, path = message.partition(" - at `$")
    key = path.rstrip("`").removeprefix(".")
    text = text.replace("`", "").replace("Expected", "expected").replace("Object missing required field", "missing key")
    return f"{key}: {text}" if key else text


def _check_values(config: Config, origin: str) -> None:
    """What no type can say. Each row: whether it is wrong, the key, what is accepted."""
    names = [engine.name for engine in config.engines]
    unfit = next((name for name in names if not is_engine_name(name)), None)
    duplicate = next((name for name in names if names.count(name) > 1), None)
    sources, store, hung_after, gpu, bpf = config.sources, config.store, config.findings.hung_after, config.gpu, config.bpf
    leaks = config.leaks
    unknown_set = next((name for name in bpf.without if name not in PROBE_SETS), None)
    rules = [
        (not 100 <= store.max_series <= 100_000, "store.max_series", "accepted: 100 to 100000 (4.8 kB each at one point a second)"),
        (not 10 <= store.window <= 3600, "store.window", 'accepted: "10s" to "1h"'),
        (not store.window <= store.retention <= 3600, "store.retention", 'accepted: at least store.window, at most "1h"'),
        (not 0.1 <= sources.host_period <= 60, "sources.host_period", 'accepted: "100ms" to "60s"'),
        (not 0.1 <= sources.process_period <= 60, "sources.process_period", 'accepted: "100ms" to "60s"'),
        (not 0.1 <= sources.scrape_period <= 60, "sources.scrape_period", 'accepted: "100ms" to "60s"'),
        (not 0.1 <= sources.scrape_timeout <= 60, "sources.scrape_timeout", 'accepted: "100ms" to "60s"'),
        (not 1 <= config.discovery.period <= 3600, "discovery.period", 'accepted: "1s" to "1h"'),
        (
            not max(2.0, 2 * sources.scrape_period) <= hung_after <= store.retention,
            "findings.hung_after",
            'accepted: at least "2s" and twice sources.scrape_period, at most store.retention',
        ),
        (not 1 <= leaks.time_scale <= 10_000, "leaks.time_scale", "accepted: 1 to 10000"),
        (not 60 <= leaks.warm_up <= 86_400, "leaks.warm_up", 'accepted: "1m" to "24h"'),
        (not 0 <= leaks.warm_up_requests <= 1_000_000, "leaks.warm_up_requests", "accepted: 0 to 1000000"),
        (not 1 <= leaks.limit_mb_per_hour <= 100_000, "leaks.limit_mb_per_hour", "accepted: 1 to 100000"),
        (not 3600 <= leaks.horizon <= 366 * 86_400, "leaks.horizon", 'accepted: "1h" to "8784h"'),
        (
            leaks.memory_probe and config.statsd.unix.path is None,
            "leaks.memory_probe",
            "its file lies beside statsd.unix, which is off: give statsd.unix a path",
        ),
        (any(not each for each in config.drift.references), "drift.references", 'accepted: "FILE", "ENGINE=FILE" or "demo"'),
        (not 0.1 <= gpu.period <= 60, "gpu.period", 'accepted: "100ms" to "60s"'),
        (not gpu.period <= gpu.slow_period <= 3600, "gpu.slow_period", 'accepted: at least gpu.period, at most "1h"'),
        (not 1 <= gpu.hung_after <= 3600, "gpu.hung_after", 'accepted: "1s" to "1h"'),
        (not 1 <= gpu.retry <= 3600, "gpu.retry", 'accepted: "1s" to "1h"'),
        (not 1 <= gpu.released_for <= 86400, "gpu.released_for", 'accepted: "1s" to "24h"'),
        (not 0 <= gpu.expected <= 64, "gpu.expected", "accepted: 0 to 64"),
        (not 1 <= (config.otlp.interval or 1) <= 3600, "otlp.interval", 'accepted: "1s" to "1h"'),
        (not 0.0001 <= bpf.budget <= 1, "bpf.budget", "accepted: 0.0001 to 1 (a share of one CPU)"),
        (not 0.5 <= bpf.period <= 60, "bpf.period", 'accepted: "500ms" to "60s"'),
        (unknown_set is not None, "bpf.without", f"{unknown_set!r}: accepted: {', '.join(PROBE_SETS)}"),
        (unfit is not None, "engines.name", f"{unfit!r}: accepted: 1 to 63 letters, digits or ._/@-, first a letter or digit"),
        (duplicate is not None, "engines", f"the name {duplicate!r} is given twice"),
        (
            not (config.api.listen.is_loopback or config.api.insecure),
            "api.listen",
            f"{config.api.listen} is open to other hosts, without a password: set api.insecure = true (--insecure) if meant",
        ),
    ]
    for wrong, key, accepted in rules:
        if wrong:
            raise ConfigError(f"{origin}: {key}: {accepted}")
