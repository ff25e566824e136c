"""Where the user is: which panel, and on which row of each. Follows a row by its key when the order changes. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from aie_top.panels import PANELS, Page, Panel
from aie_top.rows import Frame
from aie_top.views.history import Selected

_FIRST: Final = "engines"


class Cursor:
    """One instance a main screen. The engines have the focus at first: they are what people move over."""

    def __init__(self) -> None:
        self._panel = next(panel for panel in PANELS if panel.name == _FIRST)
        self._keys: dict[str, Hashable] = {}
        self._at: dict[str, int] = {panel.name: 0 for panel in PANELS}

    @property
    def panel(self) -> Panel:
        return self._panel

    def follow(self, frame: Frame) -> None:
        """To be called with every new frame: rows may have moved or gone."""
        for panel in PANELS:
            rows = panel.rows(frame)
            found = next((at for at, row in enumerate(rows) if panel.key(row) == self._keys.get(panel.name)), None)
            self._set(panel, rows, self._at[panel.name] if found is None else found)

    def row(self, name: str) -> int:
        return self._at[name]

    def move(self, frame: Frame, lines: int) -> None:
        self._set(self._panel, self._panel.rows(frame), self._at[self._panel.name] + lines)

    def step_panel(self, frame: Frame, step: int) -> None:
        """To the next panel that has rows."""
        at = PANELS.index(self._panel)
        order = [PANELS[(at + step * distance) % len(PANELS)] for distance in range(1, len(PANELS) + 1)]
        self._panel = next((panel for panel in order if panel.rows(frame)), self._panel)

    def go(self, frame: Frame, panel: Panel, row: int) -> None:
        self._panel = panel
        self._set(panel, panel.rows(frame), row)

    def key(self, name: str) -> Any:
        return self._keys.get(name)

    @property
    def selected(self) -> Selected:
        """What the histories begin with."""
        return Selected(self._keys.get("engines"), self._keys.get("gpus"), gpu_first=self._panel.name == "gpus")

    def page(self, frame: Frame) -> Page | None:
        rows = self._panel.rows(frame)
        return self._panel.page(rows[self._at[self._panel.name]]) if rows else None

    def _set(self, panel: Panel, rows: Any, at: int) -> None:
        self._at[panel.name] = kept = max(min(at, len(rows) - 1), 0)
        # Without rows the key stays, so that an engine that comes back is found again.
        if rows:
            self._keys[panel.name] = panel.key(rows[kept])
