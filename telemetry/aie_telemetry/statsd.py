"""StatsD lines to samples: Telegraf's dialect (`name,tag=value:1|c|@0.1`) and DogStatsD's (`name:1|c|@0.1|#tag:value`).

Follows Telegraf's `inputs.statsd`; the deliberate differences, each with its reason, stand in `docs/statsd.md` and are asserted
by `tests/unit/telemetry/test_statsd_vectors.py`. Pure: no sockets, no clock, no conversion of units. No input raises: what cannot
be read becomes a `Refusal`, and a bad part of a line refuses only itself. The way back is `statsd_encode.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from aie_telemetry.api import Event
from aie_telemetry.events import TITLE_PREFIX, decode_event
from aie_telemetry.names import is_engine_name

Dialect = Literal["telegraf", "datadog"]
Tags = tuple[tuple[str, str], ...]

TYPES: Final[dict[str, str]] = {
    "c": "counter",
    "g": "gauge",
    "s": "set",
    "ms": "timing",
    "h": "histogram",
    "d": "distribution",
}
_UNSIGNED: Final = frozenset({"timing", "set"})
_PACKABLE: Final = frozenset({"timing", "histogram", "distribution"})

MIN_RATE: Final = 1e-6
MAX_LINE_BYTES: Final = 8192
MAX_TAGS: Final = 32
MAX_PARTS: Final = 1024
_MEMO_ENTRIES: Final = 8192
# Only what is short is remembered: a flood of long, ever new lines may not cost the memos' entries times 8 KiB.
_MEMO_LINE_BYTES: Final = 512

# A number as StatsD clients write it. `float()` alone would also take "1_000", " 1 ", "infinity" and non-ASCII digits.
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_SHORT_UNSIGNED: Final = re.compile(rb"\d{1,15}(?:\.\d{1,15})?")
_EVENT: Final = re.compile(r"_e\{(\d+),(\d+)\}:(.*)", re.ASCII | re.DOTALL)
# Events of our hooks come whichever dialect is spoken otherwise.
_NO_METRICS: Final = ("_e{", "_sc|")
_OUR_EVENT: Final = re.compile(r"_e\{\d{1,5},\d{1,5}\}:" + re.escape(TITLE_PREFIX), re.ASCII)
_SERVICE_CHECK: Final = re.compile(r"_sc\|[^|]+\|[0-3](?:\|.*)?", re.ASCII | re.DOTALL)
# DogStatsD fields that may contain ':' and carry nothing that aie keeps: container id, external data, cardinality.
_DROPPED_FIELDS: Final = ("c:", "e:", "card:")


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One value of one metric, as sent: no unit converted, no rate applied.

    `type` is one of the values of `TYPES`. `value` is a string for sets and a finite number otherwise. `tags` are sorted by
    key, keys unique. `rate` in [1e-6, 1] is the share of events that the sender sent: each stands for 1/rate of them.
    `delta` marks a gauge value that is added to the gauge instead of replacing it.
    """

    name: str
    type: str
    value: float | str
    tags: Tags = ()
    rate: float = 1.0
    delta: bool = False


class Refusal(NamedTuple):
    """Why a line, or a part of it, gave no sample (or lost its rate or a tag). `reason` is a key of `REASONS`."""

    reason: str
    text: str

    def __str__(self) -> str:
        return f"{REASONS[self.reason]}: {self.text!r}"


REASONS: Final[dict[str, str]] = {
    "too_long": f"line longer than {MAX_LINE_BYTES} bytes",
    "not_utf8": "not UTF-8",
    "no_colon": "no ':' between name and value",
    "empty_name": "the name is empty",
    "no_type": "no '|' and type after the value",
    "unknown_type": "type is none of c, g, s, ms, h, d",
    "bad_value": "the value is not a finite number",
    "bad_sign": "a signed value is for all types but s and ms",
    "packed": "several values before one type are for ms, h and d in DogStatsD's dialect only",
    "bad_rate": "the sample rate is not a number, and was ignored",
    "rate_range": f"the sample rate is outside [{MIN_RATE:g}, 1]",
    "bad_tag": "a tag without a name was ignored",
    "datadog_tags": "DogStatsD tags were ignored: this input reads Telegraf's dialect only",
    "too_many_tags": f"more than {MAX_TAGS} tags",
    "too_many_parts": f"more than {MAX_PARTS} values in one line",
    "bad_event": "malformed event, or one of ours that is too large",
    "bad_service_check": "malformed service check",
}


class Parsed(NamedTuple):
    """What one line became. `ignored` is "event" or "service_check" for lines that aie does not use, `event` is one of ours."""

    samples: list[Sample]
    refusals: list[Refusal]
    ignored: str | None = None
    event: Event | None = None


class _Head(NamedTuple):
    """What stands before the first ':': memoised, since a sender repeats its few names for ever."""

    name: str
    tags: dict[str, str]
    key: Tags
    refusals: tuple[Refusal, ...]


class _Shape(NamedTuple):
    """All of a line but its value, read once: most lines differ from one seen before in their value only."""

    name: str
    type: str
    tags: Tags
    rate: float


class Parser:
    """Reads lines of one or both dialects. Stateless but for two bounded memos; not thread-safe."""

    def __init__(self, *, datadog: bool = True) -> None:
        self._datadog = datadog
        self._heads: dict[str, _Head] = {}
        self._shapes: dict[bytes, _Shape] = {}

    def packet(self, packet: bytes) -> Iterator[Parsed]:
        """Each non-empty line of a packet, parsed."""
        for line in packet.split(b"\n"):
            if line and not line.isspace():
                yield self.line(line)

    def line(self, line: bytes) -> Parsed:
        """One line; leading and trailing white space does not count."""
        if len(line) > MAX_LINE_BYTES:
            return Parsed([], [Refusal("too_long", f"{len(line)} bytes")])
        # The fast path: a plain number between the first ':' and the first '|', the rest seen before. (With a '|' in front of it,
        # that ':' may be one within a DogStatsD field: `a|#k:2|b:5|c`.)
        colon = line.find(b":")
        bar = line.find(b"|")
        number = line[colon + 1 : bar]
        if not 0 <= colon < bar or not _SHORT_UNSIGNED.fullmatch(number):
            return self._whole_line(line)
        key = line[: colon + 1] + line[bar:]
        shape = self._shapes.get(key)
        if shape is not None:
            return Parsed([Sample(shape.name, shape.type, float(number), shape.tags, shape.rate)], [])
        parsed = self._whole_line(line)
        if len(key) > _MEMO_LINE_BYTES:
            return parsed
        if len(parsed.samples) == 1 and not parsed.refusals and parsed.samples[0].type != "set":
            if len(self._shapes) >= _MEMO_ENTRIES:
                self._shapes.clear()
            sample = parsed.samples[0]
            self._shapes[key] = _Shape(sample.name, sample.type, sample.tags, sample.rate)
        return parsed

    def _whole_line(self, line: bytes) -> Parsed:
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            return Parsed([], [Refusal("not_utf8", f"byte {error.start}")])
        if text.startswith(_NO_METRICS) and (self._datadog or _OUR_EVENT.match(text)):
            return _event(text) if text.startswith("_e{") else _service_check(text)
        field_tags: list[str] | None = None
        if self._datadog and text.count("|") > 1:
            text, field_tags = _strip_fields(text)
        bucket, colon, rest = text.partition(":")
        if not colon:
            return Parsed([], [Refusal("no_colon", _clip(text))])
        head = self._heads.get(bucket)
        if head is None:
            head = self._remember(bucket)
        if not head.name:
            return Parsed([], [Refusal("empty_name", _clip(text))])
        refusals = list(head.refusals)
        tags = head.key
        if field_tags is not None:
            merged = dict(head.tags)
            refusals += _read_field_tags(field_tags, merged)
            tags = tuple(sorted(merged.items()))
        if len(tags) > MAX_TAGS:
            return Parsed([], [Refusal("too_many_tags", str(len(tags)))])
        samples: list[Sample] = []
        self._parts(rest, head.name, tags, samples, refusals)
        return Parsed(samples, refusals)

    def _remember(self, bucket: str) -> _Head:
        head = _read_bucket(bucket)
        if len(bucket) <= _MEMO_LINE_BYTES:
            if len(self._heads) >= _MEMO_ENTRIES:
                self._heads.clear()
            self._heads[bucket] = head
        return head

    def _parts(self, rest: str, name: str, tags: Tags, samples: list[Sample], refusals: list[Refusal]) -> None:
        """Everything behind the first ':': parts `value|type[|...]`, themselves separated by ':'."""
        packed: list[str] = []
        for number, piece in enumerate(rest.split(":")):
            if number >= MAX_PARTS:
                refusals.append(Refusal("too_many_parts", _clip(piece)))
                return
            value, bar, fields = piece.partition("|")
            packed.append(value)
            if bar:
                self._part(packed, fields, name, tags, samples, refusals)
                packed = []
        if packed:
            refusals.append(Refusal("no_type", _clip(":".join(packed))))

    def _part(self, values: list[str], fields: str, name: str, tags: Tags, samples: list[Sample], refusals: list[Refusal]) -> None:
        code, _, options = fields.partition("|")
        type_ = TYPES.get(code)
        if type_ is None:
            refusals.append(Refusal("unknown_type", _clip(code)))
            return
        if len(values) > 1 and not (self._datadog and type_ in _PACKABLE):
            refusals.append(Refusal("packed", _clip(":".join(values))))
            return
        rate = 1.0
        if options:
            rate, refusal = _read_options(options, datadog=self._datadog)
            if refusal is not None:
                refusals.append(refusal)
                if refusal.reason == "rate_range":
                    return
        for value in values:
            read = _read_value(value, type_)
            if isinstance(read, Refusal):
                refusals.append(read)
            else:
                delta = type_ == "gauge" and value[0] in "+-"
                samples.append(Sample(name, type_, read, tags, rate, delta))


def _service_check(text: str) -> Parsed:
    """Its header is checked, so that a sender's mistake is seen, and the rest passed over."""
    if _SERVICE_CHECK.fullmatch(text):
        return Parsed([], [], "service_check")
    return Parsed([], [Refusal("bad_service_check", _clip(text))])


def _event(line: str) -> Parsed:
    """An event of ours is read. Of another's the header is checked, so that a mistake is seen, and the rest passed over."""
    match = _EVENT.fullmatch(line)
    if match is not None and len(match[1]) + len(match[2]) < 12:
        # Lengths count bytes, and "\n" inside the text is written as two characters.
        title_bytes, text_bytes, body = int(match[1]), int(match[2]), match[3].encode()
        has_room = title_bytes > 0 and len(body) >= title_bytes + 1 + text_bytes
        if has_room and body[title_bytes : title_bytes + 1] == b"|":
            title = body[:title_bytes].decode("utf-8", "replace")
            text = body[title_bytes + 1 :][:text_bytes].decode("utf-8", "replace")
            try:
                event = decode_event(title, text)
            except ValueError:
                return Parsed([], [Refusal("bad_event", _clip(line))])
            if event is None:
                return Parsed([], [], "event")
            if is_engine_name(event.engine):
                return Parsed([], [], event=event)
    return Parsed([], [Refusal("bad_event", _clip(line))])


def _strip_fields(text: str) -> tuple[str, list[str] | None]:
    """Takes DogStatsD's fields, which may contain ':', out of a line. Returns the rest and the tag lists, if there are any.

    A segment right behind a `:value` is a type, never a field: `a:1|c:2|ms` holds two values, not a container id.
    """
    segments = text.split("|")
    kept = segments[:1]
    tags: list[str] | None = None
    type_follows = ":" in segments[0]
    for segment in segments[1:]:
        if not type_follows and segment.startswith("#"):
            tags = (tags or []) + segment[1:].split(",")
        elif type_follows or not segment.startswith(_DROPPED_FIELDS):
            kept.append(segment)
            type_follows = ":" in segment
    return "|".join(kept), tags


def _read_bucket(bucket: str) -> _Head:
    """Name and Telegraf tags. As Telegraf: '.' becomes '_', and a name ends at its first white space."""
    raw, *items = bucket.split(",")
    words = raw.split(None, 1)
    name = words[0].replace(".", "_") if words else ""
    tags: dict[str, str] = {}
    refusals = []
    for item in items:
        key, equals, value = item.partition("=")
        if equals and key:
            tags[key] = value
        else:
            refusals.append(Refusal("bad_tag", _clip(item)))
    return _Head(name, tags, tuple(sorted(tags.items())), tuple(refusals))


def _read_field_tags(items: Iterable[str], tags: dict[str, str]) -> list[Refusal]:
    """DogStatsD tags, which override those of the name; a tag without a value is "true", as in Telegraf."""
    refusals = []
    for item in items:
        key, _, value = item.partition(":")
        if key:
            tags[key] = value or "true"
        elif item:
            refusals.append(Refusal("bad_tag", _clip(item)))
    return refusals


def _read_options(options: str, *, datadog: bool) -> tuple[float, Refusal | None]:
    """The sample rate among the fields behind the type, wherever it stands; other fields are passed over."""
    for option in options.split("|"):
        if option.startswith("@"):
            if not _NUMBER.fullmatch(option, 1):
                return 1.0, Refusal("bad_rate", _clip(option))
            rate = float(option[1:])
            if not MIN_RATE <= rate <= 1.0:
                return 1.0, Refusal("rate_range", _clip(option))
            return rate, None
        if option.startswith("#") and not datadog:
            return 1.0, Refusal("datadog_tags", _clip(option))
    return 1.0, None


def _read_value(value: str, type_: str) -> float | str | Refusal:
    if type_ in _UNSIGNED and value.startswith(("+", "-")):
        return Refusal("bad_sign", _clip(value))
    if type_ == "set":
        return value
    if not _NUMBER.fullmatch(value):
        return Refusal("bad_value", _clip(value))
    number = float(value)
    return number if math.isfinite(number) else Refusal("bad_value", _clip(value))


def _clip(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
