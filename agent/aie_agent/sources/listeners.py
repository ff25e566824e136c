"""Which process listens at an address of this host: how an engine known by its URL is joined to its processes."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.sources import socket_diag

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PROC: Final = Path("/proc")
_LISTEN: Final = "0A"  # TCP_LISTEN in /proc/net/tcp
# They listen on behalf of others: a container's engine, a service that is not started yet.
_STAND_INS: Final = frozenset({"docker-proxy", "systemd"})


def is_this_host(host: str) -> bool:
    """Whether a host name or address is this host's, without asking a name server."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in ("localhost", socket.gethostname())
    if address.is_loopback:
        return True
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return not address.is_unspecified


def tgids_listening_at(host: str, port: int, proc: Path = Path("/proc")) -> set[int]:
    """The processes that hold a listening socket at `host` and `port`, in this network namespace. May take tens of milliseconds.

    `host` is an address or a name of this host (see `is_this_host`); a name matches every address. Empty where nobody listens, or
    where the processes' descriptors may not be read (another user's, without privilege).
    """
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(host, port, proc)}
    if not wanted:
        return set()
    # Text, not Path: to put paths together would take as long as to read what they lead to.
    holders = (name for name in os.listdir(proc) if name.isdigit() and _holds(f"{proc}/{name}/fd", wanted))
    return {int(pid) for pid in holders if not _is_stand_in(proc / pid)}


class Holders:
    """`tgids_listening_at` again and again, for one address: who came since the last look is looked at, and who held the socket.

    Another that was there could only be handed the socket by one that has it, which is rare: at every twelfth look, and whenever
    the address has another socket, everybody is looked at. For one thread at a time.
    """

    _WHOLE_EVERY: Final = 12

    def __init__(self, host: str, port: int, proc: Path = Path("/proc")) -> None:
        self._host, self._port, self._proc = host, port, proc
        self._wanted: set[str] = set()
        self._there: set[str] = set()
        self._holders: set[str] = set()
        self._looks = 0

    def look(self) -> set[int]:
        """The processes that hold a socket which listens there."""
        wanted = {f"socket:[{inode}]" for inode in _listening_inodes(self._host, self._port, self._proc)}
        is_whole = wanted != self._wanted or self._looks % self._WHOLE_EVERY == 0
        self._looks = 1 if is_whole else self._looks + 1
        there = {name for name in os.listdir(self._proc) if name.isdigit()} if wanted else set()
        asked = there if is_whole else (there - self._there) | (self._holders & there)
        self._wanted, self._there = wanted, there
        self._holders = {name for name in asked if _holds(f"{self._proc}/{name}/fd", wanted)}
        return {int(name) for name in self._holders if not _is_stand_in(self._proc / name)}


class Listener(NamedTuple):
    """Where a socket listens, and the user that made it."""

    address: Address
    port: int
    uid: int = 0


def listeners(process: Path) -> dict[str, Listener]:
    """The listening TCP sockets of the network namespace that a process is in, by inode. `process` is its folder in /proc, or /proc
    itself for our own."""
    if process == _PROC:
        try:
            return {str(each.inode): Listener(_plain(each.address), each.port, each.uid) for each in socket_diag.listening()}
        except (OSError, struct.error):  # the kernel may have been built without: then by its files
            pass
    return _by_files(process)


def _by_files(process: Path) -> dict[str, Listener]:
    found = {}
    for table in ("net/tcp", "net/tcp6"):
        try:
            rows = (process / table).read_text().splitlines()[1:]
        except OSError:  # no IPv6 on this host; or the process is gone
            continue
        for row in rows:
            if f" {_LISTEN} " not in row:  # connections can be many
                continue
            fields = row.split(None, 10)
            if len(fields) > 9 and fields[3] == _LISTEN:
                found[fields[9]] = Listener(*_read_address(fields[1]), int(fields[7]))
    return found


def held_sockets(process: Path) -> set[str] | None:
    """The inodes of the sockets that a process holds. None where they may not be read, or the process is gone."""
    inodes = set()
    try:
        with os.scandir(process / "fd") as entries:
            for entry in entries:
                try:
                    link = os.readlink(entry.path)
                except OSError:  # closed meanwhile
                    continue
                if link.startswith("socket:["):
                    inodes.add(link[8:-1])
    except OSError:
        return None
    return inodes


def _listening_inodes(host: str, port: int, proc: Path) -> set[str]:
    try:
        asked = ipaddress.ip_address(host)
    except ValueError:
        asked = None
    return {
        inode
        for inode, at in listeners(proc).items()
        if at.port == port and (asked is None or at.address.is_unspecified or at.address == asked)
    }


def _read_address(text: str) -> tuple[Address, int]:
    """An address of /proc/net/tcp: 32-bit words in the host's byte order, in hexadecimal."""
    words, _, port = text.partition(":")
    packed = b"".join(int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8))
    return _plain(ipaddress.ip_address(packed)), int(port, 16)


def _plain(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_stand_in(process: Path) -> bool:
    try:
        return (process / "comm").read_text().strip() in _STAND_INS
    except OSError:  # ended meanwhile
        return True


def _holds(fd_directory: str, links: set[str]) -> bool:
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
