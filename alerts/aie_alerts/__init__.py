"""Prometheus rules, Alertmanager's configuration and runbooks, as data: where they are, and what a page of a runbook says.

The rules are `rules/*.yaml`, one file a subsystem. A runbook is a page for each alert (`runbooks/`) and each cause that the agent
finds (in the source tree `docs/runbooks/`, in a wheel `causes/` beside this file).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_IN_WHEEL: Final = _HERE / "causes"
_IN_TREE: Final = _HERE.parents[1] / "docs" / "runbooks"
_LINK_TO_CAUSES: Final = "../../../docs/runbooks/"
"""How a page of an alert names a page of a cause, where both are read in the source tree."""

ALERTMANAGER: Final = _HERE / "alertmanager.yaml"


def rule_files() -> tuple[Path, ...]:
    """The rule files, by name."""
    return tuple(sorted((_HERE / "rules").glob("*.yaml")))


def pages() -> dict[str, Path]:
    """The pages of runbooks, by the name of their alert or cause."""
    causes = _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_TREE
    return {path.stem: path for folder in (causes, _HERE / "runbooks") for path in sorted(folder.glob("*.md"))}


def page_text(path: Path) -> str:
    """What a page of `pages()` says; its links lead to pages beside it. Raises OSError."""
    return path.read_text(encoding="utf-8").replace(_LINK_TO_CAUSES, "")
