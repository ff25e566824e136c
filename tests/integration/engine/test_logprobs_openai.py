"""Log-probabilities through OpenAI's own client: the forms against a model with known ones, the numbers against transformers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engine_process import engine_process
from fakes.fake_engine import FakeEngine, fake_engine
from fakes.fake_model import EOS, VOCABULARY, continuation, text_of
from openai import BadRequestError, OpenAI
from oracle import Oracle

from aie_engine.loading import LoadedModel

HALF, QUARTER = -math.log(2), -math.log(4)
PROMPT = "Hello"


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with fake_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> OpenAI:
    return OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=120.0)


def ask(client: OpenAI, **options: Any) -> Any:
    """A chat with the fake model."""
    messages = [{"role": "user", "content": PROMPT}]
    return client.chat.completions.create(**({"model": "fake", "messages": messages, "max_tokens": 8, "logprobs": True} | options))


def complete(client: OpenAI, **options: Any) -> Any:
    """A completion by the fake model."""
    return client.completions.create(**({"model": "fake", "prompt": PROMPT, "max_tokens": 8, "logprobs": 2} | options))


def expected_chat() -> list[int]:
    return continuation(f"user: {PROMPT}\nassistant: ".encode(), 8)


def test_a_chat(client: OpenAI) -> None:
    choice = ask(client, top_logprobs=2).choices[0]
    tokens = choice.logprobs.content
    assert [token.bytes for token in tokens] == [[token_id] for token_id in expected_chat()]
    assert "".join(token.token for token in tokens) == choice.message.content
    for token, token_id in zip(tokens, expected_chat(), strict=True):
        assert token.logprob == HALF
        second = (token_id + 1) % VOCABULARY
        assert [(top.token, top.bytes, top.logprob) for top in token.top_logprobs] == [
            (chr(token_id), [token_id], HALF),
            (chr(second), [second], QUARTER),
        ]


def test_a_streamed_chat_says_the_same(client: OpenAI) -> None:
    whole = ask(client, top_logprobs=3).choices[0]
    chunks = [chunk.choices[0] for chunk in ask(client, top_logprobs=3, stream=True)]
    tokens = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content]
    assert tokens == whole.logprobs.content
    for chunk in chunks:
        spelled = "".join(token.token for token in chunk.logprobs.content) if chunk.logprobs else ""
        assert spelled == (chunk.delta.content or "")  # each chunk tells of its own text
    assert chunks[-1].finish_reason == whole.finish_reason


def test_only_the_chosen_tokens(client: OpenAI) -> None:
    assert all(token.top_logprobs == [] for token in ask(client).choices[0].logprobs.content)
    assert ask(client, logprobs=False).choices[0].logprobs is None
    assert complete(client, logprobs=0).choices[0].logprobs.top_logprobs is None


def test_a_completion_whole_and_streamed(client: OpenAI) -> None:
    choice = complete(client).choices[0]
    ids = continuation(PROMPT.encode(), 8)
    assert choice.logprobs.tokens == [chr(token_id) for token_id in ids]
    assert choice.logprobs.token_logprobs == [HALF] * 8
    assert choice.logprobs.text_offset == list(range(8))
    assert choice.logprobs.top_logprobs == [{chr(token_id): HALF, chr(token_id + 1): QUARTER} for token_id in ids]
    parts = [chunk.choices[0].logprobs for chunk in complete(client, stream=True) if chunk.choices[0].logprobs]
    for field in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [item for part in parts for item in getattr(part, field)] == getattr(choice.logprobs, field)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_both(client: OpenAI, stream: bool) -> None:
    ids = expected_chat()
    text = text_of(ids)
    cut = text.index(text[3:5])
    answer = ask(client, stop=[text[3:5]], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert [token.bytes for token in tokens] == [[token_id] for token_id in ids[:cut]]
    shown = "".join(choice.delta.content or "" for choice in choices) if stream else choices[0].message.content
    assert shown == text[:cut] == "".join(token.token for token in tokens)


def test_the_end_of_the_sequence_is_not_among_the_tokens(client: OpenAI) -> None:
    answer = complete(client, prompt="Hello!")  # after "!" the model ends at once
    assert answer.usage.completion_tokens == 1
    assert answer.choices[0].logprobs.tokens == []
    tops = complete(client, prompt=[EOS - 1], logprobs=1).choices[0].logprobs.top_logprobs
    assert all(len(top) == 1 for top in tops)


@pytest.mark.parametrize(
    ("options", "param"),
    [({"top_logprobs": 21}, "top_logprobs"), ({"logprobs": False, "top_logprobs": 1}, "top_logprobs")],
)
def test_what_does_not_go_together_is_refused(client: OpenAI, options: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask(client, **options)
    assert caught.value.param == param
    with pytest.raises(BadRequestError) as caught:
        complete(client, logprobs=6)
    assert caught.value.param == "logprobs"


@pytest.mark.model
def test_the_numbers_are_those_of_transformers(loaded: LoadedModel, oracle: Oracle) -> None:
    prompt = loaded.tokenizer.encode("日本の首都は東京です。🙂 The capital of", allow_special=False)
    with engine_process("--max-running", "2", "--kv-tokens", "512") as process:
        client = OpenAI(base_url=f"{process.wait_until_ready()}/v1", api_key="none", max_retries=0, timeout=120.0)
        answer: Any = client.completions.create(model="smollm2", prompt=prompt, max_tokens=10, temperature=0, logprobs=5)
        chat: Any = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Write three emoji."}],
            max_tokens=24,
            logprobs=True,
            top_logprobs=2,
            temperature=1.5,
            seed=5,
        )
    logprobs = answer.choices[0].logprobs
    ids = [_id_of(loaded, token) for token in logprobs.tokens]
    judged = torch.log_softmax(oracle.next_logits(prompt, ids).double(), dim=-1)
    for step, token_id in enumerate(ids):
        assert logprobs.token_logprobs[step] == pytest.approx(judged[step, token_id].item(), abs=1e-3)
        best = sorted(logprobs.top_logprobs[step].values(), reverse=True)
        assert best == pytest.approx(judged[step].topk(5).values.tolist(), abs=1e-3)
    content = chat.choices[0].logprobs.content
    spelled = b"".join(bytes(token.bytes) for token in content)
    assert spelled.decode(errors="replace") == chat.choices[0].message.content
    # Sampled at 1.5, described at 1: before temperature.
    assert all(token.logprob <= token.top_logprobs[0].logprob + 1e-6 for token in content)


def _id_of(loaded: LoadedModel, spelled: str) -> int:
    """The token that is spelled so."""
    raw = bytes.fromhex(spelled.removeprefix("bytes:").replace("\\x", "")) if spelled.startswith("bytes:") else spelled.encode()
    return next(token_id for token_id in range(loaded.tokenizer.vocab_size) if loaded.tokenizer.token_bytes(token_id) == raw)
