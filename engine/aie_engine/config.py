"""What the operator can set, checked once at start."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aie_telemetry.endpoints import ENGINE_HTTP_PORT
from aie_telemetry.names import is_engine_name

_DEVICE: Final = re.compile(r"cpu|cuda(:[0-9]{1,2})?")  # torch keeps the number in 8 bits and wraps larger ones
_MAX_THREADS_PER_CORE: Final = 4  # more only wait for each other, and with thousands OpenMP crashes


_MAX_MODEL_NAME: Final = 255  # what a file system takes; it is a label of every metric


class ConfigError(ValueError):
    """A setting cannot work; one line that names it and says what is accepted."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine process; durations in seconds.

    `kv_tokens` is the size of the KV cache (SmolLM2 in fp32: 46 kB a token, 377 MB for 8192). `threads` None leaves a core to
    the rest of the host. `response_cache_bytes` 0 keeps no answers. `statsd` is `aie_hooks`' endpoint: None finds the agent
    of this user, "off" sends nothing. `otlp_endpoint` is a collector's URL (None: as OpenTelemetry's standard variables say);
    of the requests that no caller traces, `trace_rate` become spans there. `memory_probe_s` is the least time between two
    memory probes, for which the agent asks (`aie_hooks.MemoryProbe`); None does not listen to it. Of a share `sample_outputs`
    of the answers the hooks tell how they look (0: of none). `canary_every_s` None computes no canary: it is work that no
    client asked for, so the operator has to. `degrade_file` is where an agent says whether answers are to be trusted.
    """

    model: str
    host: str = "127.0.0.1"
    port: int = ENGINE_HTTP_PORT
    name: str = "aie-engine"
    device: str = "cpu"
    threads: int | None = None
    kv_tokens: int = 8192
    max_running: int = 16
    max_waiting: int = 64
    max_step_tokens: int = 256
    max_tokens_default: int = 512
    max_body_bytes: int = 1 << 20
    response_cache_bytes: int = 0
    deadline_s: float = 120.0
    body_timeout_s: float = 10.0
    grace_s: float = 10.0
    stall_s: float = 30.0
    write_timeout_s: float = 30.0
    statsd: str | None = None
    otlp_endpoint: str | None = None
    trace_rate: float = 0.1
    memory_probe_s: float | None = None
    sample_outputs: float = 0.1
    canary_every_s: float | None = None
    degrade_file: Path | None = None

    def __post_init__(self) -> None:
        max_threads = _MAX_THREADS_PER_CORE * (os.cpu_count() or 1)
        checks = (
            (0 <= self.port <= 65_535, "--port", "0 to 65535 (0 takes any free port)"),
            (is_engine_name(self.name), "--name", "1 to 63 letters, digits or ._/@-, the first a letter or digit"),
            (_DEVICE.fullmatch(self.device) is not None, "--device", "cpu, cuda or cuda:N (N up to 99)"),
            (self.threads is None or 1 <= self.threads <= max_threads, "--threads", f"1 to {max_threads} on this machine"),
            (self.kv_tokens >= 2, "--kv-tokens", "at least 2"),
            (self.max_running >= 1, "--max-running", "at least 1"),
            (self.max_waiting >= 1, "--max-waiting", "at least 1"),
            (self.max_step_tokens > self.max_running, "--max-step-tokens", "more than --max-running"),
            (self.max_tokens_default >= 1, "--max-tokens-default", "at least 1"),
            (self.max_body_bytes >= 1, "--max-body-bytes", "at least 1"),
            (self.otlp_endpoint is None or _is_url(self.otlp_endpoint), "--otlp-endpoint", "a URL such as http://localhost:4318"),
            (0 <= self.trace_rate <= 1, "--trace-rate", "0 to 1"),
            (self.sample_outputs == 0 or 1e-6 <= self.sample_outputs <= 1, "--sample-outputs", "0 or 1e-6 to 1"),
            (self.canary_every_s is None or self.canary_every_s >= 1, "--canary-every", "at least 1s"),
            (
                len(self.model_name) <= _MAX_MODEL_NAME,
                "--model",
                f"a file or folder with a name of up to {_MAX_MODEL_NAME} characters",
            ),
            (self.response_cache_bytes >= 0, "--response-cache-bytes", "at least 0 (0 keeps no answers)"),
        )
        for fine, flag, accepted in checks:
            if not fine:
                raise ConfigError(f"{flag} must be {accepted}")

    @property
    def max_requests(self) -> int:
        """Requests that run and wait together, at most."""
        return self.max_running + self.max_waiting

    @property
    def model_name(self) -> str:
        """The model's name in the API and in labels: that of its file or folder, known before anything is loaded."""
        path = Path(self.model)
        return path.stem if path.suffix == ".gguf" else path.resolve().name


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not match
        return False
