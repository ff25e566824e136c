"""The fields of a tracepoint, from tracefs: which there are, and where they lie. Kernels and drivers differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_FIELD: Final = re.compile(r"^\s*field:[^;]*?(\w+)(?:\[[^\]]*\])?;\s*offset:(\d+);\s*size:(\d+);", re.MULTILINE)
_TRACEFS: Final = (Path("sys/kernel/tracing"), Path("sys/kernel/debug/tracing"))


def offsets(format_text: str) -> dict[str, int]:
    """Each field's offset in bytes, by name, from the text of an event's `format` file."""
    return {match[1]: int(match[2]) for match in _FIELD.finditer(format_text)}


def format_of(tracepoint: str, root: Path = Path("/")) -> str | None:
    """The text of `format` of `category:name`, or None: this kernel has no such tracepoint, or tracefs is not mounted."""
    category, _, name = tracepoint.partition(":")
    for mount in _TRACEFS:
        try:
            return (root / mount / "events" / category / name / "format").read_text()
        except OSError:
            continue
    return None


def defines(prefix: str, format_text: str) -> list[str]:
    """For the compiler: PREFIX_FIELD=offset of every field."""
    return [f"{prefix}_{name.upper()}={offset}" for name, offset in offsets(format_text).items()]
