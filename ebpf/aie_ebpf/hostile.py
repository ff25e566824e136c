"""Names of processes and files are other people's text: they may hold anything, and end on terminals."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 120


def printable(text: str) -> str:
    """The text with everything that is not printable replaced, and cut."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:_LONGEST])
    return shown + "…" if len(text) > _LONGEST else shown
