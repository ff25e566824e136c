"""Which series have a name and some labels. Causes, analysers and outputs ask the same a hundred times a second, and series seldom
come or go: what was found is kept until one does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Generic, TypeVar

from aie_agent.series import AnySeries, HistogramSeries, Series

S = TypeVar("S", Series, HistogramSeries)

MOST: Final = 4096
"""Answers that are kept."""


class Lookups(Generic[S]):
    """Finds the series of one kind, and remembers them. Belongs to the event-loop thread."""

    def __init__(self, kind: type[S]) -> None:
        self._kind: type[S] = kind
        self._layout = -1
        self._found: dict[tuple[str, ...], tuple[S, ...]] = {}

    def find(self, name: str, labels: Mapping[str, str], named: Iterable[AnySeries], layout: int) -> list[S]:
        """Those of this kind that have these labels, of `named`, which are all that have the name in this `Store.layout`."""
        if layout != self._layout or len(self._found) > MOST:
            self._found.clear()
            self._layout = layout
        asked = (name, *(part for label in labels.items() for part in label)) if labels else (name,)
        found = self._found.get(asked)
        if found is None:
            wanted = set(labels.items())
            found = tuple(series for series in named if isinstance(series, self._kind) and wanted.issubset(series.tags))
            self._found[asked] = found
        return list(found)
