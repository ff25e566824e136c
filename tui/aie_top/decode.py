"""From the bytes of an agent to a snapshot. What an agent says is shown on a terminal, so it is cleaned here, at the one door."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from aie_telemetry.api import VERSION, Snapshot


class DecodeError(Exception):
    """The bytes are no snapshot that this program understands. The message says why, for the user."""


class _Versioned(msgspec.Struct):
    version: int


_version = msgspec.json.Decoder(_Versioned)
_snapshot = msgspec.json.Decoder(Snapshot)

# Control characters would move the cursor or worse, and bidirectional marks would turn what stands beside them round. In JSON
# they are either escapes or these bytes, so one search finds out whether a body (nearly always: none) needs the slow way.
_SUSPECT: Final = re.compile(rb"\\[bfnrtu]|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]+")


def decode_snapshot(body: bytes) -> Snapshot:
    """Raises DecodeError. Keys that it does not know are passed over."""
    try:
        version = _version.decode(body).version
        if version != VERSION:
            advice = "update aie-top" if version > VERSION else "update the agent"
            raise DecodeError(f"it speaks version {version} of the API and this aie-top version {VERSION}: {advice}")
        if _SUSPECT.search(body) is None:
            return _snapshot.decode(body)
        return msgspec.convert(_clean(msgspec.json.decode(body)), Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"what it sends is no snapshot ({clean(str(error))[:120]})") from error


def clean(text: str) -> str:
    """The text without anything that a terminal would act on; line breaks become blanks."""
    return _UNPRINTABLE.sub(" ", text)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value] if value and not isinstance(value[0], (int, float)) else value
    return value
