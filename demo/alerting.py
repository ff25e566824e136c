"""Prometheus with aie's rules, Alertmanager with its configuration, at another pace: what waits for minutes waits for seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import aie_alerts
from aie_alerts.scale import scaled

from demo.monitoring import Alertmanager, Job, Prometheus, alertmanager, prometheus

INTERVAL_S: Final = 1.0
"""How often is scraped and judged, whatever the pace: an agent reads once a second."""


class Alerting(NamedTuple):
    """Both servers."""

    prometheus: Prometheus
    alertmanager: Alertmanager


@contextlib.contextmanager
def alerting(directory: Path, jobs: Sequence[Job], time_scale: float) -> Iterator[Alerting]:
    """The two, ready, until the context is left. Durations of rules are divided by `time_scale`, thresholds are as shipped. What
    they keep is in `directory`. Raises MonitoringError."""
    rules = directory / "rules"
    rules.mkdir(parents=True, exist_ok=True)
    for file in aie_alerts.rule_files():
        (rules / file.name).write_text(scaled(file.read_text(encoding="utf-8"), time_scale), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(alertmanager(directory / "alertmanager", aie_alerts.ALERTMANAGER))
        server = stack.enter_context(
            prometheus(directory / "prometheus", jobs, rules=sorted(rules.iterdir()), alertmanager=manager, interval_s=INTERVAL_S)
        )
        yield Alerting(server, manager)
