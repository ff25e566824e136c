"""Events: what hooks tell of once, when it happens, and the agent keeps. On the wire a DogStatsD event whose title is ours.

    _e{7,54}:aie.oom|{"time_s":...,"kind":"oom","engine":"chat",...}

Any StatsD server that knows events takes such a line; the agent keeps those whose title begins with `aie.` and passes over
the rest.
"""

from __future__ import annotations

from typing import Final

import msgspec

from aie_telemetry.api import Event

TITLE_PREFIX: Final = "aie."
KINDS: Final = ("oom", "memory_probe")
"""Every kind of event that the agent keeps."""

MAX_EVENT_BYTES: Final = 1432
"""The longest line, as for metrics: it has to fit one packet on any path."""

MAX_SUMMARY_CHARS: Final = 300
MAX_DETAILS: Final = 32
MAX_NAME_CHARS: Final = 64
"""Of the name of a detail."""
MAX_WORD_CHARS: Final = 200
"""Of a detail that is text."""


def encode_event(event: Event) -> bytes:
    """The event as one line. Summary and words are cut, and details left out, the last one first, until it fits a packet.

    Raises ValueError for a kind that is none of `KINDS`, and for what does not fit even without details.
    """
    if event.kind not in KINDS:
        raise ValueError(f"event kind {event.kind!r} is none of {', '.join(KINDS)}")
    summary = event.summary[:MAX_SUMMARY_CHARS]
    details = {name[:MAX_NAME_CHARS]: _word(value) for name, value in list(event.details.items())[:MAX_DETAILS]}
    while True:
        text = msgspec.json.encode(msgspec.structs.replace(event, summary=summary, details=details))
        title = f"{TITLE_PREFIX}{event.kind}".encode()
        line = b"_e{%d,%d}:%s|%s" % (len(title), len(text), title, text)
        if len(line) <= MAX_EVENT_BYTES:
            return line
        if not details:
            raise ValueError(f"an event of {len(line)} bytes, at most {MAX_EVENT_BYTES}")
        details.popitem()


def decode_event(title: str, text: str) -> Event | None:
    """The event in a StatsD event's title and text; None where it is somebody else's.

    Raises ValueError for one of ours that is malformed, or larger than `encode_event` makes them: the agent keeps events and shows
    them, and anybody can send them.
    """
    kind = title.removeprefix(TITLE_PREFIX)
    if kind == title:
        return None
    size = len(f"_e{{{len(title.encode())},{len(text.encode())}}}:{title}|{text}".encode())
    if size > MAX_EVENT_BYTES:
        raise ValueError(f"event {title[:40]} of {size} bytes, at most {MAX_EVENT_BYTES}")
    try:
        event = msgspec.json.decode(text, type=Event)
    except msgspec.MsgspecError as error:
        raise ValueError(f"event {title}: {error}") from error
    if event.kind != kind or kind not in KINDS:
        raise ValueError(f"event {title} says it is {event.kind[:40]!r}")
    too_large = _too_large(event)
    if too_large is not None:
        raise ValueError(f"event {title}: {too_large}")
    return event


def _too_large(event: Event) -> str | None:
    """What there is too much of in an event, beside its bytes."""
    words = [value for value in event.details.values() if isinstance(value, str)]
    rules = (
        (len(event.summary), MAX_SUMMARY_CHARS, "characters of summary"),
        (len(event.details), MAX_DETAILS, "details"),
        (max(map(len, event.details), default=0), MAX_NAME_CHARS, "characters in the name of a detail"),
        (max(map(len, words), default=0), MAX_WORD_CHARS, "characters in a detail"),
    )
    return next((f"{found} {what}, at most {most}" for found, most, what in rules if found > most), None)


def _word(value: float | str) -> float | str:
    return value[:MAX_WORD_CHARS] if isinstance(value, str) else value
