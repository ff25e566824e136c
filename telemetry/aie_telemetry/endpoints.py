"""Where the processes of one host meet by default. Every program of ours asks here, so that none needs configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

STATSD_UDP_PORT: Final = 8125
AGENT_HTTP_PORT: Final = 9465
ENGINE_HTTP_PORT: Final = 8000


def runtime_directory() -> Path:
    """Where the sockets of this user's agent lie: `/run/aie` for root, else `$XDG_RUNTIME_DIR/aie` or `/tmp/aie-UID`."""
    if os.geteuid() == 0:
        return Path("/run/aie")
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "aie" if base else Path(f"/tmp/aie-{os.geteuid()}")


def statsd_socket() -> Path:
    """The agent's Unix datagram socket for StatsD."""
    return runtime_directory() / "statsd.sock"
