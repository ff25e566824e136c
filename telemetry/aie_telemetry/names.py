"""What an engine may be called. One rule for all who say, read or configure a name, so that none sends what another refuses."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@-]{0,62}")


def is_engine_name(name: str) -> bool:
    """1 to 63 letters, digits or ._/@-, first a letter or digit: what survives as a label and on a StatsD line."""
    return _NAME.fullmatch(name) is not None
