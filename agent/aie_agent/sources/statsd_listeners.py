"""The two sockets on which StatsD packets arrive: opened with care, read without waiting, their losses known."""

from __future__ import annotations

import array
import contextlib
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.sources import procfs_text
from aie_agent.sources.base import SourceError
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.relay import Peer
from aie_agent.sources.socket_path import claim

MAX_PACKET_BYTES: Final = 65_536
"""UDP cannot carry more; a Unix datagram can, and is cut there."""

RECEIVE_BUFFER_BYTES: Final = 4 << 20

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
# Room for the credentials and nothing else: descriptors that a sender attaches do not fit, and the kernel closes them.
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_CREDENTIALS.size)
# As plain integers: an operation on Python's flags costs 1 us, a quarter of what a packet costs here.
_TRUNCATED: Final = int(socket.MSG_TRUNC)
_SOCKET_LEVEL: Final = int(socket.SOL_SOCKET)
_SCM_CREDENTIALS: Final = int(socket.SCM_CREDENTIALS)
_SCM_RIGHTS: Final = int(socket.SCM_RIGHTS)
# Linux constants that Python does not name.
_SO_RCVBUFFORCE: Final = 33
_SO_MEMINFO: Final = 55
_MEMINFO_WORDS: Final = 9
_MEMINFO_DROPS: Final = 8


class Packet(NamedTuple):
    """One datagram. `tgid` is its sender's, where the kernel vouches for it. Otherwise the sender's own word for it counts where
    `may_claim`: from another host, or a pid namespace that cannot be seen from here, it would be about other processes."""

    data: bytes
    truncated: bool
    tgid: int | None
    may_claim: bool


class UnixListener:
    """A Unix datagram socket that anybody on this host may write to, and that tells who did.

    It loses nothing: a sender finds it full (EAGAIN) once `net.unix.max_dgram_qlen` packets wait.
    """

    label = "unix"

    def __init__(self, path: Path) -> None:
        """Raises SourceError when the socket cannot be had: another agent's, an unsafe directory, no permission."""
        self.path = path
        self.address = f"unix://{path}"
        self._claim = claim(path)
        try:
            self._socket = _bound_unix(path)
        except OSError as error:
            os.close(self._claim)
            raise SourceError(f"{self.address}: {error.strerror}: set statsd.unix to another path") from error
        self._inode = _inode(path)
        self._last_credentials = b""
        self._last_tgid: int | None = None

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def receive(self) -> Packet | None:
        """The next packet, or None when none waits."""
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(MAX_PACKET_BYTES, _ANCILLARY_BYTES)
        except BlockingIOError:
            return None
        tgid = None
        for level, kind, content in ancillary:
            if level == _SOCKET_LEVEL and kind == _SCM_CREDENTIALS:
                tgid = self._tgid(content)
            elif level == _SOCKET_LEVEL and kind == _SCM_RIGHTS:
                _close_all(content)
        return Packet(data, flags & _TRUNCATED != 0, tgid, False)

    def kernel_drops(self) -> int | None:
        """The kernel drops none here."""
        return None

    def is_reachable(self) -> bool:
        """Whether senders still find this socket at its path; cleaners of temporary files take such things away."""
        return _inode(self.path) == self._inode

    def is_at(self, peer: Peer) -> bool:
        """Whether packets sent to `peer` come here."""
        return peer == str(self.path)

    def close(self) -> None:
        """Closes the socket, and removes it from its path if it is still the one there."""
        self._socket.close()
        if self.is_reachable():
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        os.close(self._claim)

    def _tgid(self, credentials: bytes) -> int | None:
        """Senders come in bursts, so the last answer is kept. Pid 0 is a process of a pid namespace that cannot be seen here."""
        if credentials != self._last_credentials:
            self._last_credentials = credentials
            self._last_tgid = _CREDENTIALS.unpack(credentials)[0] or None
        return self._last_tgid


class UdpListener:
    """A UDP socket. The kernel drops what is not read in time, and counts it."""

    label = "udp"

    def __init__(self, host: str, port: int) -> None:
        """Raises SourceError when the port cannot be had. Port 0 lets the system choose."""
        self._socket = _bound_udp(host, port)
        name = self._socket.getsockname()
        self.host, self.port = str(name[0]), int(name[1])
        self.address = f"udp://{_bracketed(self.host)}:{self.port}"
        self._loopback_only = ipaddress.ip_address(self.host).is_loopback
        self._procfs = Procfs()

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def receive(self) -> Packet | None:
        """The next packet, or None when none waits."""
        try:
            data, source = self._socket.recvfrom(MAX_PACKET_BYTES)
        except BlockingIOError:
            return None
        return Packet(data, False, None, self._loopback_only or _is_loopback(source[0]))

    def kernel_drops(self) -> int | None:
        """Packets dropped at this socket since it was opened; None where the kernel does not tell.

        SO_MEMINFO reads the counter that SO_RXQ_OVFL attaches to packets, but as it is now: the other shows losses only with
        the next packet that gets through.
        """
        try:
            words = array.array("I", self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4 * _MEMINFO_WORDS))
        except OSError:  # before Linux 4.12
            words = array.array("I")
        if len(words) > _MEMINFO_DROPS:
            return words[_MEMINFO_DROPS]
        inode = os.fstat(self._socket.fileno()).st_ino
        table = self._procfs.read("net/udp6" if self._socket.family == socket.AF_INET6 else "net/udp")
        return None if table is None else procfs_text.udp_drops(table, inode)

    def is_reachable(self) -> bool:
        """A port stays ours."""
        return True

    def is_at(self, peer: Peer) -> bool:
        """Whether packets sent to `peer` come here. A socket bound to every address is reached by the loopback ones at least."""
        if not isinstance(peer, tuple) or peer[1] != self.port:
            return False
        return peer[0] == self.host or (ipaddress.ip_address(self.host).is_unspecified and _is_loopback(peer[0]))

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


Listener = UnixListener | UdpListener


def _bound_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind(str(path))
        path.chmod(0o666)
    except BaseException:
        listener.close()
        raise
    return listener


def _bound_udp(host: str, port: int) -> socket.socket:
    where = f"udp://{_bracketed(host)}:{port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        raise SourceError(f"{where}: {error.strerror}: set statsd.udp to an address of this host") from error
    try:
        listener.setblocking(False)
        _raise_buffer(listener)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise SourceError(
            f"{where}: {error.strerror} (another agent or StatsD server?): set statsd.udp to another address, or to off"
        ) from error
    return listener


def _raise_buffer(listener: socket.socket) -> None:
    """As much room as is allowed: beyond net.core.rmem_max with privilege, up to it without."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    except PermissionError:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _close_all(content: bytes) -> None:
    descriptors = array.array("i")
    descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    for descriptor in descriptors:
        os.close(descriptor)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    """An address as the kernel gives it, perhaps with a zone."""
    return host.startswith("127.") or host in ("::1", "::ffff:127.0.0.1")
