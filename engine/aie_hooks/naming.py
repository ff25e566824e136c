"""Which names and labels may be emitted, and how they stand in a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aie_hooks.series import Frame
from aie_telemetry.catalogue import CATALOGUE, RESERVED_PREFIX, Kind
from aie_telemetry.statsd import MAX_TAGS, Dialect, Tags, encode_series


def constant_tags(engine: str, tags: Iterable[tuple[str, str]]) -> Tags:
    """The tags of every metric of an emitter. Raises ValueError for an empty engine and for a tag that is there twice."""
    if not engine:
        raise ValueError("an engine needs a name")
    return _unique((("engine", engine), *tags))


def frame_of(name: str, kind: Kind, labels: Mapping[str, str], tags: Tags, dialect: Dialect) -> Frame:
    """What stands around the values of the series `name` with these labels and the emitter's constant tags.

    Raises ValueError for a name of ours that is not in the catalogue, or of another kind, or with other labels there; for a label
    that is there twice; and for what the dialect cannot say, such as ':' in a label value in Telegraf's.
    """
    if name.startswith(RESERVED_PREFIX):
        _check_catalogue(name, kind, labels, tags)
    every = sorted(_unique((*tags, *labels.items())))
    if len(every) > MAX_TAGS:
        raise ValueError(f"{name} has {len(every)} labels, more than {MAX_TAGS}")
    head, tail = encode_series(name, tuple(every), dialect)
    return Frame(head.encode(), tail.encode(), dialect)


def _check_catalogue(name: str, kind: Kind, labels: Mapping[str, str], tags: Tags) -> None:
    metric = CATALOGUE.get(name)
    if metric is None:
        raise ValueError(f"{name} is not in the catalogue; names of your own must not begin with {RESERVED_PREFIX!r}")
    if metric.kind is not kind:
        raise ValueError(f"{name} is a {metric.kind}, not a {kind}")
    missing = set(metric.labels) - labels.keys() - {key for key, _ in tags}
    foreign = labels.keys() - set(metric.labels)
    if missing or foreign:
        wrong = f"lacks {sorted(missing)}" if missing else f"has no {sorted(foreign)}"
        raise ValueError(f"{name} takes the labels {list(metric.labels)}: it {wrong} here")


def _unique(tags: Iterable[tuple[str, str]]) -> Tags:
    every = tuple(tags)
    keys = [key for key, _ in every]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise ValueError(f"given twice: {sorted(twice)} (the emitter adds 'engine' itself)")
    return every
