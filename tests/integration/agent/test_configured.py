"""Engines of the configuration, found by the socket that they listen on or by a pid file."""

# ruff: noqa: ASYNC220 - nothing else runs on a test's event loop

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aie_agent import config
from aie_agent.samples import Hello
from aie_agent.sources.base import SourceError
from aie_agent.sources.configured import ConfiguredEngines
from aie_agent.sources.listeners import Holders, is_this_host, tgids_listening_at

LISTEN = """
import socket
listener = socket.socket(socket.{family})
listener.bind(({host!r}, 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
input()
"""


def own_address() -> str:
    """An address of this host that is not the loopback's, or the loopback's where there is none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def listener(family: str, host: str) -> Iterator[tuple[int, int]]:
    code = LISTEN.format(family=family, host=host)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()


@pytest.fixture(params=[("AF_INET", "127.0.0.1"), ("AF_INET6", "::1"), ("AF_INET", "0.0.0.0")], ids=["ipv4", "ipv6", "all"])
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Another process that listens: its pid and its port."""
    yield from listener(*request.param)


def source(text: str) -> ConfiguredEngines:
    return ConfiguredEngines(config.parse(config.tomllib.loads(text), "test").engines)


def test_who_listens(listening: tuple[int, int]) -> None:
    pid, port = listening
    assert tgids_listening_at("localhost", port) == {pid}


@pytest.mark.parametrize(("address", "asked", "found"), [("127.0.0.1", "127.0.0.2", False), ("0.0.0.0", "127.0.0.2", True)])
def test_another_address_is_another_listener(address: str, asked: str, found: bool) -> None:
    for pid, port in listener("AF_INET", address):
        assert tgids_listening_at(asked, port) == ({pid} if found else set())


def test_this_host_is_known_by_its_own_addresses() -> None:
    assert all(is_this_host(host) for host in ("localhost", "127.0.0.1", "::1", socket.gethostname(), own_address()))
    assert not any(is_this_host(host) for host in ("192.0.2.1", "2001:db8::1", "somewhere.example", "0.0.0.0"))


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert tgids_listening_at("localhost", bound.getsockname()[1]) == set(), "bound is not listening"


HANDED_ON = """
import os, socket, time
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
input()
child = os.fork()
if not child:
    while True:
        time.sleep(60)
print(child, flush=True)
input()
listener.close()
print("closed", flush=True)
input()
"""


def test_looking_again_finds_who_came_and_who_let_go_of_the_socket() -> None:
    with subprocess.Popen([sys.executable, "-c", HANDED_ON], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        holders = Holders("127.0.0.1", port)
        assert holders.look() == holders.look() == {process.pid}

        def go_on() -> bytes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            return process.stdout.readline()

        child = int(go_on())
        assert holders.look() == holders.look() == {process.pid, child} == tgids_listening_at("127.0.0.1", port)
        assert go_on() == b"closed\n"
        assert holders.look() == {child}, "it let go of it, and its child has it"
        os.kill(child, 9)
        process.kill()


async def test_engine_is_joined_by_its_page(listening: tuple[int, int]) -> None:
    pid, port = listening
    found = await source(f'[[engines]]\nname = "chat"\nmetrics_url = "http://localhost:{port}/metrics"').collect(1.0)
    assert found.hellos == [Hello("chat", pid)]


STARTS = """
import os, sys
reading, writing = os.pipe()
child = os.fork()
if not child:
    grandchild = os.fork()
    if grandchild:
        os.write(writing, f"{os.getpid()} {grandchild}\\n".encode())
    sys.stdin.read()
    os._exit(0)
print(os.read(reading, 100).decode(), end="", flush=True)
sys.stdin.read()
"""


async def test_a_pid_file_names_all_that_its_process_started(tmp_path: Path) -> None:
    """However unknown its program is. What the configuration names as another engine is that one's."""
    with subprocess.Popen([sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child, grandchild = map(int, process.stdout.readline().split())
        text = f'[[engines]]\nname = "e"\npid_file = "{tmp_path}/e.pid"\n'
        (tmp_path / "e.pid").write_text(f"{process.pid}\n")
        found = await source(text).collect(1.0)
        (tmp_path / "other.pid").write_text(f"{child}\n")
        both = await source(f'{text}[[engines]]\nname = "other"\npid_file = "{tmp_path}/other.pid"\n').collect(1.0)
        process.stdin.close()
    assert found.hellos[0] == Hello("e", process.pid)
    assert set(found.hellos) == {Hello("e", tgid) for tgid in (process.pid, child, grandchild)}
    assert set(both.hellos) == {Hello("e", process.pid), Hello("other", child), Hello("other", grandchild)}


async def test_engine_that_was_never_there_is_a_reason_and_one_that_went_is_not(listening: tuple[int, int]) -> None:
    pid, port = listening
    engines = source(f'[[engines]]\nname = "chat"\nmetrics_url = "http://localhost:{port}/metrics"')
    await engines.collect(1.0)
    os.kill(pid, 9)
    await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert (await engines.collect(2.0)).hellos == [], "that it is down is the engine's state, not this source's"
    never = source(f'[[engines]]\nname = "chat"\nmetrics_url = "http://localhost:{port}/metrics"')
    with pytest.raises(SourceError, match="chat: no process seen to listen"):
        await never.collect(1.0)


async def test_pid_file(tmp_path: Path, listening: tuple[int, int]) -> None:
    file = tmp_path / "chat.pid"
    pid, _ = listening  # a process that has started none; ours may have
    file.write_text(f"{pid}\n")
    engines = source(f'[[engines]]\nname = "chat"\npid_file = "{file}"')
    assert (await engines.collect(1.0)).hellos == [Hello("chat", pid)]
    file.write_text("soon")
    with pytest.raises(SourceError, match=r"chat\.pid"):
        await engines.collect(2.0)
    file.unlink()
    with pytest.raises(SourceError, match=r"chat\.pid"):
        await engines.collect(3.0)


async def test_an_engine_on_another_host_is_not_looked_for() -> None:
    assert (await source('[[engines]]\nname = "far"\nmetrics_url = "http://192.0.2.1:8000/metrics"').collect(1.0)).hellos == []


async def test_without_its_pid_file_an_engine_is_found_by_its_socket(listening: tuple[int, int], tmp_path: Path) -> None:
    pid, port = listening
    text = f'[[engines]]\nname = "chat"\npid_file = "{tmp_path}/none.pid"\nmetrics_url = "http://localhost:{port}/metrics"'
    assert (await source(text).collect(1.0)).hellos == [Hello("chat", pid)]
