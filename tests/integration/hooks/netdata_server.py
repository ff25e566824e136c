"""Debian's netdata as it is, with nothing of it but its StatsD input, unprivileged and in a directory of its own.

It keeps what a chart shows and nothing else: each metric that a test names has one, whose dimensions are read back.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import SYSTEM_BIN

DECIMALS: Final = 1_000_000
"""It keeps integers, so many of them to 1: six decimals are read back."""

_DEADLINE_S: Final = 60.0
# The dimensions of a metric's chart, each by a name and by what netdata calls it.
_SUM: Final = {"sum": "last"}
_LEVEL: Final = {"level": "last"}
_DISTRIBUTION: Final = {each: each for each in ("events", "sum", "min", "max")}
# Everything that is on by default, and that asks the host or somebody outside.
_PLUGINS_OFF: Final = (
    *("proc", "diskspace", "cgroups", "tc", "idlejitter", "timex", "checks", "apps", "slabinfo", "perf", "ebpf", "ioping", "fping"),
    *("python.d", "charts.d", "go.d", "freeipmi", "xenstat", "netdata monitoring", "netdata monitoring extended"),
    "enable running new plugins",
)


@dataclass(frozen=True, slots=True)
class Netdata:
    """A server that runs: where it takes StatsD, and where it is asked."""

    statsd: str
    url: str

    def last(self, metric: str, dimension: str) -> float | None:
        """What it holds now of a counter's `sum`, a gauge's `level` or a distribution's `events`; None before the first."""
        text = self._get("/api/v1/allmetrics?format=prometheus&source=as-collected&help=no&types=no")
        scale = 1 if dimension in ("sum", "events") else DECIMALS
        for line in text.splitlines():
            if f'chart="aie.{metric}"' in line and f'dimension="{dimension}"' in line:
                return float(line.split("} ")[1].split()[0]) / scale
        return None

    def seconds(self, metric: str, dimension: str) -> list[float]:
        """What it kept of each of the last seconds in which there was something."""
        rows: Any = json.loads(self._get(f"/api/v1/data?chart=aie.{metric}&after=-300&format=json&options=unaligned"))
        column = rows["labels"].index(dimension)
        return [row[column] for row in rows["data"] if row[column]]

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits; it collects once a second. The deadline only ends a test that fails."""
        end = time.monotonic() + _DEADLINE_S
        while not condition():
            assert time.monotonic() < end, self._get("/api/v1/allmetrics?format=prometheus&source=as-collected&help=no&types=no")
            time.sleep(0.2)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60.0) as answer:
            text: str = answer.read().decode()
            return text


def executable() -> str:
    """Where `make setup-system` put it, or the system's own; the test is skipped without."""
    found = shutil.which("netdata", path=f"{SYSTEM_BIN}:{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip("netdata is missing: make setup-system")
    return found


@contextlib.contextmanager
def netdata(
    directory: Path, *, counters: Sequence[str] = (), gauges: Sequence[str] = (), distributions: Sequence[str] = ()
) -> Iterator[Netdata]:
    """A netdata that charts these metrics. Nothing else of it listens or leaves the host; it ends with the block."""
    program = executable()
    statsd_port, web_port = _free_port(socket.SOCK_DGRAM), _free_port(socket.SOCK_STREAM)
    kinds = ((counters, _SUM), (gauges, _LEVEL), (distributions, _DISTRIBUTION))
    charts = {metric: dimensions for metrics, dimensions in kinds for metric in metrics}
    config = _configure(directory, statsd_port, web_port, charts)
    with (directory / "output").open("wb") as output:
        # In the foreground, with its own pid file; what it would fork (anonymous statistics) is off.
        arguments = [program, "-D", "-c", str(config), "-P", str(directory / "pid")]
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        server = Netdata(f"udp://127.0.0.1:{statsd_port}", f"http://127.0.0.1:{web_port}")
        _wait_until_ready(server, process, statsd_port, directory)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _configure(directory: Path, statsd_port: int, web_port: int, charts: dict[str, dict[str, str]]) -> Path:
    places = {
        name: directory / name.replace(" ", "_") for name in ("config", "stock config", "lib", "cache", "log", "web", "plugins")
    }
    for place in places.values():
        place.mkdir(parents=True)
    (places["config"] / ".opt-out-from-anonymous-statistics").touch()
    (places["lib"] / "cloud.d").mkdir()
    (places["lib"] / "cloud.d" / "cloud.conf").write_text(_ini({"global": {"enabled": "no"}}))
    (places["config"] / "statsd.d").mkdir()
    (places["config"] / "statsd.d" / "aie.conf").write_text(_charts(charts))
    sections = {
        "global": {"run as user": getpass.getuser(), "process scheduling policy": "keep", "OOM score": "keep"},
        "directories": {**{name: str(place) for name, place in places.items()}, "home": str(places["lib"])},
        "logs": {"access": "none", "debug": "none"},
        "db": {"mode": "ram", "retention": "600"},
        "web": {"bind to": f"127.0.0.1:{web_port}", "web server threads": "1"},
        "statsd": {
            "enabled": "yes",
            "bind to": f"udp:127.0.0.1:{statsd_port}",
            "decimal detail": str(DECIMALS),
            "create private charts for metrics matching": "!*",
        },
        "plugins": dict.fromkeys(_PLUGINS_OFF, "no"),
        **{name: {"enabled": "no"} for name in ("ml", "health", "registry")},
    }
    file = directory / "netdata.conf"
    file.write_text(_ini(sections))
    return file


def _charts(charts: dict[str, dict[str, str]]) -> str:
    """A section a metric; `dimension = METRIC NAME WHAT`."""
    parts = [_ini({"app": {"name": "aie", "metrics": "*", "private charts": "no", "gaps when not collected": "yes"}})]
    for metric, dimensions in charts.items():
        fields = {"name": metric, "title": metric, "family": metric, "context": metric, "units": "x", "type": "line"}
        lines = [f"    dimension = {metric} {name} {what}\n" for name, what in dimensions.items()]
        parts.append(_ini({metric: fields}) + "".join(lines))
    return "".join(parts)


def _ini(sections: dict[str, dict[str, str]]) -> str:
    return "".join(
        f"[{name}]\n" + "".join(f"    {key} = {value}\n" for key, value in section.items()) for name, section in sections.items()
    )


def _wait_until_ready(server: Netdata, process: subprocess.Popen[bytes], statsd_port: int, directory: Path) -> None:
    """It answers over HTTP before its StatsD socket is there: a datagram finds out, refused until then."""
    end = time.monotonic() + _DEADLINE_S
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("127.0.0.1", statsd_port))
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError):
                probe.send(b"ready:1|g")
                time.sleep(0.1)
                probe.send(b"ready:1|g")
                urllib.request.urlopen(f"{server.url}/api/v1/charts", timeout=60.0).close()
                return
    log = directory / "log" / "error.log"
    pytest.fail(f"netdata did not start: {log.read_text(errors='replace')[-2000:] if log.exists() else ''}")


def _free_port(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
