"""Cuts generated text at the first stop string, and never lets the beginning of one out to the client too early."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text through until a stop string is complete.

    The result does not depend on how the text is divided into pieces: the stop string that is complete first wins, the
    longest among those complete at the same character; it and what follows are dropped.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are non-empty strings; with none everything passes at once."""
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Takes the next piece and returns what is safe to show. Returns nothing once `stopped`."""
        if self.stopped:
            return ""
        text = self._held + text
        cut = first_stop(text, self._stops)
        if cut is not None:
            self.stopped = True
            self._held = ""
            return text[:cut]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        shown = len(text) - keep
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string that is complete first begins in `text`; None when it holds none."""
    ends = [(begin + len(stop), begin) for stop in stops if (begin := text.find(stop)) >= 0]
    return min(ends)[1] if ends else None


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without completing it."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
