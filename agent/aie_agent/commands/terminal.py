"""What a command shows: names of engines, models and files are other people's text, and output may be a full disk, or ASCII."""

from __future__ import annotations

import codecs
import json
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Final

_ESCAPED: Final = "as in JSON"


def printable(text: str) -> str:
    """One line that moves no cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def complain(text: str, who: str = "aie-agent") -> None:
    """One line on standard error. Where not even that can be written, what is left is the exit status."""
    with suppress(OSError):
        print(f"{who}: {printable(text)}", file=sys.stderr)


def encode_all() -> None:
    """From now on what standard output's encoding lacks is escaped as in JSON, which so remains JSON: `\\u00fc`. Standard error
    escapes by itself."""
    codecs.register_error(_ESCAPED, _escaped)
    if isinstance(sys.stdout, TextIOWrapper):  # None where it is closed
        sys.stdout.reconfigure(errors=_ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
