"""Which names and labels may be emitted, and how they stand in a line."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final

from aie_hooks.series import Frame
from aie_telemetry.catalogue import CATALOGUE, RESERVED_PREFIX, Kind
from aie_telemetry.names import is_engine_name
from aie_telemetry.statsd import MAX_TAGS, Dialect, Tags
from aie_telemetry.statsd_encode import encode_series

# What separates things in a line, so that no value can hold it. Models and devices often do: "llama3:8b", "cuda:0".
_SEPARATORS: Final[dict[Dialect, re.Pattern[str]]] = {"telegraf": re.compile(r"[\n\r:|,]"), "datadog": re.compile(r"[\n\r|,]")}

_log = logging.getLogger(__name__)


def constant_tags(engine: str, tags: Iterable[tuple[str, str]], dialect: Dialect) -> Tags:
    """The tags of every metric of an emitter. Raises ValueError for an engine by a name that the agent would refuse, for a tag
    that is there twice, and for what the dialect cannot say."""
    if not is_engine_name(engine):
        raise ValueError(f"engine name {engine!r}: expected 1 to 63 letters, digits or ._/@-, first a letter or digit")
    every = _unique((("engine", engine), *tags))
    encode_series("any", every, dialect)
    return every


def frame_of(name: str, kind: Kind, labels: Mapping[str, str], tags: Tags, dialect: Dialect) -> Frame:
    """What stands around the values of the series `name` with these labels and the emitter's constant tags.

    Separators within the values of `labels` become '_', with a warning. Raises ValueError for a name of ours that is not in the
    catalogue, or of another kind, or with other labels there; for a label that is there twice; and for what the dialect cannot say.
    """
    if name.startswith(RESERVED_PREFIX):
        _check_catalogue(name, kind, labels, tags)
        # A metric of ours has the labels of the catalogue and no others: an agent would refuse it.
        tags = tuple((key, value) for key, value in tags if key in CATALOGUE[name].labels)
    every = sorted(_unique((*tags, *((key, _sayable(value, dialect)) for key, value in labels.items()))))
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


@functools.lru_cache(maxsize=1024)
def _sayable(value: str, dialect: Dialect) -> str:
    """`value` without separators. The cache is there so that each is warned of once."""
    said = _SEPARATORS[dialect].sub("_", value)
    if said != value:
        other = "; the dialect 'datadog' can say ':'" if dialect == "telegraf" and ":" in value else ""
        _log.warning("the label value %r is sent as %r, because StatsD's separators cannot stand in it%s", value, said, other)
    return said


def _unique(tags: Iterable[tuple[str, str]]) -> Tags:
    every = tuple(tags)
    keys = [key for key, _ in every]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise ValueError(f"given twice: {sorted(twice)} (the emitter adds 'engine' itself)")
    return every
