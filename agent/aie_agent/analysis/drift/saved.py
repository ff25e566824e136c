"""Reads state that was saved: what is not as it was written raises ValueError, so that a half-written file is never believed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def integer(state: Mapping[str, Any], key: str) -> int:
    """A count, 0 or more. Raises ValueError."""
    value = state.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{key}: no count: {value!r}")
    return value


def number(state: Mapping[str, Any], key: str) -> float:
    """A finite number. Raises ValueError."""
    value = state.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{key}: no number: {value!r}")
    return float(value)


def number_or_none(state: Mapping[str, Any], key: str) -> float | None:
    """A finite number, or None where there was none. Raises ValueError."""
    return None if key in state and state[key] is None else number(state, key)


def numbers(state: Mapping[str, Any], key: str, most: int) -> list[float]:
    """At most so many finite numbers. Raises ValueError."""
    values = state.get(key)
    if not isinstance(values, list) or len(values) > most:
        raise ValueError(f"{key}: no list of at most {most} numbers")
    return [number({key: value}, key) for value in values]


def mapping(state: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Raises ValueError for anything else."""
    value = state.get(key)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: no mapping: {value!r}")
    return value
