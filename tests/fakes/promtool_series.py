"""Series as promtool's tests write them, taken apart: the value at each moment, and the labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

STALE: Final = "stale"
MISSING: Final = "_"
COUNTERS: Final = re.compile(r"_(?:total|count|sum|bucket)$")
_TOKEN: Final = re.compile(r"(?P<start>-?[\d.]+(?:e-?\d+)?)(?:(?P<step>[+-][\d.]+(?:e-?\d+)?))?(?:x(?P<times>\d+))?")
_SERIES: Final = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})?")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Value = float | str
"""A number, or `stale`, or `_` where nothing was scraped."""


def expanded(values: str) -> list[Value]:
    """The value at each moment: `1x2` is three times 1. Raises ValueError for what is no such notation."""
    return [value for token in values.split() for value in _of_token(token)]


def _of_token(token: str) -> Iterator[Value]:
    if token == STALE:
        yield STALE
    elif token.startswith(MISSING):
        yield from [MISSING] * int(token.removeprefix("_x") if len(token) > 1 else 1)
    elif (match := _TOKEN.fullmatch(token)) is not None:
        start, step = float(match["start"]), float(match["step"] or 0)
        yield from (start + step * index for index in range(int(match["times"] or 0) + 1))
    else:
        raise ValueError(f"{token!r} is no value of promtool's")


def written(values: Sequence[Value]) -> str:
    """In the same notation."""
    return " ".join(value if isinstance(value, str) else repr(value) for value in values)


def parts(series: str) -> tuple[str, dict[str, str]]:
    """The name and the labels of a series. Raises ValueError for what is none."""
    match = _SERIES.fullmatch(series.strip())
    if match is None:
        raise ValueError(f"{series!r} is no series")
    return match["name"], dict(_LABEL.findall(match["labels"] or ""))


def shown(name: str, labels: dict[str, str]) -> str:
    """A series of a name with labels."""
    pairs = ", ".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{pairs}}}"
