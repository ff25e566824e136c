"""The canaries of all engines: finds what ran since the last look in the store, whichever source brought it, and remembers each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from aie_agent.analysis.drift.canary import CanaryWatch, Key, floor_of
from aie_agent.analysis.drift.serving import RESTARTED, Serving, info_of
from aie_agent.analysis.findings import View
from aie_agent.samples import Point
from aie_telemetry.catalogue import Kind

MOST: Final = 64
"""Canaries that are followed; what comes beyond is passed over."""

SILENT_S: Final = 3600.0
"""Of a canary that ran last so long ago nothing is said any more."""

_TOLD: Final = ("ok", "nonfinite")  # outcomes that say something of the model


class Canaries:
    """See `DriftAnalyser`, whose part it is."""

    def __init__(self, since_s: float = 0.0) -> None:
        """What was learnt before `since_s` is not restored."""
        self._since_s = since_s
        self._watches: dict[Key, CanaryWatch] = {}
        self._revisions: dict[Key, str] = {}
        self._counted: dict[tuple[Key, str], float] = {}
        self._serving: dict[Key, Serving] = {}

    def observe(self, view: View, now_s: float) -> None:
        """Takes each run that came; of several between two looks the last one. What is learnt of a model that may be another since
        is forgotten first."""
        for key, watch in self._watches.items():
            serving = self._serving.setdefault(key, Serving(key.engine, key.model))
            for why in serving.changes(view, now_s):
                watch.learn_anew(why, now_s)
        for engine in view.engines:
            for series in view.store.scalars("aie_engine_canary_runs_total", engine=engine):
                tags = dict(series.tags)
                key, outcome = Key(engine, tags.get("model", ""), tags.get("canary", "")), tags.get("outcome", "")
                before = self._counted.get((key, outcome))
                if outcome not in _TOLD or series.value == before or (before is None and len(self._counted) >= 2 * MOST):
                    continue
                self._counted[key, outcome] = series.value
                if before is not None and series.value < before and key in self._watches:  # it counts from 0 again
                    self._watches[key].learn_anew(RESTARTED, now_s)
                # What ran before the first look may have run for another agent.
                if before is not None and series.value > 0:
                    self._take(key, outcome, view, now_s)

    def _take(self, key: Key, outcome: str, view: View, now_s: float) -> None:
        def told(metric: str) -> float | None:
            return view.store.current(metric, now_s, engine=key.engine, model=key.model, canary=key.canary)

        value = math.nan if outcome == "nonfinite" else told("aie_engine_canary_logprob_nats")
        if value is None:
            return
        revision = revision_of(view, key.engine, key.model, now_s)
        known = self._revisions.get(key, "")
        if key not in self._watches or (known and revision and known != revision):
            self._watches[key] = CanaryWatch(now_s, floor_of(told("aie_engine_canary_noise_nats")))
        self._revisions[key] = revision or known
        self._watches[key].take(value, now_s)

    def current(self, engine: str, model: str, now_s: float) -> dict[str, CanaryWatch]:
        """The canaries of an engine and model that still run, by name."""
        return {
            key.canary: watch
            for key, watch in self._watches.items()
            if (key.engine, key.model) == (engine, model) and now_s - watch.seen_s <= SILENT_S
        }

    def engines(self, now_s: float) -> set[tuple[str, str]]:
        """Engines and models that have canaries that still run."""
        return {(key.engine, key.model) for key, watch in self._watches.items() if now_s - watch.seen_s <= SILENT_S}

    def points(self, now_s: float) -> Iterator[Point]:
        """Their metrics."""
        for key, watch in self._watches.items():
            tags = tuple(sorted(key._asdict().items()))
            if now_s - watch.seen_s > SILENT_S:
                continue
            yield Point("aie_drift_canary_alarm", Kind.GAUGE, tags, float(watch.is_new))
            if watch.level is not None and watch.limit is not None:
                yield Point("aie_drift_canary_level_nats", Kind.GAUGE, tags, watch.level)
                yield Point("aie_drift_canary_limit_nats", Kind.GAUGE, tags, watch.limit)

    def dump(self) -> list[dict[str, Any]]:
        """For `restore`."""
        return [
            {**key._asdict(), "revision": self._revisions.get(key, ""), "watch": watch.dump()}
            for key, watch in self._watches.items()
        ]

    def restore(self, state: object) -> None:
        """Raises ValueError for what `dump` did not give; then nothing is restored."""
        if not isinstance(state, list):
            raise ValueError("canaries: no list")
        watches: dict[Key, CanaryWatch] = {}
        revisions: dict[Key, str] = {}
        for each in state[:MOST]:
            if not isinstance(each, Mapping) or not isinstance(each.get("watch"), Mapping):
                raise ValueError("canaries: no canary")
            texts = [each.get(field) for field in (*Key._fields, "revision")]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("canaries: a name is no text")
            key, watch = Key(*map(str, texts[:-1])), CanaryWatch.restored(each["watch"])
            if watch.begun_s >= self._since_s:
                watches[key], revisions[key] = watch, str(texts[-1])
        self._watches, self._revisions = watches, revisions


def revision_of(view: View, engine: str, model: str, now_s: float) -> str:
    """Of the model that the engine says it serves; empty where it does not say."""
    return info_of(view, engine, model, now_s).get("revision", "")
