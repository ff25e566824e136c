"""Listening sockets by netlink, against the files that have the same, with real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aie_agent.sources import listeners, socket_diag

PLACES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::"))


@pytest.fixture(name="served")
def fixture_served() -> Iterator[list[socket.socket]]:
    """A socket at each kind of address that this host has, and a connection to one of them."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for family, host in PLACES:
            one = stack.enter_context(socket.socket(family))
            try:
                one.bind((host, 0))
            except OSError:  # no IPv6 here
                continue
            one.listen()
            sockets.append(one)
        stack.enter_context(socket.create_connection(sockets[0].getsockname()))
        yield sockets


def _inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def test_the_kernel_tells_by_netlink_what_stands_in_its_files(served: list[socket.socket]) -> None:
    own = {str(_inode(one)) for one in served}
    try:
        told = {str(each.inode): each for each in socket_diag.listening()}
    except OSError as error:
        pytest.skip(f"this kernel is not asked so: {error}")
    in_files = listeners._by_files(Path("/proc"))
    assert own <= told.keys()
    for inode in own:
        assert listeners._plain(told[inode].address) == in_files[inode].address
        assert (told[inode].port, told[inode].uid) == (in_files[inode].port, in_files[inode].uid)
        assert listeners.listeners(Path("/proc"))[inode] == in_files[inode]


def test_where_it_does_not_answer_the_files_are_read(served: list[socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_diag, "_SOCK_DIAG", 31)  # a protocol that there is none of
    with pytest.raises(OSError, match="not supported"):
        socket_diag.listening()
    assert {str(_inode(one)) for one in served} <= listeners.listeners(Path("/proc")).keys()


def test_what_it_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_diag, "_BY_FAMILY", 99)
    with pytest.raises(OSError, match="Invalid argument"):
        socket_diag.listening()
