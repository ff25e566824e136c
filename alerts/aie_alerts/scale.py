"""A rule file at another pace: every duration of it divided by a number, so that a rehearsal of days takes minutes. Pure.

Works on tokens of the text and needs no YAML parser: rule files are ours, one key a line, and a duration stands in one of six
places: `for`, `keep_firing_for`, `interval`, a range or subquery in brackets, after `offset`, and as the number of seconds within
which something was last (`time() - x < 600`, `x > time() - 600`), which is a window in other words. Any other number of seconds, as
thresholds are (`> 3600`), is none, and stays; so does what a rate is compared with. Nothing becomes shorter than `LEAST_MS`; what
was 0 stays 0. Summaries and descriptions say windows in words, and say the divided ones: "within ten minutes" becomes "within 20s".
"""

from __future__ import annotations

import math
import re
from typing import Final

LEAST_MS: Final = 1
"""Prometheus' smallest duration."""

_UNITS_MS: Final = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION: Final = r"(?:\d+(?:ms|[ywdhms]))+|0"
_PART: Final = re.compile(r"(\d+)(ms|[ywdhms])")
_KEY: Final = re.compile(rf"^(\s*(?:- )?(?:for|keep_firing_for|interval):\s*)({_DURATION})(\s*)$", re.MULTILINE)
_RANGE: Final = re.compile(rf"\[({_DURATION})(?::({_DURATION})?)?\]")
_AGE: Final = re.compile(r"(time\(\) - \w+(?:\{[^}]*\})? <=? |>=? time\(\) - )(\d+)\b")
_OFFSET: Final = re.compile(rf"\b(offset\s+-?)({_DURATION})\b")

_TOLD: Final = re.compile(r"^\s*(?:summary|description):")
_NUMBERS: Final = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "ten": 10}
_SAID: Final = {
    "half an hour": ("", "30m"),
    "a quarter of an hour": ("", "15m"),
    "last half hour": ("last ", "30m"),
    "last hour": ("last ", "1h"),
    "within the hour": ("within ", "1h"),
    "for a day": ("for ", "1d"),
}
"""Durations in words: what of them stays, and how long they are. "An hour" alone is of a rate, and stays."""
_WORDS: Final = re.compile(
    rf"\b(?:(?P<number>{'|'.join(_NUMBERS)}) (?P<kind>busy )?(?P<unit>[smh])(?:econd|inute|our)s"
    rf"|(?P<said>{'|'.join(_SAID)})|(?P<over>Over )(?P<window>{_DURATION}))\b"
)


def milliseconds(text: str) -> int:
    """Of a duration as Prometheus writes it: 1h30m, 15s, 250ms, 0. Raises ValueError for what is none."""
    if re.fullmatch(_DURATION, text) is None:
        raise ValueError(f"{text!r} is no duration of Prometheus")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))


def duration_s(text: str) -> float:
    """The same in seconds."""
    return milliseconds(text) / 1000


def shown(total_ms: int) -> str:
    """A duration as Prometheus writes it, in as few units as it takes."""
    parts = []
    for unit, size_ms in _UNITS_MS.items():
        if unit in ("y", "w"):  # 365 d are better read as such
            continue
        count, total_ms = divmod(total_ms, size_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def scaled(rules: str, by: float) -> str:
    """The text of a rule file with every duration divided by `by`. Comments stay as they are. Raises ValueError unless `by` > 0."""
    if not 0 < by < math.inf:
        raise ValueError(f"a time scale of {by} is none: expected a number above 0")

    def divided(text: str) -> str:
        was_ms = milliseconds(text)
        return shown(max(round(was_ms / by), LEAST_MS) if was_ms else 0)

    def in_range(match: re.Match[str]) -> str:
        step = match[2]
        colon = ":" if ":" in match[0] else ""
        return f"[{divided(match[1])}{colon}{divided(step) if step else ''}]"

    def in_words(match: re.Match[str]) -> str:
        if match["number"]:
            duration = f"{_NUMBERS[match['number']]}{match['unit']}"
            return f"{match['kind'] or ''}{divided(duration)}"
        stays, duration = _SAID[match["said"]] if match["said"] else (match["over"], match["window"])
        return stays + divided(duration)

    lines = []
    for line in rules.split("\n"):
        if not line.lstrip().startswith("#"):
            line = _KEY.sub(lambda match: match[1] + divided(match[2]) + match[3], line)
            line = _RANGE.sub(in_range, line)
            line = _AGE.sub(lambda match: f"{match[1]}{max(float(match[2]) / by, LEAST_MS / 1000):g}", line)
            line = _OFFSET.sub(lambda match: match[1] + divided(match[2]), line)
            if by != 1 and _TOLD.match(line):
                line = _WORDS.sub(in_words, line)
        lines.append(line)
    return "\n".join(lines)
