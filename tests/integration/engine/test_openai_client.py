"""OpenAI's own Python client against the real engine with the real model, started as users start it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from engine_process import engine_process
from http_client import get
from openai import OpenAI

from aie_telemetry.catalogue import OUTCOMES
from aie_telemetry.exposition import PageParser

pytestmark = pytest.mark.model

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with engine_process("--name", "chat", "--max-running", "8", "--kv-tokens", "4096") as engine:
        yield engine.wait_until_ready()


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120.0)


def ask(client: OpenAI, **more: object) -> str:
    """The text of a short chat answer."""
    options: dict[str, object] = {"messages": QUESTION, "max_tokens": 24, "temperature": 0} | more
    return client.chat.completions.create(model=MODEL, **options).choices[0].message.content  # type: ignore[call-overload, no-any-return]


def test_a_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=30)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_says_the_same(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=24, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ask(client)
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 1


def test_a_completion_streamed_and_not(client: OpenAI) -> None:
    options = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
    whole = client.completions.create(**options)
    assert whole.choices[0].text.startswith(" Paris")
    assert whole.choices[0].finish_reason == "length"
    chunks = list(client.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_a_stop_string_cuts(client: OpenAI) -> None:
    full = ask(client)
    stop = full[6:12]  # within words: across the borders of tokens
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=24, stop=[stop, "never"])
    assert answer.choices[0].message.content == full[: full.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_seed_gives_the_same_answer_alone_and_in_company(client: OpenAI) -> None:
    def seeded(seed: int) -> str:
        return ask(client, seed=seed, temperature=0.9, top_p=0.95, messages=[{"role": "user", "content": "Tell me a story."}])

    alone = [seeded(seed) for seed in range(3)]
    assert len(set(alone)) == 3
    with ThreadPoolExecutor(9) as pool:
        together = list(pool.map(seeded, [0, 1, 2] * 3))
    assert together == alone * 3


def test_without_a_seed_answers_differ(client: OpenAI) -> None:
    assert len({ask(client, temperature=1.5) for _ in range(3)}) > 1


def test_token_limits(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "aie"


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=MODEL, prompt="word " * 5000)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIStatusError) as late:
        client.chat.completions.create(model=MODEL, messages=QUESTION, extra_headers={"X-Request-Timeout-Seconds": "0.001"})
    assert late.value.status_code == 504


def test_a_stream_that_is_closed_early_is_cancelled(client: OpenAI, url: str) -> None:
    before = outcomes(url)
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=2000, temperature=2, stream=True)
    next(iter(stream))
    stream.close()
    while sum(outcomes(url).values()) == sum(before.values()):
        assert get(url, "/health").status == 200
    after = outcomes(url)
    # Unless the model itself ended the answer before the connection was closed.
    assert after["cancelled"] + after["ok"] == before["cancelled"] + before["ok"] + 1
    assert sample(url, "aie_engine_kv_used_tokens") == 0


def test_the_page_adds_up(client: OpenAI, url: str) -> None:
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(ask, client, max_tokens=6) for _ in range(16)]
        while not all(answer.done() for answer in answers):
            page = read(url)
            ended = sum(value for (name, _), value in page.items() if name == "aie_engine_requests_total")
            in_work = value_of(page, "aie_engine_requests_running") + value_of(page, "aie_engine_requests_waiting")
            assert value_of(page, "aie_engine_requests_received_total") == ended + in_work
    assert sample(url, "aie_engine_inter_token_seconds_count") > 0


Page = dict[tuple[str, str | None], float]


def read(url: str) -> Page:
    """The page's samples by name and outcome; histogram buckets left out."""
    samples = PageParser().parse(get(url, "/metrics").body.decode()).samples
    return {(name, dict(tags).get("outcome")): value for name, tags, value, *_ in samples if not name.endswith("_bucket")}


def value_of(page: Page, name: str) -> float:
    return page[name, None]


def sample(url: str, name: str) -> float:
    return value_of(read(url), name)


def outcomes(url: str) -> dict[str, float]:
    page = read(url)
    return {outcome: page["aie_engine_requests_total", outcome] for outcome in OUTCOMES}
