"""`--export-svg`: the main screen as a picture, once data has come in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from aie_top.app import TopApp

# Long enough for a second and a third snapshot, so that connections have settled; then as long again for an agent that starts.
SETTLE_S: Final = 3.0
PATIENCE_S: Final = 10.0


def export(app: TopApp, path: Path, size: tuple[int, int]) -> int:
    """Exit status 0, or 1 with one line on stderr when no agent answered or the file cannot be written."""
    picture: list[str] = []

    def take() -> None:
        if any(row.host is not None for row in app.arranged.hosts):
            picture.append(app.export_screenshot(title="aie-top"))
        app.exit()

    def wait_for_data(waited_s: float = 0.0) -> None:
        seen = any(row.host is not None for row in app.arranged.hosts)
        if seen or waited_s >= PATIENCE_S:
            app.set_timer(SETTLE_S if seen else 0.01, take)
        else:
            app.set_timer(0.25, lambda: wait_for_data(waited_s + 0.25))

    app.call_later(wait_for_data)
    app.run(headless=True, size=size)
    if not picture:
        reasons = "; ".join(f"agent at {row.agent} is away: {row.reason or 'no answer'}" for row in app.arranged.hosts)
        print(f"aie-top: no picture: {reasons}", file=sys.stderr)
        return 1
    try:
        path.write_text(picture[0], encoding="utf-8")
    except OSError as error:
        print(f"aie-top: {path}: {error.strerror}", file=sys.stderr)
        return 1
    return 0
