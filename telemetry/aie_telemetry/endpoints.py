"""Where the processes of one host meet by default. Every program of ours asks here, so that none needs configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

STATSD_UDP_PORT: Final = 8125
AGENT_HTTP_PORT: Final = 9465
ENGINE_HTTP_PORT: Final = 8000


HOST_RUNTIME_DIRECTORY: Final = Path("/run/aie")
"""Of an agent that runs as root, for everybody on the host."""


def runtime_directory() -> Path:
    """Where the sockets of this user's agent lie: `/run/aie` for root, else `$XDG_RUNTIME_DIR/aie` or `/tmp/aie-UID`."""
    if os.geteuid() == 0:
        return HOST_RUNTIME_DIRECTORY
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "aie" if base else Path(f"/tmp/aie-{os.geteuid()}")


def statsd_socket() -> Path:
    """Where this user's agent makes its Unix datagram socket for StatsD."""
    return runtime_directory() / "statsd.sock"


def statsd_socket_to_send_to() -> Path:
    """The socket of this user's agent, or, where there is none but the host has one, that of the host's agent."""
    own = statsd_socket()
    return own if own.exists() or not HOST_RUNTIME_DIRECTORY.is_dir() else HOST_RUNTIME_DIRECTORY / own.name
