"""Where the points of a source go: a source tells the same series in the same order, once a second.

To look a series up by its name and labels takes as long as all else that is done with a point. So it is looked up once, and the
next batch is held against the one before, point by point; only what stands in another place is looked up again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aie_agent.samples import Point, Tags
from aie_agent.series import AnySeries, Beats, Series


class Places:
    """The series of one source's points, and when it told them. Gets one batch after the other."""

    def __init__(self) -> None:
        self._layout = -1
        self._points: Sequence[Point] = ()
        self._series: list[Series | None] = []
        self._beats = Beats()

    def beat(self, time_s: float) -> Beats:
        """When the source told, with the time of the batch that comes now as the newest."""
        if len(self._beats.times) >= Beats.ROOM:
            self._beats = Beats()
        self._beats.times.append(time_s)
        return self._beats

    def find(self, points: Sequence[Point], known: Mapping[tuple[str, Tags], AnySeries], layout: int) -> Sequence[Series | None]:
        """The series of each point among those `known`; None where there is none of its kind, or the point is a delta. As long as
        `layout` is the same number, so are the series."""
        if layout != self._layout:
            self._layout, self._points, self._series = layout, (), []
        found = [
            series if point is before or _is_next(point, before) else _lookup(point, known)
            for point, before, series in zip(points, self._points, self._series, strict=False)
        ]
        found += [_lookup(point, known) for point in points[len(found) :]]
        self._points, self._series = points, found
        return found


def _is_next(point: Point, before: Point) -> bool:
    """Whether it is the next value of what stood in its place."""
    return point.tags == before.tags and point.name == before.name and point.kind is before.kind and point.delta == before.delta


def _lookup(point: Point, known: Mapping[tuple[str, Tags], AnySeries]) -> Series | None:
    series = known.get((point.name, point.tags))
    if not isinstance(series, Series) or series.kind is not point.kind or point.delta:
        return None
    return series
