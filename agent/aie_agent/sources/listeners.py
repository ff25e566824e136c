"""Which process listens on a TCP port of this host: how an engine known by its URL is joined to its processes."""

from __future__ import annotations

import os
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def tgids_listening_on(port: int, proc: Path = Path("/proc")) -> set[int]:
    """The processes that hold a listening socket on `port`, in this network namespace. May take tens of milliseconds.

    Empty where nobody listens, or where the processes' descriptors may not be read (another user's, without privilege).
    """
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    if not wanted:
        return set()
    return {int(entry.name) for entry in os.scandir(proc) if entry.name.isdigit() and _holds(proc / entry.name / "fd", wanted)}


def _listening_inodes(port: int, proc: Path) -> set[str]:
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            rows = (proc / table).read_text().splitlines()[1:]
        except OSError:  # no IPv6 on this host
            continue
        for row in rows:
            fields = row.split()
            if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _holds(fd_directory: Path, links: set[str]) -> bool:
    try:
        with os.scandir(fd_directory) as entries:
            for entry in entries:
                try:
                    if os.readlink(entry.path) in links:
                        return True
                except OSError:  # closed meanwhile
                    continue
    except OSError:  # ended meanwhile, or not ours to read
        return False
    return False
