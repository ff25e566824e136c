"""What an agent says of engines whose answers are not to be trusted, in a file or to a webhook, to whoever shall degrade."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

VALID_S: Final = 120.0
"""So long a line holds. An agent that was killed leaves its file behind: who reads it looks at `expires_s` first."""


class Degraded(msgspec.Struct, frozen=True, kw_only=True):
    """An engine, which model of it ("": all that it serves), why, since when, and until when that holds unless it is said anew, in
    seconds since the epoch by the agent's clock. A file has one such object a line; a webhook is sent a list of them, empty when
    nothing is wrong."""

    engine: str
    cause: str
    severity: Literal["info", "warning", "critical"]
    since_s: float
    expires_s: float
    summary: str
    model: str = ""
