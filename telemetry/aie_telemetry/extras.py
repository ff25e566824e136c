"""How to install what is missing: the one place that says it, since no package index has this distribution yet."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command that installs an extra of pyproject.toml, and where it works."""
    return f"pip install '.[{extra}]' in a checkout of aie (its README, \"Use it beside your own engine\")"
