"""From the bytes of an agent to a snapshot. What an agent says is shown on a terminal, so it is cleaned here, at the one door."""

from __future__ import annotations

import re
from operator import is_
from typing import Any, Final, TypeVar

import msgspec

from aie_telemetry.api import VERSION, Snapshot


class DecodeError(Exception):
    """The bytes are no snapshot that this program understands. The message says why, for the user."""


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class _Versioned(msgspec.Struct):
    version: int


_version = msgspec.json.Decoder(_Versioned)
_snapshot = msgspec.json.Decoder(Snapshot)

# Longer than whatever an agent has to say in one field. A text of megabytes would be measured and cut anew for every picture.
LONGEST_TEXT: Final = 1000
_LONGEST_REASON: Final = 120
# JSON's integers have no end; those that do not fit into 64 bits do not fit into a float either, sooner or later.
_INTEGERS: Final = range(-(1 << 63), 1 << 63)

# Control characters would move the cursor or worse, bidirectional marks would turn what stands beside them round, and nobody agrees
# on how wide a soft hyphen is.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]+")


def decode_snapshot(body: bytes) -> Snapshot:
    """Raises DecodeError. Keys that it does not know are passed over."""
    try:
        version = _version.decode(body).version
        if version != VERSION:
            advice = "update aie-top" if version > VERSION else "update the agent"
            raise DecodeError(f"it speaks version {version} of the API and this aie-top version {VERSION}: {advice}")
        return _tidy_struct(_snapshot.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"what it sends is no snapshot ({_reason(str(error))})") from error


def clean(text: str) -> str:
    """The text without anything that a terminal would act on; line breaks become blanks. Not longer than a screen can use."""
    if len(text) > LONGEST_TEXT:
        text = text[: LONGEST_TEXT - 1] + "…"
    return _UNPRINTABLE.sub(" ", text)


def _reason(text: str) -> str:
    """Cut inside: what is wrong stands at the beginning, in which field at the end."""
    half = _LONGEST_REASON // 2
    return clean(text if len(text) <= _LONGEST_REASON else f"{text[: half - 1]}…{text[-half:]}")


def _tidy_struct(whole: _Struct) -> _Struct:
    """Every text in it cleaned. The same object if there was nothing to do, as nearly always."""
    changes = {}
    for name in whole.__struct_fields__:
        value = getattr(whole, name)
        if isinstance(value, int) and value not in _INTEGERS:
            raise msgspec.ValidationError(f"Integer value out of range - at `{name}`")
        tidy = _tidy(value)
        if tidy is not value:
            changes[name] = tidy
    return msgspec.structs.replace(whole, **changes) if changes else whole


def _tidy(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, msgspec.Struct):
        return _tidy_struct(value)
    if isinstance(value, tuple) and value and isinstance(value[0], (str, msgspec.Struct)):  # the others are numbers
        items = tuple(map(_tidy, value))
        return value if all(map(is_, items, value)) else items
    if isinstance(value, dict):
        pairs = {clean(key): _tidy(item) for key, item in value.items()}
        return value if pairs == value else pairs
    return value
