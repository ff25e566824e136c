"""Versions of what the agent itself stands on, compared over its restarts: when one changed, that is told with what began after."""

from __future__ import annotations

import hashlib
import os
from importlib import metadata

from aie_agent.config import Config


def own_versions(config: Config) -> dict[str, str]:
    """By what they are of. Of the configuration only a hash is kept: it may hold what is secret."""
    return {
        "the agent": metadata.version("aie-observability"),
        "the agent's configuration": hashlib.sha256(repr(config).encode()).hexdigest()[:8],
        "the kernel": os.uname().release,
    }
