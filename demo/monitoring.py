"""Debian's Prometheus and Alertmanager as they are, unprivileged, in a directory of their own: for `make stack` and for tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SYSTEM_BIN: Final = Path(os.environ.get("AIE_SYSTEM_DIR", "/usr/local/lib/aie")) / "bin"
"""Where `make setup-system` puts what it takes out of Debian packages."""

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 15.0
_NAMES: Final = {"alertmanager": ("alertmanager", "prometheus-alertmanager")}


class MonitoringError(Exception):
    """A server is missing, did not start, or refused what it was asked: one line that says what."""


@dataclass(frozen=True, slots=True)
class Job:
    """What Prometheus scrapes: a job's name and its targets, as HOST:PORT."""

    name: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs, and where."""

    url: str
    pid: int

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self.url.removeprefix("http://")

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON of an answer. Raises MonitoringError with what the server says where it refuses."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        try:
            with urllib.request.urlopen(f"{self.url}{path}{query}", timeout=60.0) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise MonitoringError(f"{path}: {error.code} {error.read().decode(errors='replace').strip()}") from error
        except (OSError, ValueError) as error:
            raise MonitoringError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Prometheus(Server):
    """A Prometheus that runs."""

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The result of an instant query: each has `metric`, its labels, and `value`, a time and a text. Raises MonitoringError."""
        result: list[dict[str, Any]] = self.get("/api/v1/query", query=promql)["data"]["result"]
        return result

    def alerts(self) -> list[dict[str, Any]]:
        """Its pending and firing alerts. Raises MonitoringError."""
        alerts: list[dict[str, Any]] = self.get("/api/v1/alerts")["data"]["alerts"]
        return alerts


@dataclass(frozen=True, slots=True)
class Alertmanager(Server):
    """An Alertmanager that runs."""

    def alerts(self, *, active: bool = True) -> list[dict[str, Any]]:
        """What has reached it, each with `labels`, `annotations`, `startsAt` and `status`; with `active` only what is neither
        silenced, inhibited nor over. Raises MonitoringError."""
        states = {"silenced": "false", "inhibited": "false"} if active else {}
        alerts: list[dict[str, Any]] = self.get("/api/v2/alerts", **states)
        return alerts


def executable(name: str) -> Path:
    """The path of "prometheus", "promtool" or "alertmanager". Raises MonitoringError where it is missing."""
    for each in _NAMES.get(name, (name,)):
        found = shutil.which(each, path=f"{SYSTEM_BIN}:{os.environ.get('PATH', '')}")
        if found is not None:
            return Path(found)
    raise MonitoringError(f"{name} is missing: run `make setup-system` as root, or install it")


@contextlib.contextmanager
def prometheus(
    directory: Path,
    jobs: Sequence[Job],
    *,
    rules: Sequence[Path] = (),
    alertmanager: Alertmanager | None = None,
    interval_s: float = 1.0,
    port: int = 0,
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `jobs` and evaluates `rules` every `interval_s`. Keeps all it has under `directory`.

    Raises MonitoringError when it is missing or does not get ready, with the end of its log.
    """
    pace = f"{round(interval_s * 1000)}ms"
    config = {
        # Exemplars come with OpenMetrics, which it asks for by itself.
        "global": {"scrape_interval": pace, "scrape_timeout": pace, "evaluation_interval": pace},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [{"job_name": job.name, "static_configs": [{"targets": list(job.targets)}]} for job in jobs],
    }
    if alertmanager is not None:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.address]}]}]}
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "prometheus.json"
    file.write_text(json.dumps(config, indent=2))  # JSON is YAML
    port = port or _free_port()
    arguments = (
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        # What fires before Alertmanager is discovered, seconds after the start, is dropped; by default it comes again in a minute.
        f"--rules.alert.resend-delay={pace}",
        "--log.level=warn",
    )
    with _running("prometheus", arguments, directory / "prometheus.log", f"http://127.0.0.1:{port}") as process:
        yield Prometheus(f"http://127.0.0.1:{port}", process.pid)


@contextlib.contextmanager
def alertmanager(directory: Path, config: Path, *, port: int = 0) -> Iterator[Alertmanager]:
    """An Alertmanager with a configuration file, alone: it seeks no others. Keeps all it has under `directory`.

    Raises MonitoringError as `prometheus` does.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port = port or _free_port()
    arguments = (
        f"--config.file={config.resolve()}",
        f"--storage.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
    )
    with _running("alertmanager", arguments, directory / "alertmanager.log", f"http://127.0.0.1:{port}") as process:
        yield Alertmanager(f"http://127.0.0.1:{port}", process.pid)


@contextlib.contextmanager
def _running(name: str, arguments: Sequence[str], log: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """The server, ready, in a session of its own, so that Ctrl-C is for who started it; stopped at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [executable(name), *arguments], stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        _wait_until_ready(name, process, log, url)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(name: str, process: subprocess.Popen[bytes], log: Path, url: str) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5.0):
            return
        time.sleep(0.1)
    ended = process.poll() is not None
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
    raise MonitoringError(f"{name} {'ended' if ended else f'was not ready within {START_TIMEOUT_S:.0f} s'}:\n{tail}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
