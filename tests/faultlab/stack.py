"""`make stack`: a fault of the lab becomes an alert. Its engine, clients and agent, a Prometheus with aie's rules, an Alertmanager.

    python -m tests.faultlab.stack [--fault NAME] [--time-scale N]

Prints where everything serves, breaks the engine, and prints each alert that reaches Alertmanager until one is of the fault. Then
everything stays as it is, to be looked at, until Ctrl-C; with HEADLESS=1, or without a terminal, the fault is repaired and the end
of the alert is waited for. Exit status 0 when it came (and went), 1 when none came within two minutes, 2 when the lab or a server
cannot run.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from demo.alerting import Alerting, alerting
from demo.monitoring import Job, MonitoringError
from tests.faultlab.__main__ import chosen
from tests.faultlab.faults import Fault
from tests.faultlab.programs import LabError
from tests.faultlab.subjects import ENGINE_NAME
from tests.faultlab.world import World

TIME_SCALE: Final = 30.0
"""Of the rules: one that waits for five minutes waits for ten seconds."""
LOAD: Final = 0.5
"""Requests a second, which any machine's engine takes: nothing is measured first."""
WITHIN_S: Final = 120.0
ELSEWHERE: Final = frozenset({"slo", "host", "agent", "alerting"})
"""Components whose alerts are true of a busy host whatever is broken: a small model misses its objectives there, and something else
is killed for lack of memory."""
_LOOK_S: Final = 0.25

Alert = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parsed = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        (fault,) = chosen([parsed.fault])
        with (
            tempfile.TemporaryDirectory(prefix="aie-stack-") as scratch,
            World(fault.setup, Path(scratch), LOAD) as world,
            alerting(Path(scratch), [Job("aie", (world.agent_url.removeprefix("http://"),))], parsed.time_scale) as servers,
        ):
            _introduce(world, servers, parsed.time_scale)
            _until_it_watches(servers)
            before = fingerprints(servers)
            _say(f"fault {fault.name}: {fault.what}")
            with fault.inject(world):
                alert = _first_of(fault, servers, before)
                if alert is None:
                    return 1
                if not _headless():
                    _say("all of it stays until Ctrl-C")
                    signal.pause()
            return 0 if _is_over(servers, alert) else 1
    except (LabError, MonitoringError, ValueError) as error:
        print(f"stack: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _introduce(world: World, servers: Alerting, time_scale: float) -> None:
    _say(f"engine         {world.engine_url}/v1/chat/completions")
    _say(f"agent          {world.agent_url}/metrics    look: aie-top --connect {world.agent_url}")
    _say(f"Prometheus     {servers.prometheus.url}/alerts    rules {time_scale:g} times as fast as shipped")
    _say(f"Alertmanager   {servers.alertmanager.url}/api/v2/alerts    (Debian's has no pages of its own)")


def arrivals(servers: Alerting, before: frozenset[str], within_s: float) -> Iterator[Alert]:
    """Each alert once, when it has reached Alertmanager; none whose fingerprint was there `before`. Raises MonitoringError."""
    seen = set(before)
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        for alert in servers.alertmanager.alerts():
            if alert["fingerprint"] not in seen:
                seen.add(alert["fingerprint"])
                yield alert
        time.sleep(_LOOK_S)


def fingerprints(servers: Alerting) -> frozenset[str]:
    """Of the alerts that are there: the dead man's switch, and what is true of this host whatever is broken."""
    return frozenset(alert["fingerprint"] for alert in servers.alertmanager.alerts())


def is_of(fault: Fault, labels: Mapping[str, str]) -> bool:
    """Whether an alert is of a fault: by its cause, which alerts of findings have; of others by what they concern. One of another
    engine on this host is not."""
    if labels.get("engine", ENGINE_NAME) != ENGINE_NAME:
        return False
    if "cause" in labels:
        return fault.answer is not None and labels["cause"] == fault.answer.cause
    return labels["component"] not in ELSEWHERE


def _first_of(fault: Fault, servers: Alerting, before: frozenset[str]) -> str | None:
    """The fingerprint of the first alert that is of the fault; all that come until then are printed. None when none comes."""
    began_s = time.monotonic()
    for alert in arrivals(servers, before, WITHIN_S):
        labels, texts = alert["labels"], alert["annotations"]
        _say(f"after {time.monotonic() - began_s:.1f} s {labels['severity']}: {labels['alertname']}: {texts['summary']}")
        _say(f"         {texts['description']}")
        _say(f"         what to do: {labels['action']}, {texts['runbook_url']}")
        if is_of(fault, labels):
            return str(alert["fingerprint"])
    _say(f"no alert of it came within {WITHIN_S:.0f} s")
    return None


def _is_over(servers: Alerting, fingerprint: str) -> bool:
    began_s = time.monotonic()
    while time.monotonic() < began_s + WITHIN_S:
        if fingerprint not in fingerprints(servers):
            _say(f"the alert is over, {time.monotonic() - began_s:.1f} s after the repair")
            return True
        time.sleep(_LOOK_S)
    _say(f"the alert is still there, {WITHIN_S:.0f} s after the repair")
    return False


def _until_it_watches(servers: Alerting) -> None:
    """Until Prometheus has read the agent, and the dead man's switch came through: then an alert can. Raises MonitoringError."""
    until_s = time.monotonic() + WITHIN_S
    while not (servers.prometheus.query("aie_agent_info") and fingerprints(servers)):
        if time.monotonic() > until_s:
            raise MonitoringError(f"nothing reached Alertmanager within {WITHIN_S:.0f} s")
        time.sleep(_LOOK_S)


def _headless() -> bool:
    return os.environ.get("HEADLESS", "") not in ("", "0") or not (sys.stdin.isatty() and sys.stdout.isatty())


def _say(text: str) -> None:
    print(f"stack: {text}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faultlab.stack", description="Makes an alert of a fault of the lab.")
    parser.add_argument("--fault", default="stopped", metavar="NAME", help="see python -m tests.faultlab --list (default: stopped)")
    parser.add_argument("--time-scale", type=float, default=TIME_SCALE, metavar="N", help="divides every duration of the rules")
    return parser


if __name__ == "__main__":
    sys.exit(main())
