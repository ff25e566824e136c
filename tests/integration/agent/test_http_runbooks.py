"""The pages of runbooks, as the agent serves them: what `runbook_url` names is there, and nothing else is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import aiohttp
import pytest
from yarl import URL

import aie_alerts
from aie_agent.config_values import Address
from aie_agent.outputs.http import HttpServer
from aie_agent.store import Store


class Running(NamedTuple):
    server: HttpServer
    port: int
    client: aiohttp.ClientSession

    async def get(self, path: str) -> tuple[int, str, str]:
        """Status, type and text; the path goes out as it is written."""
        url = URL(f"http://127.0.0.1:{self.port}{path}", encoded=True)
        async with self.client.get(url) as answer:
            return answer.status, answer.content_type, await answer.text()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    server = HttpServer(Store(max_series=10, retention_s=300.0), str)
    port = await server.start(Address("127.0.0.1:0"))
    async with aiohttp.ClientSession() as client:
        yield Running(server, port, client)
    await server.close()


@pytest.mark.parametrize("name", ["AieMemoryLeak", "memory_leak", "memory_leak.md"])
async def test_pages_of_alerts_and_causes(running: Running, name: str) -> None:
    page = aie_alerts.pages()[name.removesuffix(".md")]
    assert await running.get(f"/runbooks/{name}") == (200, "text/markdown", aie_alerts.page_text(page))


async def test_links_of_a_page_are_served(running: Running) -> None:
    _, _, text = await running.get("/runbooks/AieMemoryLeak")
    assert "(memory_leak.md)" in text
    assert "docs/runbooks" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/runbooks/nonsense",
        "/runbooks/..",
        "/runbooks/%2e%2e%2frules%2fslo.yaml",
        "/runbooks/..%2f..%2f..%2fetc%2fpasswd",
        "/runbooks/%2fetc%2fpasswd",
        "/runbooks/memory_leak%00",
        "/runbooks/",
    ],
)
async def test_nothing_else_is_served(running: Running, path: str) -> None:
    status, _, text = await running.get(path)
    assert status == 404
    assert "root:" not in text


async def test_requests_are_counted_by_route_and_not_by_name(running: Running) -> None:
    await running.get("/runbooks/AieMemoryLeak")
    await running.get("/runbooks/nonsense")
    assert running.server.requests == {("/runbooks/{name}", 200): 1, ("/runbooks/{name}", 404): 1}
