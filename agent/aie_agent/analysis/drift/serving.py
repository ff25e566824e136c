"""Whether an engine may serve another model than at the last look, as far as its processes and its own words tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aie_agent.analysis.findings import View

RESTARTED: Final = "its engine was restarted"

_LABELS: Final = ("version", "revision", "dtype", "device", "kind")


class Serving:
    """Of one engine and model: its processes, and what it said last of itself."""

    def __init__(self, engine: str, model: str) -> None:
        self._engine = engine
        self._model = model
        self._tgids: frozenset[int] = frozenset()
        self._said: dict[str, str] = {}

    def changes(self, view: View, now_s: float) -> tuple[str, ...]:
        """Why the model may be another since the last look, in words that end a sentence. Nothing at the first look, while a
        process of before is left, and where a label was not told before."""
        return (*self._restarts(view), *self._swaps(view, now_s))

    def _restarts(self, view: View) -> Iterator[str]:
        now = frozenset(each.tgid for each in view.processes(self._engine))
        if now:
            if self._tgids and now.isdisjoint(self._tgids):
                yield RESTARTED
            self._tgids = now

    def _swaps(self, view: View, now_s: float) -> Iterator[str]:
        for name, now in info_of(view, self._engine, self._model, now_s).items():
            if name in _LABELS and now:
                before = self._said.get(name, now)
                self._said[name] = now
                if before != now:
                    yield f"the {name} of its engine changed from {before} to {now}"


def info_of(view: View, engine: str, model: str, now_s: float) -> dict[str, str]:
    """The labels that an engine last gave itself for a model that it serves; none where it says nothing."""
    said = view.store.scalars("aie_engine_info", engine=engine, model=model)
    current = [series for series in said if series.valid_until_s >= now_s]
    newest = max(current, key=lambda series: series.last_time_s, default=None)
    return {} if newest is None else dict(newest.tags)
