"""Real processes that look like known engines, found by the scan; and what an agent makes of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from statsd_running import as_root

from aie_agent import config as configuration
from aie_agent.config import Config
from aie_agent.discovered import MAX_PAGES, Discovered
from aie_agent.identity import Engines, Origin
from aie_agent.runners import Runners
from aie_agent.samples import Batch, Found
from aie_agent.sources.discovery import DiscoverySource
from aie_agent.sources.procfs import Procfs

PAGE = "# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total 7\n"
SERVER = f"""
import http.server, subprocess, sys

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = {PAGE!r}.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

worker = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
print(worker.pid, server.server_port, flush=True)
server.serve_forever()
"""
DEADLINE_S = 60.0


@contextlib.contextmanager
def llama_server(tmp_path: Path, *prefix: str) -> Iterator[tuple[int, int, int]]:
    """A process called llama-server, with a worker: the pids of both, and its port."""
    script = tmp_path / "llama-server"
    script.write_text(SERVER)
    command = [*prefix, sys.executable, str(script), "--metrics", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            worker, port = map(int, process.stdout.readline().split())
            yield process.pid, worker, port
        finally:
            process.kill()


async def found_by(source: DiscoverySource, tgid: int) -> Found | None:
    """What the scan finds of one process: other engines may run on this machine."""
    found = (await source.collect(time.time())).found
    assert found is not None
    return next((each for each in found if tgid in each.tgids), None)


async def test_a_real_process_and_its_worker(tmp_path: Path) -> None:
    source = DiscoverySource()
    with llama_server(tmp_path) as (tgid, worker, port):
        found = await found_by(source, tgid)
        assert found is not None
        assert (found.name, found.kind) == (f"llama.cpp-{port}", "llama.cpp")
        assert found.url == f"http://127.0.0.1:{port}/metrics"
        assert found.tgids == (tgid, worker)
    assert await found_by(source, tgid) is None
    await source.close()


@as_root
async def test_in_a_network_namespace_of_its_own(tmp_path: Path) -> None:
    with llama_server(tmp_path, "unshare", "--net", "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$0" "$@"') as (tgid, _, port):
        found = await found_by(DiscoverySource(), tgid)
    assert found is not None
    assert found.url is None, "what answers at 127.0.0.1 is another's"
    assert f"port {port} of" in str(found.note)


class World:
    """What an agent has beside its sources."""

    def __init__(self, text: str = "") -> None:
        self.engines = Engines(Procfs().start_ticks)
        self.batches: list[Batch] = []
        self.runners = Runners(self.batches.append, time.time)
        config: Config = configuration.parse(configuration.tomllib.loads(text), "test")
        self.discovered = Discovered(config, self.engines, self.runners)

    @property
    def sources(self) -> list[str]:
        return [health.name for health in self.runners.health]

    async def until(self, source: str) -> Batch:
        """The first batch that a source delivers."""
        end = time.monotonic() + DEADLINE_S
        while not any(batch.source == source for batch in self.batches):
            assert time.monotonic() < end, [health.reason for health in self.runners.health]
            await asyncio.sleep(0.01)
        return next(batch for batch in self.batches if batch.source == source)


@contextlib.asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as group:
        world.runners.start(group)
        yield world
        world.runners.cancel()
    await world.runners.close()


def me(name: str = "vllm-1", url: str | None = "http://127.0.0.1:1/metrics") -> Found:
    return Found(name, "vllm", (os.getpid(),), url)


async def test_its_page_is_read_while_it_lives(tmp_path: Path) -> None:
    async with running(World()) as world:
        with llama_server(tmp_path) as (tgid, _, port):
            found = await found_by(DiscoverySource(), tgid)
            assert found is not None
            world.discovered.take([found])
            batch = await world.until(f"scrape:llama.cpp-{port}")
            assert [p.value for p in batch.points if p.name == "aie_engine_generation_tokens_total"] == [7.0]
            world.discovered.take([found])
            assert world.sources == [f"scrape:llama.cpp-{port}"], "once"
            assert world.discovered.of(found.name) == found
            health = world.discovered.page_health(found.name)
            assert health is not None
            assert health.reason is None
        world.discovered.take([])
        assert world.sources == []
        assert world.discovered.of(found.name) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.3"])
def test_a_page_that_the_configuration_has_is_not_read_twice(host: str) -> None:
    world = World(f'[[engines]]\nname = "chat"\nmetrics_url = "http://{host}:8000/metrics"\n')
    world.discovered.take([me("vllm-8000", "http://127.0.0.1:8000/metrics")])
    assert world.sources == ["scrape:chat"]


def test_a_configured_engine_with_another_page_has_one(tmp_path: Path) -> None:
    world = World('[[engines]]\nname = "chat"\nmetrics_url = "http://127.0.0.1:9000/proxy"\n')
    world.engines.declare("chat", Origin.CONFIG, os.getpid())
    world.discovered.take([me()])
    assert world.sources == ["scrape:chat"]
    assert world.engines.names() == ["chat"]


def test_a_configured_engine_without_a_page_gets_one() -> None:
    world = World('[[engines]]\nname = "chat"\npid_file = "/run/chat.pid"\n')
    world.engines.declare("chat", Origin.CONFIG, os.getpid())
    world.discovered.take([me()])
    assert world.sources == ["scrape:chat"]
    assert world.discovered.of("chat") == me()


def test_an_engine_that_hooks_name_later_keeps_its_page() -> None:
    world = World()
    world.discovered.take([me()])
    world.engines.declare("chat", Origin.STATSD, os.getpid())
    assert world.discovered.of("chat") == me()
    assert world.discovered.page_health("chat") is world.runners.health[0]
    world.discovered.take([me()])
    assert world.sources == ["scrape:chat"]
    assert world.engines.names() == ["chat"]


def test_an_engine_without_a_page() -> None:
    world = World()
    world.discovered.take([me(url=None)])
    assert world.sources == []
    assert world.engines.names() == ["vllm-1"]


def test_not_more_pages_than_so_many() -> None:
    world = World()
    world.discovered.take([Found(f"e{at}", "vllm", (os.getpid(),), f"http://127.0.0.1:{at + 1}/metrics") for at in range(40)])
    assert len(world.sources) == MAX_PAGES


def test_the_pages_that_were_found_first_do_not_keep_out_a_more_deserving_one() -> None:
    world = World()
    crowd = [Found(f"e{at}", "vllm", (os.getpid(),), f"http://127.0.0.1:{at + 1}/metrics") for at in range(MAX_PAGES)]
    world.discovered.take(crowd)
    world.discovered.take([me("real", "http://127.0.0.1:8000/metrics"), *crowd])
    assert len(world.sources) == MAX_PAGES
    assert "scrape:real" in world.sources


async def test_a_page_that_does_not_answer(tmp_path: Path) -> None:
    """Time-outs are told from refusals: a process that is stopped still has its port open."""
    listener = await asyncio.start_server(lambda *_: asyncio.sleep(3600), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    world = World('[sources]\nscrape_timeout = "100ms"\nscrape_period = "100ms"\n')
    async with running(world):
        world.discovered.take([me("silent", f"http://127.0.0.1:{port}/metrics"), me("closed", "http://127.0.0.1:1/metrics")])
        silent, closed = (world.discovered.page_health(name) for name in ("silent", "closed"))
        assert silent is not None
        assert closed is not None
        async with asyncio.timeout(DEADLINE_S):
            while silent.failures < 2 or closed.failures < 2:  # noqa: ASYNC110 - nothing tells of a failure
                await asyncio.sleep(0.01)
        assert silent.unanswered_since_s is not None
        assert silent.unanswered_since_s < time.time() - 0.1
        assert closed.unanswered_since_s is None
    listener.close()
