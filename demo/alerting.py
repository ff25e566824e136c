"""Prometheus with aie's rules, Alertmanager with its configuration, at another pace: what waits for minutes waits for seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import aie_alerts
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
    for name, text in aie_alerts.files(time_scale=time_scale).items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    rules = sorted((directory / aie_alerts.RULES).iterdir())
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(alertmanager(directory / "alertmanager", directory / aie_alerts.ALERTMANAGER))
        server = stack.enter_context(
            prometheus(directory / "prometheus", jobs, rules=rules, alertmanager=manager, interval_s=INTERVAL_S)
        )
        yield Alerting(server, manager)
