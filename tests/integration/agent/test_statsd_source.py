"""StatsD on real sockets: who sends, what is lost and where it is counted, what is in the way, what hostile senders can do."""

# ruff: noqa: ASYNC220, ASYNC221, ASYNC222, ASYNC230, ASYNC240 - nothing else runs on a test's event loop

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from fakes.privilege import NOBODY, public_directory

from aie_agent.config import StatsdSection
from aie_agent.config_values import AddressOrOff, SocketPath
from aie_agent.samples import Batch, Hello
from aie_agent.sources.base import SourceError
from aie_agent.sources.statsd import StatsdSource
from aie_agent.sources.statsd_listeners import MAX_PACKET_BYTES, UdpListener, UnixListener
from aie_telemetry.catalogue import CATALOGUE

LINE = b"aie_engine_requests_received_total,engine=e,model=m:1|c"
DEADLINE_S = 60.0

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Running:
    """A source and all that it has delivered."""

    def __init__(self, source: StatsdSource) -> None:
        self.source = source
        self.batches: list[Batch] = []
        self.problem: str | None = None

    async def collect(self) -> None:
        self.problem = None
        try:
            self.batches.append(await self.source.collect(time.time()))
        except SourceError as error:
            self.problem = str(error)
            if error.batch is not None:
                self.batches.append(error.batch)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Collects until something has come true; the deadline only ends a test that fails."""
        end = time.monotonic() + DEADLINE_S
        await self.collect()
        while not condition():
            assert time.monotonic() < end, self.source.counters()
            await asyncio.sleep(0.005)
            await self.collect()
        await self.collect()  # the condition may have come true behind the last sums

    async def packets(self, number: int) -> None:
        """Waits until so many packets have come, by both sockets."""
        await self.until(lambda: sum(self.source.counters().packets.values()) >= number)

    @property
    def hellos(self) -> list[Hello]:
        return [hello for batch in self.batches for hello in batch.hellos]

    def total(self, name: str) -> float:
        return sum(point.value for batch in self.batches for point in batch.points if point.name == name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "aie" / "statsd.sock"


@contextlib.asynccontextmanager
async def running(path: Path | None, udp: tuple[str, int] | None = None, **options: int) -> AsyncIterator[Running]:
    source = StatsdSource(path, udp, **options)
    try:
        it = Running(source)
        await it.collect()
        yield it
    finally:
        await source.close()


@contextlib.contextmanager
def sender(address: Path | str) -> Iterator[socket.socket]:
    """A socket connected to a path, or to a source's "udp://HOST:PORT"."""
    if isinstance(address, Path):
        family, where = socket.AF_UNIX, str(address)
        with socket.socket(family, socket.SOCK_DGRAM) as unix:
            unix.connect(where)
            yield unix
        return
    host, _, port = address.removeprefix("udp://").rpartition(":")
    with socket.socket(socket.AF_INET6 if "[" in host else socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect((host.strip("[]"), int(port)))
        yield udp


def send_from_child(address: Path | str, *lines: bytes, prefix: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """A process that sends lines, each in a packet with %d as its own pid, says so, and lives on until its input ends."""
    code = f"""
import os, socket, sys
address = {str(address)!r}
if address.startswith("udp://"):
    host, _, port = address.removeprefix("udp://").rpartition(":")
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect((host, int(port)))
else:
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.connect(address)
for line in {list(lines)!r}:
    sender.send(line.replace(b"%d", str(os.getpid()).encode()))
print(os.getpid(), flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen([*prefix, sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()
    return child


def end(child: subprocess.Popen[bytes]) -> None:
    child.communicate(b"")
    assert child.returncode == 0


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
            await it.until(lambda: bool(it.hellos))
            assert it.hellos == [Hello("e", child.pid)]
            end(child)

    @as_root
    @pytest.mark.parametrize("over", ["unix", "udp"])
    async def test_an_engine_in_a_container_is_found(self, path: Path, over: str) -> None:
        unshare = ("unshare", "--pid", "--fork", "--kill-child")
        if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
            pytest.skip("no pid namespaces here")
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
                pid = os.fork()
                if pid == 0:  # nothing but system calls in here
                    os.setuid(NOBODY)
                    with sender(directory / "aie" / "statsd.sock") as unix:
                        unix.send(LINE)
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
                await it.packets(1)
                assert it.hellos == [Hello("e", pid)]


class TestLosses:
    def test_udp_losses_are_counted_to_the_packet(self) -> None:
        listener = UdpListener("127.0.0.1", 0)
        sent = 0
        with sender(listener.address) as udp:
            while listener.kernel_drops() == 0 or sent % 100:
                udp.send(b"x" * 4000)
                sent += 1
        drops = listener.kernel_drops()
        received = 0
        while listener.receive() is not None:
            received += 1
        listener.close()
        assert drops is not None
        assert drops > 0
        assert received + drops == sent

    def test_a_full_unix_socket_is_seen_by_the_sender(self, path: Path) -> None:
        listener = UnixListener(path)
        sent = 0
        with sender(path) as unix:
            unix.setblocking(False)
            with pytest.raises(BlockingIOError):  # noqa: PT012 - it is the last of many
                while True:
                    unix.send(LINE)
                    sent += 1
        received = 0
        while listener.receive() is not None:
            received += 1
        assert listener.kernel_drops() is None
        listener.close()
        assert received == sent > 0

    @pytest.mark.parametrize("socket_name", ["unix", "udp"])
    async def test_a_flood_is_accounted_for_and_stays_bounded(self, path: Path, socket_name: str) -> None:
        """Ever new series, far more than are taken; the event loop goes on meanwhile, and every packet is somewhere."""
        max_series = 200
        async with running(path, ("127.0.0.1", 0), max_series=max_series) as it:
            address = path if socket_name == "unix" else it.source.addresses["udp"]
            with sender(address) as flood:
                before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                lines_each, packets = 20, 20 * max_series

                def send_all() -> None:
                    for number in range(packets):
                        flood.send(b"\n".join(b"flood,n=%d.%d:1|h" % (number, line) for line in range(lines_each)))

                sending = asyncio.create_task(asyncio.to_thread(send_all))
                turns = 0
                while not sending.done():
                    await it.collect()
                    turns += 1
                await sending

            def accounted() -> bool:
                counters = it.source.counters()
                return counters.packets.get(socket_name, 0) + counters.kernel_drops.get(socket_name, 0) == packets

            await it.until(accounted)
            await it.collect()
            counters = it.source.counters()
            assert turns > 0
            assert counters.samples == lines_each * counters.packets[socket_name]
            assert max(len(batch.histograms) for batch in it.batches) <= max_series / 2  # it all comes from one sender
            taken = sum(sum(histogram.counts) for batch in it.batches for histogram in batch.histograms)
            assert taken + counters.dropped["series_share"] == counters.samples
            grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
            assert grown_kib < 64 << 10

    async def test_a_flood_does_not_hold_up_the_event_loop(self, path: Path) -> None:
        code = f"""
import socket
flood = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
flood.connect({str(path)!r})
packet = b"\\n".join(b"flood,n=%d:1|c" % number for number in range(80))
while True:
    flood.send(packet)
"""
        async with running(path) as it:
            child = subprocess.Popen([sys.executable, "-c", code])
            try:
                await it.packets(500)
                before = it.source.counters().packets["unix"]
                turns = 0
                while it.source.counters().packets["unix"] < before + 2000:
                    await asyncio.sleep(0)
                    turns += 1
                assert turns > 20  # a loop that waited for the flood's end would get none
            finally:
                child.kill()
                child.wait()


class TestHostileInput:
    async def test_any_bytes(self, path: Path) -> None:
        rng = random.Random(4711)
        pieces = [LINE, b"|", b":", b"@", b"#", b"\n", b",", b"=", b"\xff\xfe", b"\0", b"c", b"g|", b"1e999", b"_e{1,1}", b"  "]
        packets = [b"".join(rng.choices(pieces, k=rng.randint(0, 40))) for _ in range(500)]
        packets += [rng.randbytes(rng.randint(0, 2000)) for _ in range(500)]
        async with running(path) as it:
            with sender(path) as unix:
                await asyncio.to_thread(lambda: [unix.send(packet) for packet in packets])
                await it.packets(len(packets))
                unix.send(b"still.alive:1|c")
            await it.packets(len(packets) + 1)
            assert it.total("still_alive") == 1
            assert it.problem is None
            assert sum(it.source.counters().dropped.values()) > 0

    async def test_an_oversized_packet_counts_with_its_whole_lines(self, path: Path) -> None:
        lines = MAX_PACKET_BYTES // len(b"a:1|c\n")
        async with running(path) as it:
            with sender(path) as unix:
                unix.send(b"a:1|c\n" * lines + b"b:123456|c")
            await it.packets(1)
            assert it.total("a") == lines
            assert it.total("b") == 0
            assert it.source.counters().dropped == {"packet_truncated": 1}

    async def test_an_empty_packet(self, path: Path) -> None:
        async with running(path) as it:
            with sender(path) as unix:
                unix.send(b"")
                unix.send(LINE)
            await it.packets(2)
            assert it.total("aie_engine_requests_received_total") == 1

    async def test_descriptors_that_are_sent_along_are_not_kept(self, path: Path) -> None:
        async with running(path) as it:
            before = len(os.listdir("/proc/self/fd"))
            with sender(path) as unix, Path("/dev/null").open() as null:
                rights = array.array("i", [null.fileno()] * 20)
                for _ in range(50):
                    unix.sendmsg([LINE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            await it.packets(50)
            assert len(os.listdir("/proc/self/fd")) <= before + 2  # the thread of a collection may hold one for a moment
            assert it.hellos == [Hello("e", os.getpid())]


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
