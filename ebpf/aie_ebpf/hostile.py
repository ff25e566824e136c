"""Names of processes and files are other people's text: they may hold anything, and end on terminals."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 120


def printable(text: str, most_chars: int = _LONGEST) -> str:
    """The text with everything that is not printable replaced, and cut after so many characters."""
    shown = text[:most_chars]
    if not shown.isprintable():  # most are
        shown = "".join(char if char.isprintable() else "?" for char in shown)
    return shown + "…" if len(text) > most_chars else shown
