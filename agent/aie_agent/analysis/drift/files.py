"""The references that the configuration names, read once at the start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aie_agent.analysis.drift.analyser import Assigned
from aie_agent.analysis.drift.reference_file import load

SHIPPED: Final[dict[str, Path]] = {"demo": Path(__file__).with_name("demo.aieref")}
"""References that come with the agent: of the demo's traffic to SmolLM2. They fit no other traffic."""


def assigned(entries: Sequence[str]) -> tuple[list[Assigned], list[str]]:
    """`FILE`, `ENGINE=FILE` or the name of a shipped one, each as an assigned reference; and one sentence for each that cannot be
    used. The engine whose reference cannot be used is not compared with another one."""
    references: list[Assigned] = []
    problems: list[str] = []
    for entry in entries:
        engine, path = split(entry)
        try:
            references.append(Assigned(load(path), engine, path.name))
        except OSError as error:
            problems.append(f"drift reference {path}: {error.strerror or error}")
        except ValueError as error:
            problems.append(f"drift reference {path}: {error}")
    return references, problems


def split(entry: str) -> tuple[str, Path]:
    """The engine, empty for any, and the file."""
    engine, equals, name = entry.partition("=")
    if not equals:
        engine, name = "", entry
    return engine, SHIPPED.get(name, Path(name))
