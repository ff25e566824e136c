"""What collectors said that they refused. Apart from what imports OpenTelemetry."""

from __future__ import annotations


class Refused:
    """How many points a collector refused of requests that it took, and why, as it says."""

    def __init__(self) -> None:
        self._points = 0
        self._reason = ""

    def note(self, points: int, reason: str) -> None:
        """An answer told of some."""
        self._points += points
        self._reason = reason

    def take(self) -> tuple[int, str]:
        """What came since the last time."""
        taken = self._points, self._reason
        self._points, self._reason = 0, ""
        return taken
