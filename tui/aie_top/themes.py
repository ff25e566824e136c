"""The looks: for each tone and fill a style. The only place with colours."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

from aie_top.text import Fill, Tone


class Look(NamedTuple):
    """`tones` give the foreground, `fills` what lies under a line; `theme` colours Textual's own parts (palette, prompt)."""

    theme: Theme
    tones: dict[Tone, Style]
    fills: dict[Fill, Style]

    def styles(self) -> dict[Fill, dict[Tone, Style]]:
        """All of them, mixed once: each second asks for hundreds."""
        return {fill: {tone: over + under for tone, over in self.tones.items()} for fill, under in self.fills.items()}


def _true_colour(name: str, *, dark: bool, ground: str, title: str, cursor: str, ink: dict[Tone, str]) -> Look:
    theme = Theme(
        name=name,
        primary=ink["accent"],
        secondary=ink["bar"],
        accent=ink["accent"],
        warning=ink["warn"],
        error=ink["bad"],
        success=ink["good"],
        foreground=ink["normal"],
        background=ground,
        surface=title,
        panel=title,
        dark=dark,
    )
    bold: set[Tone] = {"strong", "bad", "key"}
    tones = {tone: Style(color=colour, bold=tone in bold or None) for tone, colour in ink.items()}
    fills: dict[Fill, Style] = {"": Style(bgcolor=ground), "title": Style(bgcolor=title), "cursor": Style(bgcolor=cursor)}
    return Look(theme, tones, fills)


_DARK: Final = _true_colour(
    "dark",
    dark=True,
    ground="#0e1217",
    title="#1b222c",
    cursor="#24384f",
    ink={
        "normal": "#c8d0da",
        "strong": "#eef2f6",
        "dim": "#8a96a5",
        "good": "#5fd38d",
        "info": "#6cb6ff",
        "warn": "#f0b849",
        "bad": "#ff6f6f",
        "accent": "#5cc8d7",
        "bar": "#4a8fd4",
        "chart": "#2f5d8c",
        "track": "#2b3542",
        "key": "#d6a55c",
        "run": "#4a8fd4",
        "queue": "#f0b849",
        "lock": "#ff6f6f",
        "gil": "#c792ea",
        "disk": "#b0895a",
        "fault": "#9fb84a",
        "sync": "#5cc8d7",
    },
)

_LIGHT: Final = _true_colour(
    "light",
    dark=False,
    ground="#fbfbf8",
    title="#e6e8e6",
    cursor="#cfe2f5",
    ink={
        "normal": "#2b3138",
        "strong": "#0b0f14",
        "dim": "#5c6670",
        "good": "#19703d",
        "info": "#155da8",
        "warn": "#8a5300",
        "bad": "#b3161b",
        "accent": "#00687a",
        "bar": "#3374b5",
        "chart": "#7fa9d3",
        "track": "#cdd2d6",
        "key": "#7a4a00",
        "run": "#3374b5",
        "queue": "#9a6200",
        "lock": "#b3161b",
        "gil": "#7a3aa8",
        "disk": "#6b4a2a",
        "fault": "#4d6b00",
        "sync": "#00687a",
    },
)

# The terminal's own sixteen colours and background. Titles are reversed, since no grey is sure to differ from that background.
_ANSI: Final = Look(
    dataclasses.replace(BUILTIN_THEMES["ansi-dark"], name="ansi"),
    {
        "normal": Style(),
        "strong": Style(bold=True),
        "dim": Style(dim=True),
        "good": Style(color="green"),
        "info": Style(color="cyan"),
        "warn": Style(color="yellow", bold=True),
        "bad": Style(color="red", bold=True),
        "accent": Style(color="cyan", bold=True),
        "bar": Style(color="blue"),
        "chart": Style(color="blue"),
        "track": Style(dim=True),
        "key": Style(bold=True),
        "run": Style(color="blue"),
        "queue": Style(color="yellow"),
        "lock": Style(color="red"),
        "gil": Style(color="magenta"),
        "disk": Style(dim=True),
        "fault": Style(color="green"),
        "sync": Style(color="cyan"),
    },
    {"": Style(), "title": Style(color="default", reverse=True, dim=False), "cursor": Style(bold=True, underline=True)},
)

LOOKS: Final[dict[str, Look]] = {"dark": _DARK, "light": _LIGHT, "ansi": _ANSI}


def next_look(name: str) -> str:
    names = list(LOOKS)
    return names[(names.index(name) + 1) % len(names)]
