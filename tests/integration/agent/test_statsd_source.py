"""StatsD on real sockets: what arrives, and what is in the way."""

# ruff: noqa: ASYNC240 - nothing else runs on a test's event loop

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from fakes.privilege import NOBODY
from statsd_running import LINE, Running, as_root, running, sender

from aie_agent.config import StatsdSection
from aie_agent.config_values import AddressOrOff, SocketPath
from aie_agent.sources.base import SourceError
from aie_agent.sources.statsd import StatsdSource
from aie_telemetry.catalogue import CATALOGUE


class TestDelivery:
    async def test_both_sockets_add_up(self, path: Path) -> None:
        async with running(path, ("127.0.0.1", 0)) as it:
            with sender(path) as unix, sender(it.source.addresses["udp"]) as udp:
                unix.send(LINE + b"\n" + LINE)
                udp.send(LINE)
            await it.packets(2)
            assert it.total("aie_engine_requests_received_total") == 3
            counters = it.source.counters()
            assert counters.packets == {"unix": 1, "udp": 1}
            assert counters.bytes == {"unix": 2 * len(LINE) + 1, "udp": len(LINE)}
            assert counters.samples == 3
            assert counters.dropped == {}
            assert counters.kernel_drops == {"udp": 0}

    async def test_ipv6(self) -> None:
        if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
            pytest.skip("no IPv6")
        async with running(None, ("::1", 0)) as it:
            with sender(it.source.addresses["udp"]) as udp:
                udp.send(LINE)
            await it.packets(1)
            assert it.total("aie_engine_requests_received_total") == 1

    async def test_nothing_is_open_when_both_are_off(self) -> None:
        async with running(None) as it:
            assert it.problem is None
            assert it.source.addresses == {}

    async def test_from_config(self, path: Path) -> None:
        section = StatsdSection(unix=SocketPath(str(path)), udp=AddressOrOff("off"))
        it = Running(StatsdSource.from_config(section))
        await it.collect()
        assert it.source.addresses == {"unix": f"unix://{path}"}
        await it.source.close()

    async def test_the_counts_are_metrics_of_the_catalogue(self, path: Path) -> None:
        async with running(path, ("127.0.0.1", 0)) as it:
            with sender(path) as unix:
                unix.send(LINE + b"\nbroken\n_sc|x|0\n")
            await it.packets(1)
            counts = {(name, labels): value for name, labels, value in it.source.counts()}
            for name, labels in counts:
                assert len(labels) == len(CATALOGUE[name].labels)
            assert counts["aie_agent_statsd_packets_total", ("unix",)] == 1
            assert counts["aie_agent_statsd_dropped_total", ("no_colon",)] == 1
            assert counts["aie_agent_statsd_ignored_total", ("service_check",)] == 1
            assert counts["aie_agent_statsd_kernel_drops_total", ("udp",)] == 0

    async def test_closing_takes_the_socket_away_and_ends_the_thread(self, path: Path) -> None:
        source = StatsdSource(path, ("127.0.0.1", 0))
        await source.collect(0.0)
        assert path.exists()
        await source.close()
        await source.close()
        assert not path.exists()
        with pytest.raises(SourceError, match="closed"):
            await source.collect(1.0)


class TestWhatIsInTheWay:
    async def test_a_port_in_use_is_named_and_the_other_socket_works(self, path: Path) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.1", 0))
            port = other.getsockname()[1]
            async with running(path, ("127.0.0.1", port)) as it:
                assert it.problem is not None
                assert f"udp://127.0.0.1:{port}: Address already in use" in it.problem
                assert "statsd.udp" in it.problem
                with sender(path) as unix:
                    unix.send(LINE)
                await it.packets(1)
                assert it.total("aie_engine_requests_received_total") == 1
                other.close()
                await it.collect()
                assert it.problem is None
                assert it.source.addresses["udp"] == f"udp://127.0.0.1:{port}"

    async def test_an_address_of_another_host(self) -> None:
        async with running(None, ("192.0.2.1", 8125)) as it:
            assert it.problem is not None
            assert "192.0.2.1:8125" in it.problem

    async def test_the_socket_of_a_killed_agent_is_taken_over(self, path: Path) -> None:
        code = f"""
import asyncio, os, pathlib, signal, time
from aie_agent.sources.statsd import StatsdSource
asyncio.run(StatsdSource(pathlib.Path({str(path)!r}), None).collect(0.0))
os.kill(os.getpid(), signal.SIGKILL)
"""
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        assert await child.wait() == -signal.SIGKILL
        assert path.is_socket()
        async with running(path) as it:
            assert it.problem is None
            with sender(path) as unix:
                unix.send(LINE)
            await it.packets(1)

    async def test_a_second_agent_is_refused_and_the_first_goes_on(self, path: Path) -> None:
        async with running(path) as first:
            async with running(path) as second:
                assert second.problem is not None
                assert "another agent is running" in second.problem
                with sender(path) as unix:
                    unix.send(LINE)
                await first.packets(1)
            assert path.is_socket()
        async with running(path) as third:
            assert third.problem is None

    async def test_a_program_that_listens_there_is_left_alone(self, path: Path) -> None:
        path.parent.mkdir()
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            with socket.socket(socket.AF_UNIX, kind) as other:
                other.bind(str(path))
                if kind == socket.SOCK_STREAM:
                    other.listen()
                async with running(path) as it:
                    assert it.problem is not None
                    assert "another program listens" in it.problem
            assert path.is_socket()
            path.unlink()

    async def test_a_file_at_the_path_is_left_alone(self, path: Path) -> None:
        path.parent.mkdir()
        path.write_text("precious")
        async with running(path) as it:
            assert it.problem is not None
            assert "is no socket" in it.problem
        assert path.read_text() == "precious"

    @as_root
    async def test_a_directory_of_somebody_else_is_refused(self, path: Path) -> None:
        path.parent.mkdir()
        os.chown(path.parent, NOBODY, NOBODY)
        async with running(path) as it:
            assert it.problem is not None
            assert f"belongs to user {NOBODY}" in it.problem
            os.chown(path.parent, 0, 0)
            await it.collect()
            assert it.problem is None

    @as_root
    async def test_a_link_of_somebody_else_is_refused(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        path.parent.symlink_to(tmp_path / "elsewhere")
        os.chown(path.parent, NOBODY, NOBODY, follow_symlinks=False)
        async with running(path) as it:
            assert it.problem is not None
            assert f"belongs to user {NOBODY}" in it.problem

    async def test_a_directory_that_everybody_may_write_to_is_refused_unless_sticky(self, path: Path) -> None:
        path.parent.mkdir()
        path.parent.chmod(0o777)
        async with running(path) as it:
            assert it.problem is not None
            assert "chmod o-w" in it.problem
            path.parent.chmod(0o1777)
            await it.collect()
            assert it.problem is None

    async def test_the_socket_is_open_to_all_and_its_directory_to_nobodys_changes(self, path: Path) -> None:
        async with running(path):
            assert path.stat().st_mode & 0o777 == 0o666
            assert path.parent.stat().st_mode & 0o777 == 0o755

    async def test_a_socket_that_was_cleaned_away_comes_back(self, path: Path) -> None:
        async with running(path) as it:
            path.unlink()
            await it.collect()
            with sender(path) as unix:
                unix.send(LINE)
            await it.packets(1)
            assert it.total("aie_engine_requests_received_total") == 1
