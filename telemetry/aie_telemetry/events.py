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
KINDS: Final = ("oom",)
"""Every kind of event that the agent keeps."""

MAX_EVENT_BYTES: Final = 1432
"""The longest line, as for metrics: it has to fit one packet on any path."""

_MAX_SUMMARY: Final = 300


def encode_event(event: Event) -> bytes:
    """The event as one line. Details are left out, the last one first, until it fits a packet.

    Raises ValueError for a kind that is none of `KINDS`, and for what does not fit even without details.
    """
    if event.kind not in KINDS:
        raise ValueError(f"event kind {event.kind!r} is none of {', '.join(KINDS)}")
    summary, details = event.summary[:_MAX_SUMMARY], dict(event.details)
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

    Raises ValueError for one of ours that is malformed.
    """
    kind = title.removeprefix(TITLE_PREFIX)
    if kind == title:
        return None
    try:
        event = msgspec.json.decode(text, type=Event)
    except msgspec.MsgspecError as error:
        raise ValueError(f"event {title}: {error}") from error
    if event.kind != kind or kind not in KINDS:
        raise ValueError(f"event {title} says it is {event.kind[:40]!r}")
    return event
