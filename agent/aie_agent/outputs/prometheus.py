"""The store as a Prometheus page, classic or OpenMetrics. Labels are rendered once per series; a scrape only writes numbers."""

from __future__ import annotations

from collections.abc import Set
from weakref import WeakKeyDictionary

from aie_agent.series import HistogramSeries, Series
from aie_agent.store import Store
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.exemplars import texts
from aie_telemetry.exposition import HistogramText, header, label_text, number


class PrometheusPage:
    """Renders what is current. A value that is not known any more is absent, never 0 and never the last one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prefixes: WeakKeyDictionary[Series, str] = WeakKeyDictionary()
        self._histograms: WeakKeyDictionary[HistogramSeries, HistogramText] = WeakKeyDictionary()

    def render(self, now_s: float, *, openmetrics: bool = False) -> str:
        """The page at `now_s`: the catalogue's families in its order, then what others sent, by name. OpenMetrics has the traces
        behind engines' latencies."""
        held = set(self._store.names())
        names = [name for name in CATALOGUE if name in held] + sorted(held.difference(CATALOGUE))
        parts = []
        for name in names:
            current = [series for series in self._store.all(name) if series.valid_until_s >= now_s]
            if current:
                metric = CATALOGUE.get(name)
                help_ = metric.help if metric else "Received over StatsD."
                kind = _openmetrics_kind(name, current[0].kind, held) if openmetrics else str(current[0].kind)
                parts.append(header(name, kind, help_, openmetrics=openmetrics))
                parts += [self._lines(series, now_s, openmetrics) for series in current if series.kind is current[0].kind]
        return "".join(parts) + ("# EOF\n" if openmetrics else "")

    def _lines(self, series: Series | HistogramSeries, now_s: float, openmetrics: bool) -> str:
        if isinstance(series, HistogramSeries):
            text = self._histograms.get(series)
            if text is None:
                text = self._histograms[series] = HistogramText(series.name, series.tags, series.bounds)
            exemplars = texts(series.fresh_exemplars(now_s)) if openmetrics and series.exemplars else {}
            return text.render(series.counts, series.total, exemplars, openmetrics=openmetrics)
        prefix = self._prefixes.get(series)
        if prefix is None:
            prefix = self._prefixes[series] = series.name + label_text(series.tags) + " "
        return f"{prefix}{number(series.value)}\n"


def _openmetrics_kind(name: str, kind: Kind, held: Set[str]) -> str:
    """OpenMetrics' word for a family. A counter is one there only if its samples end in `_total` and nobody else has its name
    without; StatsD's need not, and pass as of unknown kind."""
    if kind is Kind.COUNTER and (not name.endswith("_total") or name.removesuffix("_total") in held):
        return "unknown"
    return str(kind)
