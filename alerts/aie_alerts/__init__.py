"""Prometheus rules, Alertmanager's configuration and runbooks, as data.

The rules are `rules/*.yaml`, one file a subsystem. A runbook is a page for each alert (`runbooks/`) and each cause that the agent
finds (in the source tree `docs/runbooks/`, in a wheel `causes/` beside this file).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from aie_alerts import scale

RULES: Final = "rules"
RUNBOOKS: Final = "runbooks"
ALERTMANAGER: Final = "alertmanager.yaml"

_HERE: Final = Path(__file__).parent
_IN_WHEEL: Final = _HERE / "causes"
_IN_TREE: Final = _HERE.parents[1] / "docs" / "runbooks"
_LINK_TO_CAUSES: Final = "../../../docs/runbooks/"
"""How a page of an alert names a page of a cause, where both are read in the source tree."""
_LINK_TO_DOCUMENTS: Final = re.compile(r"\[[^\]]*\]\((?:\.\./)+(?:docs/)?([^)]+)\)")
"""A link of either to another document, which is neither served nor in a wheel."""
_RUNBOOK_URL: Final = re.compile(r"^(\s*runbook_url: ).*?/runbooks/(\w+|\{\{ \$labels\.cause \}\}).*$", re.MULTILINE)


def pages() -> dict[str, Path]:
    """The pages of runbooks, by the name of their alert or cause."""
    causes = _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_TREE
    return {path.stem: path for folder in (causes, _HERE / RUNBOOKS) for path in sorted(folder.glob("*.md"))}


def page_text(path: Path) -> str:
    """What a page of `pages()` says, wherever it is read: its links lead to pages beside it, other documents are named by their
    place in the source tree. Raises OSError."""
    beside = path.read_text(encoding="utf-8").replace(_LINK_TO_CAUSES, "")
    return _LINK_TO_DOCUMENTS.sub(r"`docs/\1` in the source tree", beside)


def files(runbooks: str | None = None, time_scale: float = 1.0) -> dict[Path, str]:
    """Every file that a user needs, by where it goes, with its text.

    `runbooks` is the address under which the pages are served (NAME.md); without it each rule names the agent that its alert is
    about. `time_scale` divides every duration of the rules, for a rehearsal. Raises OSError; ValueError for a scale that is none.
    """
    texts = {Path(RULES) / path.name: path.read_text(encoding="utf-8") for path in sorted((_HERE / RULES).glob("*.yaml"))}
    if runbooks is not None:
        texts = {path: with_runbooks(text, runbooks) for path, text in texts.items()}
    if time_scale != 1.0:
        texts = {path: scale.scaled(text, time_scale) for path, text in texts.items()}
    found = {Path(RUNBOOKS) / f"{name}.md": page_text(path) for name, path in pages().items()}
    return {**texts, Path(ALERTMANAGER): (_HERE / ALERTMANAGER).read_text(encoding="utf-8"), **found}


def with_runbooks(rules: str, address: str) -> str:
    """A rule file whose runbooks are at another address."""
    return _RUNBOOK_URL.sub(lambda match: f"{match[1]}'{address.rstrip('/')}/{match[2]}.md'", rules)
