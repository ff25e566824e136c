"""The analyser of drift: gives each engine's values to the watches of its reference, and says what is wrong. Pure: references are
given to it, time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from aie_agent.analysis.drift.canaries import Canaries, revision_of
from aie_agent.analysis.drift.hard_checks import no_numbers
from aie_agent.analysis.drift.measures import points_of
from aie_agent.analysis.drift.nan_signs import HookCounts, NanSigns
from aie_agent.analysis.drift.reference import Reference
from aie_agent.analysis.drift.saved import mapping
from aie_agent.analysis.drift.shown import NOTHING_COMES, unwatched, watched
from aie_agent.analysis.drift.stream import EngineStream
from aie_agent.analysis.drift.verdicts import drift_findings, nan_finding
from aie_agent.analysis.findings import View
from aie_agent.request_values import STATISTICS
from aie_agent.samples import Point
from aie_telemetry.api import Drift, Finding
from aie_telemetry.catalogue import Kind

MOST_STREAMS: Final = 64
"""Engines and models that are told apart; the one that was silent longest makes room."""

MOST_TOLD: Final = 256
"""Engines of which it is kept that they told entropies."""

SILENT_S: Final = 3600.0
"""Of traffic that ended so long ago nothing is said any more."""

_NAMES: Final = tuple(each.name for each in STATISTICS)


class Assigned(NamedTuple):
    """A reference, the engine that it is for (empty for every engine that serves its model), and what people call it."""

    reference: Reference
    engine: str = ""
    name: str = ""


_Key = tuple[str, str]  # engine, model


class DriftAnalyser:
    """See `Analyser`. An engine whose hooks send nothing has no stream, and `state` says so."""

    name = "drift"

    def __init__(self, references: Sequence[Assigned], canary_since_s: float = 0.0) -> None:
        """What was learnt of canaries before `canary_since_s`, seconds since the epoch, is not held for right any more."""
        self._references = references
        self._names = {each.reference.header.sha256: each.name for each in references}
        self._canaries = Canaries(canary_since_s)
        self._streams: dict[_Key, EngineStream] = {}
        self._refused: dict[_Key, str] = {}
        self._nan: dict[str, NanSigns] = {}
        self._told: set[str] = set()  # engines that told entropies: what was restarted and gives NaN since is to be known
        self._position = 0
        self._saved: dict[_Key, Mapping[str, Any]] = {}

    def observe(self, view: View, now_s: float) -> None:
        """Takes what came since the last time."""
        self._canaries.observe(view, now_s)
        self._position, arrived = view.values(self._position)
        came: Counter[tuple[str, str]] = Counter()
        too_large: Counter[str] = Counter()  # entropies, by engine
        for each in arrived:
            came[each.engine, each.statistic] += len(each.values) + each.lost
            too_large[each.engine] += no_numbers(each.values) if each.statistic == "entropy" else 0
            stream = self._stream_of((each.engine, each.model), view, now_s)
            if stream is not None:
                stream.take(each.statistic, each.values, each.lost, now_s)
        self._told |= {engine for engine, statistic in came if statistic == "entropy" and len(self._told) < MOST_TOLD}
        self._nan = {engine: self._nan.get(engine) or NanSigns(engine in self._told) for engine in view.engines}
        for engine, signs in self._nan.items():
            lengths, entropies, none = came[engine, "log_length"], came[engine, "entropy"], too_large[engine]
            signs.observe(lengths, entropies - none, none, _counts_of(view, engine), now_s)

    def findings(self, now_s: float) -> Sequence[Finding]:
        """Of all engines whose traffic goes on; NaN needs no reference."""
        nan = [nan_finding(engine, signs) for engine, signs in self._nan.items() if signs.since_s is not None]
        streams = self._live(now_s)
        return nan + [
            finding
            for engine, model in sorted(streams.keys() | self._canaries.engines(now_s))
            for finding in drift_findings(
                engine, model, streams.get((engine, model)), self._canaries.current(engine, model, now_s), now_s
            )
        ]

    def _live(self, now_s: float) -> dict[_Key, EngineStream]:
        """The streams of traffic that goes on."""
        return {key: stream for key, stream in self._streams.items() if now_s - stream.seen_s <= SILENT_S}

    def points(self, now_s: float) -> Sequence[Point]:
        """The family `aie_drift_*`, of all engines whose traffic goes on."""
        current = [
            point for (engine, model), stream in self._live(now_s).items() for point in points_of(engine, model, stream, now_s)
        ]
        return current + [_watching(key, 0.0) for key in self._refused] + list(self._canaries.points(now_s))

    def shown(self, engines: Sequence[str], now_s: float) -> tuple[Drift, ...]:
        """Of each engine and model whether it is compared, how far that is, or why it is not; of an engine that sends nothing and
        has no canary, one that says so."""
        return tuple(each for engine in engines for each in self._shown(engine, now_s))

    def _shown(self, engine: str, now_s: float) -> list[Drift]:
        canaries = self._canaries.engines(now_s)
        models = {model for name, model in (*self._streams, *self._refused, *canaries) if name == engine}
        return [self._shown_of(engine, model, now_s) for model in sorted(models) or [""]]

    def _shown_of(self, engine: str, model: str, now_s: float) -> Drift:
        canaries = self._canaries.current(engine, model, now_s)
        stream = self._streams.get((engine, model))
        if stream is None:
            return unwatched(engine, model, self._refused.get((engine, model), NOTHING_COMES), canaries, now_s)
        return watched(engine, model, stream, self._names[stream.reference.header.sha256], canaries, now_s)

    def dump(self) -> Mapping[str, Any]:
        """The state of every stream, and of those of before that were not heard since."""
        streams = [
            {"engine": engine, "model": model, **stream.dump()}
            for (engine, model), stream in sorted(self._streams.items(), key=itemgetter(0))
        ]
        saved = streams + list(self._saved.values())
        return {"streams": saved, "told": sorted(self._told), "canaries": self._canaries.dump()}

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Raises ValueError for what `dump` did not give. A stream goes on once it is heard again, if its reference is the same."""
        streams = state.get("streams")
        if not isinstance(streams, list):
            raise ValueError("streams: no list")
        saved: dict[_Key, Mapping[str, Any]] = {}
        for each in streams[:MOST_STREAMS]:
            if not isinstance(each, Mapping):
                raise ValueError("streams: no mapping")
            key = each.get("engine"), each.get("model")
            if not (isinstance(key[0], str) and isinstance(key[1], str)):
                raise ValueError("streams: engine or model is no text")
            mapping(each, "watches")
            saved[key[0], key[1]] = each
            self._check(each, now_s)
        told = state.get("told", [])
        if not (isinstance(told, list) and all(isinstance(engine, str) for engine in told)):
            raise ValueError("told: no list of names")
        self._canaries.restore(state.get("canaries", []))
        self._saved, self._told = saved, set(told[:MOST_TOLD])

    def _check(self, state: Mapping[str, Any], now_s: float) -> None:
        for assigned in self._references:
            if assigned.reference.header.sha256 == state.get("reference"):
                EngineStream(assigned.reference, _NAMES, now_s).restore(state)

    def _stream_of(self, key: _Key, view: View, now_s: float) -> EngineStream | None:
        """The stream of an engine and model, or None where no reference fits it."""
        revision = revision_of(view, *key, now_s)
        stream = self._streams.get(key)
        if stream is not None and not (revision and stream.revision and revision != stream.revision):
            stream.revision = revision or stream.revision
            return stream
        self._streams.pop(key, None)  # another version of the model: its outputs are not those of before
        if key in self._refused and not revision:
            return None
        chosen = self._choose(key, revision)
        if isinstance(chosen, str):
            if key in self._refused or len(self._refused) < MOST_STREAMS:
                self._refused[key] = chosen
            return None
        self._refused.pop(key, None)
        stream = self._streams[key] = self._begin(key, chosen, now_s)
        if stream.revision and revision and stream.revision != revision:
            stream = self._streams[key] = EngineStream(chosen, _NAMES, now_s)
        stream.revision = revision or stream.revision
        if len(self._streams) > MOST_STREAMS:
            del self._streams[min(self._streams, key=lambda each: self._streams[each].seen_s)]
        return stream

    def _begin(self, key: _Key, reference: Reference, now_s: float) -> EngineStream:
        """Goes on where the agent stopped, if the reference is still that one."""
        stream = EngineStream(reference, _NAMES, now_s)
        saved = self._saved.pop(key, None)
        if saved is not None and saved.get("reference") == reference.header.sha256:
            stream.restore(saved)
        return stream

    def _choose(self, key: _Key, revision: str) -> Reference | str:
        """The reference for an engine and model, or why there is none. Those that name the engine go first, then those of its very
        revision: a rollout may keep both. Of which class an engine's traffic is nobody but the operator knows."""
        engine, model = key
        own = [each.reference for each in self._references if each.engine == engine]
        candidates = own or [each.reference for each in self._references if not each.engine]
        fitting = [reference for reference in candidates if reference.model == model]
        if not fitting:
            there = ", ".join(sorted({reference.model for reference in candidates}))
            return (
                f"no reference for the model {model!r} (there is one for: {there})" if there else "no reference (drift.references)"
            )
        if revision:
            told = sorted({reference.header.about.revision for reference in fitting})
            fitting = [each for each in fitting if each.header.about.revision == revision] or [
                each for each in fitting if not each.header.about.revision
            ]
            if not fitting:
                return f"the reference is for revision {', '.join(told)} of the model, the engine serves {revision}"
        if len(fitting) > 1:
            classes = ", ".join(f"{each.header.about.traffic_class!r} of {each.header.about.revision or '?'}" for each in fitting)
            return f"{len(fitting)} references fit ({classes}): say which is the engine's (drift.references = ENGINE=FILE)"
        return _usable(fitting[0])


def _usable(reference: Reference) -> Reference | str:
    """The reference, or why nothing can be looked at beside it. One of which nothing can be compared keeps its range."""
    if not any(column.name in _NAMES for column in reference.header.columns):
        return f"the reference has none of the statistics that hooks send: {', '.join(_NAMES)}"
    return reference


def _watching(key: _Key, value: float) -> Point:
    return Point("aie_drift_watching", Kind.GAUGE, (("engine", key[0]), ("model", key[1])), value)


def _counts_of(view: View, engine: str) -> HookCounts:
    invalid = [series.value for series in view.store.scalars("aie_hooks_dropped_total", engine=engine, reason="invalid")]
    nonfinite = [series.value for series in view.store.scalars("aie_engine_activation_nonfinite_total", engine=engine)]
    return HookCounts(sum(invalid) if invalid else None, sum(nonfinite) if nonfinite else None)
