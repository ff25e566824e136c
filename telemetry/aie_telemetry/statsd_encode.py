"""Samples to StatsD lines, in the dialects that `statsd.py` reads, such that what is read back is the same. Pure."""

from __future__ import annotations

import math
import re
from typing import Final

from aie_telemetry.statsd import MAX_LINE_BYTES, MAX_TAGS, MIN_RATE, TYPES, Dialect, Sample, Tags

_CODES: Final = {name: code for code, name in TYPES.items()}
_SIGNED: Final = frozenset({"counter", "histogram", "distribution"})

# What can be written so that every server reads the same back. Lone surrogates are no UTF-8.
_NAME_OUT: Final = re.compile(r"(?!_e\{|_sc$)[^\s:|,.\ud800-\udfff]+")
_KEY_OUT: Final = re.compile(r"[^\s:|,=\ud800-\udfff]+")
_VALUE_OUT: Final[dict[Dialect, re.Pattern[str]]] = {
    "telegraf": re.compile(r"[^\n\r:|,\ud800-\udfff]*"),
    "datadog": re.compile(r"(?:[^\s|,\ud800-\udfff](?:[^\n\r|,\ud800-\udfff]*[^\s|,\ud800-\udfff])?)"),
}
_SET_MEMBER_OUT: Final = re.compile(r"(?![+-])[^\n\r:|\ud800-\udfff]*")


def encode(sample: Sample, dialect: Dialect = "telegraf") -> str:
    """A sample as one line without a newline, such that `Parser.line(encode(sample))` gives the sample back.

    Raises ValueError for what the dialect cannot say: separators in a name, tag or set member, a number that is not finite, a
    rate out of range, a negative timing, a negative gauge that is not a delta (StatsD reads it as one), an empty tag value in
    DogStatsD's; and for what exceeds the parser's limits or is no Unicode text (lone surrogates).
    """
    code = _CODES.get(sample.type)
    if code is None:
        raise ValueError(f"unknown type {sample.type!r}")
    head, tail = encode_series(sample.name, sample.tags, dialect)
    if not MIN_RATE <= sample.rate <= 1.0:
        raise ValueError(f"rate {sample.rate!r} is outside [{MIN_RATE:g}, 1]")
    rate = "" if sample.rate == 1.0 else f"|@{_number(sample.rate)}"
    line = f"{head}:{_value(sample)}|{code}{rate}{tail}"
    if len(line.encode()) > MAX_LINE_BYTES:
        raise ValueError(f"the line would be longer than {MAX_LINE_BYTES} bytes")
    return line


def encode_series(name: str, tags: Tags, dialect: Dialect = "telegraf") -> tuple[str, str]:
    """What stands before the ':' and what stands at the end of every line of a series: `(head, tail)`. Senders cache it.

    Raises ValueError when the dialect cannot say the name or a tag.
    """
    if not _NAME_OUT.fullmatch(name):
        raise ValueError(f"name {name!r} is empty or contains white space, ':', '|', ',' or '.'")
    if len(tags) > MAX_TAGS:
        raise ValueError(f"{len(tags)} tags are more than {MAX_TAGS}")
    for key, value in tags:
        if not _KEY_OUT.fullmatch(key) or (dialect == "datadog" and key.startswith("#")):
            raise ValueError(f"tag name {key!r} is empty or contains white space, ':', '|', ',' or '='")
        if not _VALUE_OUT[dialect].fullmatch(value):
            raise ValueError(f"value {value!r} of tag {key!r} contains what {dialect}'s dialect cannot say")
    if dialect == "telegraf":
        return name + "".join(f",{key}={value}" for key, value in tags), ""
    return name, "|#" + ",".join(f"{key}:{value}" for key, value in tags) if tags else ""


def _value(sample: Sample) -> str:
    if sample.delta and sample.type != "gauge":
        raise ValueError("only gauges take deltas")
    if isinstance(sample.value, str):
        if sample.type != "set":
            raise ValueError(f"value {sample.value!r} is not a number")
        if not _SET_MEMBER_OUT.fullmatch(sample.value) or sample.value != sample.value.strip():
            raise ValueError(f"set member {sample.value!r} contains a separator, a sign or white space at its ends")
        return sample.value
    if sample.type == "set" or not math.isfinite(sample.value):
        raise ValueError(f"value {sample.value!r} does not suit type {sample.type}")
    negative = math.copysign(1.0, sample.value) < 0
    if sample.delta:
        return _number(sample.value) if negative else f"+{_number(sample.value)}"
    if negative and sample.type not in _SIGNED:
        raise ValueError(f"negative value {sample.value!r} of a {sample.type} cannot be said in StatsD")
    return _number(sample.value)


def _number(value: float) -> str:
    """The shortest text that reads back as the same float."""
    text = repr(float(value))
    return text[:-2] if text.endswith(".0") else text
