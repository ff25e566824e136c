"""Takes the path of a Unix socket: in a directory where nobody else can replace it, from nobody who is alive.

What is in the way is a SourceError that says what to do.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path

from aie_agent.sources.base import SourceError


def claim(path: Path) -> int:
    """Makes `path` free to bind to. Returns a descriptor that holds the claim until it is closed. Raises SourceError."""
    try:
        _ensure_directory(path.parent)
        lock = _lock(path)
        try:
            _remove_stale(path)
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        raise SourceError(
            f"{error.filename or path}: {error.strerror}: run as root, or set statsd.unix to a path of your own"
        ) from error
    return lock


def _ensure_directory(directory: Path) -> None:
    """Makes the socket's directory, or checks that nobody else could replace what lies in it."""
    if not os.path.lexists(directory):
        directory.mkdir(parents=True)
        directory.chmod(0o755)  # senders are processes of other users, whatever the umask is
    status = directory.lstat()
    owners = {status.st_uid}
    if stat.S_ISLNK(status.st_mode):
        status = directory.stat()
        owners.add(status.st_uid)
    strangers = owners - {0, os.geteuid()}
    if strangers:
        raise SourceError(
            f"{directory} belongs to user {strangers.pop()}, who could replace the socket in it: "
            "remove it, or set statsd.unix to a path in a directory of your own"
        )
    if not stat.S_ISDIR(status.st_mode):
        raise SourceError(f"{directory} is not a directory: set statsd.unix to another path")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise SourceError(f"everybody may replace files in {directory}: chmod o-w it, or set statsd.unix to another path")


def _lock(path: Path) -> int:
    """Holds a lock file beside the socket, for as long as this process lives at most.

    Two agents that start at once would otherwise each take the other's socket for a dead one's.
    """
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise SourceError(
            f"another agent is running: it listens at unix://{path}; stop it, or set statsd.unix to another path"
        ) from error
    return descriptor


def _remove_stale(path: Path) -> None:
    """Removes the socket that a dead agent left behind."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SourceError(f"{path} exists and is no socket: remove it, or set statsd.unix to another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except FileNotFoundError:
            return
        except OSError as error:  # EPROTOTYPE: a stream socket
            raise _not_ours(path) from error
    raise _not_ours(path)


def _not_ours(path: Path) -> SourceError:
    return SourceError(f"another program listens at {path}: set statsd.unix to another path")
