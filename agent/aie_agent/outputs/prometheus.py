"""The store as a Prometheus page. Labels are rendered once per series; a scrape only writes numbers."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from aie_agent.series import HistogramSeries, Series
from aie_agent.store import Store
from aie_telemetry.catalogue import CATALOGUE
from aie_telemetry.exposition import HistogramText, header, label_text, number


class PrometheusPage:
    """Renders what is current. A value that is not known any more is absent, never 0 and never the last one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prefixes: WeakKeyDictionary[Series, str] = WeakKeyDictionary()
        self._histograms: WeakKeyDictionary[HistogramSeries, HistogramText] = WeakKeyDictionary()

    def render(self, now_s: float) -> str:
        """The page at `now_s`: the catalogue's families in its order, then what others sent, by name."""
        held = set(self._store.names())
        names = [name for name in CATALOGUE if name in held] + sorted(held.difference(CATALOGUE))
        parts = []
        for name in names:
            current = [series for series in self._store.all(name) if series.valid_until_s >= now_s]
            if current:
                metric = CATALOGUE.get(name)
                help_ = metric.help if metric else "Received over StatsD."
                parts.append(header(name, str(current[0].kind), help_))
                parts += [self._lines(series) for series in current if series.kind is current[0].kind]
        return "".join(parts)

    def _lines(self, series: Series | HistogramSeries) -> str:
        if isinstance(series, HistogramSeries):
            text = self._histograms.get(series)
            if text is None:
                text = self._histograms[series] = HistogramText(series.name, series.tags, series.bounds)
            return text.render(series.counts, series.total)
        prefix = self._prefixes.get(series)
        if prefix is None:
            prefix = self._prefixes[series] = series.name + label_text(series.tags) + " "
        return f"{prefix}{number(series.value)}\n"
