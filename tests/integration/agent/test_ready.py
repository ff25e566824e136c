"""What holds as soon as the agent says that it is ready."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from aie_agent.agent import Agent
from aie_agent.config import parse


async def test_who_reads_that_the_agent_is_ready_finds_its_statsd_socket(tmp_path: Path) -> None:
    path = tmp_path / "statsd.sock"
    statsd = {"unix": str(path), "udp": "off"}
    config = parse({"api": {"listen": "127.0.0.1:0"}, "statsd": statsd, "bpf": {"enabled": False}}, "test")
    stop = asyncio.Event()
    ports: list[int] = []

    def ready(port: int) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(path))
            sender.send(b"requests:1|c")
        ports.append(port)
        stop.set()

    await asyncio.wait_for(Agent(config).run(stop, ready), 60)
    assert len(ports) == 1
    assert not path.exists()
