"""What is promised: `alerts/objectives.toml`, from which the alerts are made too, as the boards need it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE: Final = Path(__file__).resolve().parents[1] / "alerts" / "objectives.toml"


class Objective(NamedTuple):
    """A promise: of requests, a share `target` within the first of `bounds_s` that an engine's page has, or ended without one of
    `bad` outcomes; or, with neither, of time. `alert` says when it is missed."""

    name: str
    alert: str
    title: str
    metric: str
    target: float
    bounds_s: tuple[float, ...] = ()
    bad: tuple[str, ...] = ()
    good: tuple[str, ...] = ()

    @property
    def budget(self) -> float:
        """The share that may go wrong."""
        return round(1 - self.target, 12)

    @property
    def of_time(self) -> bool:
        """Whether it is of time, and not of requests."""
        return not (self.bounds_s or self.bad)

    @property
    def promise(self) -> str:
        """In words."""
        much = f"{self.target * 100:g} %"
        if self.bounds_s:
            return f"{much} within {self.bounds_s[0]:g} s"
        return much if self.bad else f"{much} of the time"


def objectives(text: str) -> tuple[Objective, ...]:
    """Of the TOML text. Raises ValueError where it is none, KeyError where a key is missing."""
    return tuple(_objective(table) for table in tomllib.loads(text)["slo"])


def _objective(table: dict[str, Any]) -> Objective:
    return Objective(
        table["name"],
        table["alert"],
        table["title"],
        table["metric"],
        table["objective"],
        tuple(table.get("bounds_seconds", ())),
        tuple(table.get("bad_outcomes", ())),
        tuple(table.get("good_outcomes", ())),
    )


OBJECTIVES: Final = objectives(FILE.read_text())
