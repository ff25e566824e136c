"""An engine's page over HTTP: what comes of it, and one clear line for everything that can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from fakes.batches import assert_in_catalogue, histogram, value

from aie_agent.sources import scrape
from aie_agent.sources.base import SourceError
from aie_agent.sources.pages.lint import RULES
from aie_agent.sources.scrape import ScrapeSource
from aie_telemetry.catalogue import CATALOGUE
from aie_telemetry.exposition import CONTENT_TYPE
from aie_telemetry.instruments import Registry

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """The URL of a server that answers everything with `handler`."""
    app = web.Application()
    app.router.add_get("/{tail:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


def answers(text: str, *, status: int = 200) -> Handler:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=text.encode(), status=status, headers={"Content-Type": CONTENT_TYPE})

    return handler


@contextlib.asynccontextmanager
async def source(url: str, timeout_s: float = 60.0) -> AsyncIterator[ScrapeSource]:
    it = ScrapeSource("llama", url, timeout_s=timeout_s)
    try:
        yield it
    finally:
        await it.close()


async def failure(url: str, timeout_s: float = 60.0) -> str:
    async with source(url, timeout_s) as it:
        with pytest.raises(SourceError) as caught:
            await it.collect(1.0)
    message = str(caught.value)
    assert "\n" not in message
    assert url in message
    return message


async def test_a_page_of_our_engine() -> None:
    registry = Registry()
    registry.value("aie_engine_requests_total", "x", "m", "ok").add(7)
    registry.value("aie_engine_requests_running", "x", "m").set(3)
    registry.distribution("aie_engine_step_seconds", "x", "m").observe(0.03, 4)
    async with serving(answers(registry.render())) as url, source(url) as it:
        assert it.name == "scrape:llama"
        for now_s in (1.0, 2.0):
            batch = await it.collect(now_s)
            assert (batch.source, batch.time_s) == ("scrape:llama", now_s)
            assert_in_catalogue(batch)
            assert value(batch, "aie_engine_requests_total", engine="llama", outcome="ok") == 7
            assert value(batch, "aie_engine_requests_running", engine="llama") == 3
            steps = histogram(batch, "aie_engine_step_seconds")
            assert steps.bounds == CATALOGUE["aie_engine_step_seconds"].buckets
            assert (sum(steps.counts), steps.total) == (4, pytest.approx(0.12))
        assert not it.refused


async def test_one_connection_is_kept() -> None:
    connections = set()

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        connections.add(request.transport.get_extra_info("peername"))
        return web.Response(text='aie_engine_requests_running{model="m"} 1\n')

    async with serving(handler) as url, source(url) as it:
        for _ in range(3):
            await it.collect(1.0)
    assert len(connections) == 1


async def test_refusals_are_summed() -> None:
    page = 'aie_engine_requests_running{model="m"} 1\naie_engine_other 1\n'
    async with serving(answers(page)) as url, source(url) as it:
        await it.collect(1.0)
        await it.collect(2.0)
        assert it.refused == {"reserved_name": 2}


async def test_a_page_that_takes_long_to_read_is_read_less_often() -> None:
    text = 'aie_engine_requests_running{model="m"} 1\n'
    requests = 0

    async def handler(_request: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        return web.Response(text=text)

    costs_s = iter((0.0, 0.9, 0.0, 0.2))
    clock_s = itertools.chain.from_iterable((0.0, cost_s) for cost_s in costs_s)
    async with serving(handler) as url:
        it = ScrapeSource("llama", url, period_s=1.0, timeout_s=60.0, cpu_clock=lambda: next(clock_s))
        await it.collect(1.0)
        # Takes 0.9 s: a fifth of the time is 4.5 s, so four collections are left out. What it said is taken.
        reasons = []
        for now_s in (2.0, 3.0, 4.0, 5.0, 6.0):
            with pytest.raises(SourceError, match=r"a page of some 0\.04 kB takes too long") as error:
                await it.collect(now_s)
            reasons.append(str(error.value))
            assert (error.value.batch is not None) == (now_s == 2.0)
        assert len(set(reasons)) == 1, "one line in the log"
        assert requests == 2
        for now_s in (7.0, 8.0):  # takes nothing, and what it may
            assert value(await it.collect(now_s), "aie_engine_requests_running") == 1
        assert requests == 4
        assert it._to_skip == 0
        await it.close()


async def test_a_page_is_read_up_to_a_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MAX_SAMPLES", 10)
    page = 'aie_engine_requests_running{model="m"} 1\n' + "up 1\n" * 20
    async with serving(answers(page)) as url, source(url) as it:
        assert len((await it.collect(1.0)).points) == 1
        assert it.refused == {"series_limit": 11}


@pytest.mark.parametrize("control", [b"\x1b[2J\x1b]0;owned\x07", b"\xc2\x9b2J", b"\xe2\x80\xae"], ids=["C0", "C1", "bidi"])
async def test_a_status_line_cannot_steer_the_terminal(control: bytes) -> None:
    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 " + control + b"x" * 500 + b"\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hostile, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        message = await failure(f"http://127.0.0.1:{port}/metrics")
    assert message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize("text", ["\x1b[2J\x1b]0;x\x07", "a\nb", "\u202e", "x" * 9999])
def test_what_others_say_is_one_printable_line(text: str) -> None:
    assert scrape._one_line(text).isprintable()
    assert len(scrape._one_line(text)) < 2000


async def test_nobody_listens() -> None:
    async with serving(answers("")) as url:
        pass
    assert "Connect call failed" in await failure(url) or "refused" in await failure(url)


@pytest.mark.parametrize("status", [404, 500, 302])
async def test_another_status(status: int) -> None:
    async with serving(answers("no", status=status)) as url:
        assert f"status {status}" in await failure(url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!doctype html>\n<html>\n<body>Welcome</body></html>",
        '{"requests": 3}',
        '[{"iteration": 3}]',
        '"a string that holds no page"',
        '"no end of a string',
        "\x00\x01\x02",
        "\n\n",
    ],
)
async def test_what_is_no_metrics_page(text: str) -> None:
    async with serving(answers(text)) as url:
        assert "no Prometheus text page" in await failure(url)


async def test_another_programs_page() -> None:
    async with serving(answers("# TYPE up gauge\nup 1\n")) as url:
        message = await failure(url)
    for name in ("no engine that is known", "aie-engine", "vLLM", "SGLang", "TGI", "TensorRT-LLM", "llama.cpp", "Triton"):
        assert name in message


async def test_a_page_of_another_engine() -> None:
    body = (Path(__file__).parents[2] / "fixtures/pages/vllm-0.33-dp2.prom").read_text()
    async with serving(answers(body)) as url, source(url) as it:
        assert (it.kind, it.lint, list(it.counts())) == (None, None, [])
        for now_s in (1.0, 2.0):
            batch = await it.collect(now_s)
            assert_in_catalogue(batch)
            assert value(batch, "aie_engine_info", engine="llama", kind="vllm") == 1
            assert value(batch, "aie_engine_requests_running", engine="llama", model="Qwen/Qwen3-8B") == 6
            assert sum(histogram(batch, "aie_engine_time_to_first_token_seconds").counts) == 100
        assert (it.kind, it.lint, it.refused) == ("vllm", [], {})


async def test_what_is_wrong_with_a_page_is_a_metric_as_long_as_there_is_a_page() -> None:
    page = "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 1\nllamacpp:tokens_predicted_total 3\n"
    status = 200

    async def handler(_request: web.Request) -> web.Response:
        return web.Response(text=page, status=status)

    async with serving(handler) as url, source(url) as it:
        await it.collect(1.0)
        assert it.lint is not None
        assert {finding.rule for finding in it.lint} == {"missing_family", "undeclared"}
        lint = {labels: number for name, labels, number in it.counts() if name == "aie_agent_scrape_lint"}
        assert {rule for (engine, rule), number in lint.items() if number == 1 and engine == "llama"} == {
            "missing_family",
            "undeclared",
        }
        assert len(lint) == len(RULES)
        status = 500
        with pytest.raises(SourceError):
            await it.collect(2.0)
        assert list(it.counts()) == []


async def test_tensorrt_llms_other_metrics_page() -> None:
    """It serves JSON where others serve the page."""
    async with serving(answers('[{"iter": 3, "iterLatencyMS": 12.5}]')) as url:
        assert "/prometheus/metrics" in await failure(url)


async def test_an_engine_that_does_not_answer() -> None:
    async def handler(_request: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        raise AssertionError

    async with serving(handler) as url:
        assert "no answer within 0.05 s" in await failure(url, timeout_s=0.05)


async def test_an_engine_that_never_ends_its_page() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"aie_engine_requests_running 1\n")
        await asyncio.sleep(3600)
        raise AssertionError

    async with serving(handler) as url:
        assert "no answer within 0.1 s" in await failure(url, timeout_s=0.1)


async def test_a_page_too_large_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MAX_PAGE_BYTES", 1 << 20)
    written = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal written
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"a 1\n" * 25_000)
            written += 100_000

    async with serving(handler) as url:
        assert "larger than 1 MiB" in await failure(url)
    assert written < 100 << 20


async def test_a_compressed_page_is_neither_asked_for_nor_unpacked() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        bomb = gzip.compress(b"0" * (4 << 20))
        return web.Response(body=bomb, headers={"Content-Type": CONTENT_TYPE, "Content-Encoding": "gzip"})

    async with serving(handler) as url:
        assert "no Prometheus text page" in await failure(url)


async def test_bytes_that_are_not_http() -> None:
    async def garbage(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x16\x03\x01 what?\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        await failure(f"http://127.0.0.1:{port}/metrics")


async def test_an_engine_that_hangs_up_in_the_middle() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\naie_engine_requests_running 1\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        await failure(f"http://127.0.0.1:{port}/metrics")


async def test_an_engine_that_comes_back_is_read_again() -> None:
    page = 'aie_engine_requests_running{model="m"} 1\n'
    async with serving(answers(page)) as url:
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        it = ScrapeSource("llama", url, timeout_s=60.0)
        await it.collect(1.0)
    with pytest.raises(SourceError):
        await it.collect(2.0)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(page)}\r\n\r\n{page}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handler, "127.0.0.1", port)
    async with server:
        assert value(await it.collect(3.0), "aie_engine_requests_running") == 1
        await it.close()
