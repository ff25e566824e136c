"""A real store that is filled second by second, and the view of it that causes look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aie_agent.analysis.findings import Limits, ProcessState, View
from aie_agent.samples import Batch, Point
from aie_agent.store import Store
from aie_telemetry.api import Finding, Gpu
from aie_telemetry.catalogue import CATALOGUE, Kind

Rate = float | Callable[[int], float]
"""Of a counter a second, or the level of a gauge: a number, or a function of the second."""
Rows = Mapping[str, Rate]
"""By series, such as `aie_process_cpu_seconds_total engine=e mode=user`."""

BEGIN_S = 10_000.0


class CauseWorld:
    """`now_s` is the time of the last second that was lived."""

    def __init__(self, *, state: str = "up", processes: Sequence[ProcessState] = (), gpus: Sequence[Gpu] = (), **more: Any) -> None:
        self.store = Store(max_series=10_000, retention_s=300.0)
        self.now_s = BEGIN_S
        self.gpus = tuple(gpus)
        self._totals: dict[str, float] = {}
        self._fields: dict[str, Any] = {
            "engines": ["e"],
            "state": lambda _: state,
            "processes": lambda _: processes,
            "unanswered_since_s": lambda _: None,
            "limits": Limits(),
            **more,
        }

    @property
    def view(self) -> View:
        return View(store=self.store, gpus=lambda: self.gpus, **self._fields)

    def live(self, seconds: int, rows: Rows, without: Iterable[str] = ()) -> None:
        """So many seconds pass, in which these series do that. Series whose names stand in `without` are not among them."""
        for second in range(seconds):
            self.now_s += 1.0
            points = [self._point(row, each(second) if callable(each) else each) for row, each in rows.items()]
            kept = [point for point in points if point.name not in set(without)]
            self.store.apply(Batch("host", self.now_s, kept))

    def engine(self, cause: Callable[[View, str, float], Finding | None], engine: str = "e") -> Finding | None:
        """What a cause finds of an engine now."""
        return cause(self.view, engine, self.now_s)

    def subjects(self, cause: Callable[[View, float], Sequence[Finding]]) -> list[Finding]:
        """What a cause of subjects finds now."""
        return list(cause(self.view, self.now_s))

    def _point(self, row: str, amount: float) -> Point:
        name, *labels = row.split()
        kind = CATALOGUE[name].kind
        tags = tuple(sorted(tuple(label.split("=", 1)) for label in labels))
        if kind is Kind.COUNTER:
            amount += self._totals.get(row, 0.0)
            self._totals[row] = amount
        return Point(name, kind, tags, amount)  # type: ignore[arg-type]
