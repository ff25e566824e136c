"""How Grafana asks for a panel: with which step and rate interval, and what it calls the series that come."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from demo.monitoring import Prometheus

_STEPS_S: Final = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Those of Grafana up to ten minutes; it takes the nearest."""
_COLUMN_PX: Final = 80
"""Of a screen of 1920; a panel asks for a point for each pixel."""
_PLACEHOLDER: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Shown:
    """A time that ends now, of a data source that is scraped so often. `range_s` is what is chosen on the board."""

    range_s: float
    scrape_s: float

    def step_s(self, width: int) -> float:
        """Between two points of a panel of so many columns: never less than from scrape to scrape."""
        wanted = self.range_s / (width * _COLUMN_PX)
        return max(min(_STEPS_S, key=lambda step: abs(step - wanted)), self.scrape_s)

    def variables(self, width: int) -> dict[str, str]:
        """Those that Grafana sets itself: a rate looks back over four scrapes, or a step and a scrape."""
        rate_s = max(self.step_s(width) + self.scrape_s, 4 * self.scrape_s)
        return {"__rate_interval": f"{rate_s:g}s", "__range": f"{self.range_s:g}s", "__range_s": f"{self.range_s:g}"}

    def ask(self, prometheus: Prometheus, expr: str, width: int) -> list[dict[str, Any]]:
        """The series of a picture, each with `metric` and `values`, without what is no number; none without any. Raises
        MonitoringError where Prometheus cannot tell, at whatever point."""
        step = self.step_s(width)
        now_s = time.time()
        start, end = (math.floor(at / step) * step for at in (now_s - self.range_s, now_s))  # Grafana asks at whole steps
        answer = prometheus.get("/api/v1/query_range", query=expr, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{step:g}")
        series = [
            {**each, "values": [value for value in each["values"] if not math.isnan(float(value[1]))]}
            for each in answer["data"]["result"]
        ]
        return [each for each in series if each["values"]]


HOUR: Final = Shown(3600.0, 1.0)
"""What most boards show when they are opened."""
ZOOMED: Final = Shown(300.0, 1.0)
"""So near that a step is as long as from scrape to scrape."""


def named(legend: str, metric: Mapping[str, str]) -> str:
    """What Grafana calls a series: labels in the legend's places, and nothing where there is no such label."""
    return _PLACEHOLDER.sub(lambda match: metric.get(match[1], ""), legend)


def placeholders(legend: str) -> set[str]:
    """The labels that a legend names."""
    return set(_PLACEHOLDER.findall(legend))
