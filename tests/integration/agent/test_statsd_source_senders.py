"""StatsD: which process sent, as the kernel says, as a hello claims, and where neither can be known."""

# ruff: noqa: ASYNC240 - nothing else runs on a test's event loop

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.privilege import NOBODY, public_directory
from statsd_running import LINE, Running, as_root, end, running, send_from_child, sender

from aie_agent.samples import Hello
from aie_agent.sources.statsd import StatsdSource
from aie_agent.sources.statsd_namesakes import Namesakes
from aie_telemetry.api import Event
from aie_telemetry.events import encode_event

_SENDS_AS = """
import os, socket, sys
user, path, line = sys.argv[1:]
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
    os.setuid(int(user))
    unix.connect(path)
    unix.send(line.encode())
"""
"""Sends one datagram as another user, whom it becomes once nothing more is loaded."""


def unshared() -> tuple[str, ...]:
    """What runs a command as pid 1 of a pid namespace of its own."""
    unshare = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no pid namespaces here")
    return unshare


class TestSenders:
    async def test_the_kernel_says_who_sends_on_the_unix_socket(self, path: Path) -> None:
        async with running(path) as it:
            child = send_from_child(path, LINE)  # no hello: the engine tag is enough
            await it.packets(1)
            assert it.hellos == [Hello("e", child.pid)]
            end(child)

    async def test_a_hello_cannot_lie_there(self, path: Path) -> None:
        async with running(path) as it:
            child = send_from_child(path, b"aie_hooks_process,engine=e,pid=1:1|g")
            await it.packets(1)
            assert it.hellos == [Hello("e", child.pid)]
            assert not any(batch.points for batch in it.batches)
            end(child)

    async def test_over_udp_the_pid_of_the_hello_counts(self, path: Path) -> None:
        async with running(None, ("127.0.0.1", 0)) as it:
            child = send_from_child(it.source.addresses["udp"], LINE, b"aie_hooks_process,engine=e,pid=%d:1|g")
            await it.packets(2)
            await it.until(lambda: Hello("e", child.pid) in it.hellos)
            assert set(it.hellos) <= {Hello("e", None), Hello("e", child.pid)}  # the name first, where the sum came between
            end(child)

    async def test_over_udp_an_engine_without_a_hello_is_known_by_its_name(self) -> None:
        async with running(None, ("127.0.0.1", 0)) as it:
            with sender(it.source.addresses["udp"]) as udp:
                udp.send(LINE)
            await it.packets(1)
            assert it.hellos == [Hello("e", None)]

    async def test_over_udp_a_pid_that_nobody_has_leaves_the_name(self) -> None:
        async with running(None, ("127.0.0.1", 0)) as it:
            with sender(it.source.addresses["udp"]) as udp:
                udp.send(b"aie_hooks_process,engine=e,pid=9999999:1|g")  # above the largest pid that Linux gives
            await it.packets(1)
            await it.until(lambda: bool(it.hellos))
            assert it.hellos == [Hello("e", None)]

    async def test_over_udp_pid_1_is_never_the_hosts(self) -> None:
        async with running(None, ("127.0.0.1", 0)) as it:
            with sender(it.source.addresses["udp"]) as udp:
                udp.send(b"aie_hooks_process,engine=e,pid=1:1|g")
            await it.packets(1)
            await it.until(lambda: bool(it.hellos))
            assert Hello("e", 1) not in it.hellos

    @as_root
    async def test_over_udp_a_containers_pid_1_is_not_told_from_the_hosts(self) -> None:
        async with running(None, ("127.0.0.1", 0)) as it:
            child = send_from_child(it.source.addresses["udp"], b"aie_hooks_process,engine=e,pid=%d:1|g", prefix=unshared())
            await it.packets(1)
            await it.until(lambda: bool(it.hellos))
            assert it.hellos == [Hello("e", None)]
            end(child)

    @as_root
    @pytest.mark.parametrize("over", ["unix", "udp"])
    async def test_an_engine_in_a_container_is_found(self, path: Path, over: str) -> None:
        unshare = unshared()
        async with running(path, ("127.0.0.1", 0)) as it:
            address = path if over == "unix" else it.source.addresses["udp"]
            # A process with a child of its own first, so that its pid is not the 1 that others may have too.
            shell = ("sh", "-c", 'for n in 1 2 3 4 5; do true & wait; done; "$@"; exit $?', "sh")
            child = send_from_child(address, b"aie_hooks_process,engine=e,pid=%d:1|g", prefix=(*unshare, *shell))
            await it.packets(1)
            await it.until(lambda: bool(it.hellos))
            ((engine, tgid),) = it.hellos
            assert engine == "e"
            status = Path(f"/proc/{tgid}/status").read_text()
            pids = next(line for line in status.splitlines() if line.startswith("NSpid")).split()[1:]
            assert pids[0] == str(tgid)
            assert len(pids) > 1
            assert Path(f"/proc/{tgid}/cmdline").read_bytes().startswith(sys.executable.encode())
            end(child)

    @as_root
    async def test_a_process_of_another_user_may_send(self) -> None:
        with public_directory() as directory:
            async with running(directory / "aie" / "statsd.sock") as it:
                # A process of its own: a fork of one with threads may wait for a lock that nobody gives back.
                arguments = (str(NOBODY), str(directory / "aie" / "statsd.sock"), LINE.decode())
                child = subprocess.Popen([sys.executable, "-c", _SENDS_AS, *arguments])  # noqa: ASYNC220
                assert child.wait() == 0
                await it.packets(1)
                assert it.hellos == [Hello("e", child.pid)]


async def test_an_event_says_who_sent_it(path: Path) -> None:
    """An engine that has only run out of memory so far is joined to its process all the same."""
    event = Event(time_s=time.time(), kind="oom", engine="chat", summary="out of memory", details={"asked_bytes": 1e9})
    async with running(path, ("127.0.0.1", 0), datadog=False) as it:
        child = send_from_child(path, encode_event(event))
        await it.packets(1)
        assert [event for batch in it.batches for event in batch.events] == [event]
        assert it.hellos == [Hello("chat", child.pid)]
        with sender(it.source.addresses["udp"]) as udp:
            udp.send(encode_event(event) + b"\n_e{5,4}:title|text\n" + encode_event(event)[:-2])
        await it.packets(2)
        assert len([event for batch in it.batches for event in batch.events]) == 2
        counters = it.source.counters()
        assert counters.events == {"oom": 2}
        assert counters.dropped["bad_event"] == 1
        assert ("aie_agent_events_total", ("oom",), 2.0) in list(it.source.counts())
        end(child)


@pytest.mark.parametrize(("root", "name", "taken"), [(1, "e", True), (2, "e-8301", True), (3, "e", False), (None, "e", True)])
async def test_engines_of_one_name_are_told_apart_by_their_senders(path: Path, root: int | None, name: str, taken: bool) -> None:
    namesakes = Namesakes(lambda _: root)  # whoever sends is of the engine that this process was started as
    namesakes.know({"e": 1}, {("e", 2): "e-8301"})
    source = StatsdSource(path, None, namesakes=namesakes)
    try:
        it = Running(source)
        await it.collect()
        event = Event(time_s=time.time(), kind="oom", engine="e", summary="out of memory")
        child = send_from_child(path, LINE, b"foreign:1|c", encode_event(event))
        await it.packets(3)
        points = [(point.name, dict(point.tags).get("engine")) for batch in it.batches for point in batch.points]
        assert sorted(points) == [("aie_engine_requests_received_total", name)] * taken + [("foreign", None)]
        assert [each.engine for batch in it.batches for each in batch.events] == [name] * taken
        assert set(it.hellos) == {Hello(name, child.pid)}, "also of one of whom nothing is taken"
        assert it.source.counters().dropped.get("name_taken", 0) == (0 if taken else 2)
        end(child)
    finally:
        await source.close()
