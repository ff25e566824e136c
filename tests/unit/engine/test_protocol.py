"""Bodies of the OpenAI routes: what is taken, and that every refusal names the parameter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_engine.http_errors import ApiError
from aie_engine.protocol import ChatRequest, CompletionRequest, decode

MESSAGES = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatRequest:
    return decode(json.dumps({"model": "m", "messages": MESSAGES} | fields).encode(), ChatRequest)


def text(**fields: Any) -> CompletionRequest:
    return decode(json.dumps({"model": "m", "prompt": "Hello"} | fields).encode(), CompletionRequest)


Kind = type[ChatRequest] | type[CompletionRequest]


def read(body: bytes, kind: Kind) -> None:
    """All checks that a body goes through."""
    request = decode(body, kind)
    request.chat() if isinstance(request, ChatRequest) else request.text_or_ids()


def refusal(body: bytes, kind: Kind = ChatRequest) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(body, kind)
    assert caught.value.status == 400
    error = json.loads(caught.value.body())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 1e999}, None),  # json.dumps writes Infinity, which is no JSON
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_tokens": 2**64}, "max_tokens"),
        ({"max_tokens": 10**400}, "max_tokens"),
        ({"max_completion_tokens": 2**64}, "max_completion_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"seed": "one"}, "seed"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": "x" * 1001}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_usage": 3}, "stream": True}, "stream_options.include_usage"),
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": "yes"}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": True, "logprobs": True}, "top_logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"top_k": 5}, "top_k"),
        ({"ignore_eos": True}, "ignore_eos"),
    ],
)
def test_refusals_of_chat_name_the_parameter(fields: dict[str, Any], param: str | None) -> None:
    body = {name: value for name, value in ({"model": "m", "messages": MESSAGES} | fields).items() if value is not None}
    error = refusal(json.dumps(body).encode())
    assert error.param == param
    if param is not None:
        assert param.partition(".")[0].partition("[")[0] in error.message or param.startswith("messages[")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 1, "top_logprobs": 1}, "top_logprobs"),
    ],
)
def test_refusals_of_completions_name_the_parameter(fields: dict[str, Any], param: str) -> None:
    body = json.dumps({"model": "m", "prompt": "x"} | fields).encode()
    assert refusal(body, CompletionRequest).param == param


@pytest.mark.parametrize(
    ("request_", "alternatives"),
    [
        (chat(), None),
        (chat(logprobs=False, top_logprobs=0), None),
        (chat(logprobs=True), 0),
        (chat(logprobs=True, top_logprobs=20), 20),
        (text(), None),
        (text(logprobs=0), 0),
        (text(logprobs=5), 5),
    ],
)
def test_alternatives_of_each_token(request_: ChatRequest | CompletionRequest, alternatives: int | None) -> None:
    assert request_.alternatives == alternatives


@pytest.mark.parametrize("prompt", [None, 3, {}, [], ["a", "b"], [["a"]], ["a", 3], [[1], [2]], [1, "a"]])
def test_refusals_of_completions_name_the_prompt(prompt: Any) -> None:
    error = refusal(json.dumps({"model": "m", "prompt": prompt}).encode(), CompletionRequest)
    assert error.param is not None
    assert error.param.startswith("prompt")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"model": "\xff"}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"tools": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    refusal(body)


def test_what_a_client_library_sends_for_defaults_is_taken() -> None:
    request = chat(
        n=1,
        temperature=1,
        top_p=1,
        stop=None,
        max_tokens=None,
        logprobs=False,
        presence_penalty=0,
        frequency_penalty=0.0,
        response_format={"type": "text"},
        tools=[],
        tool_choice="none",
        user="somebody",
        metadata={"any": "thing"},
        store=True,
        unknown_field=[1, {"a": None}],
    )
    assert (request.temperature, request.top_p, request.answer_tokens) == (1.0, 1.0, None)
    assert request.stop_strings() == ()


def test_content_comes_as_text_or_parts_and_developer_means_system() -> None:
    request = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}], "name": "x"},
            {"role": "assistant", "content": ""},
        ]
    )
    assert request.chat() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": ""},
    ]


def test_names_of_the_answers_length() -> None:
    assert chat(max_tokens=5).answer_tokens == 5
    assert chat(max_completion_tokens=7, max_tokens=5).answer_tokens == 7
    assert text(max_tokens=5).answer_tokens == 5
    assert text().answer_tokens is None


@pytest.mark.parametrize(
    ("prompt", "taken"), [("Hello", "Hello"), (["Hello"], "Hello"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2]), ("", ""), ([1], [1])]
)
def test_a_prompt_is_a_text_or_token_ids(prompt: Any, taken: str | list[int]) -> None:
    assert text(prompt=prompt).text_or_ids() == taken


@pytest.mark.parametrize(("stop", "taken"), [(None, ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())])
def test_stop_is_a_string_or_some(stop: Any, taken: tuple[str, ...]) -> None:
    assert chat(stop=stop).stop_strings() == taken


def test_usage_of_a_stream_is_optional() -> None:
    assert not chat(stream=True).wants_usage
    assert not chat(stream=True, stream_options={}).wants_usage
    assert chat(stream=True, stream_options={"include_usage": True}).wants_usage


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_NAMES = sorted({*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__, "unknown"})


@given(st.dictionaries(st.sampled_from(_NAMES), _json), st.sampled_from([ChatRequest, CompletionRequest]))
def test_any_json_object_is_taken_or_refused(fields: dict[str, Any], kind: Kind) -> None:
    try:
        read(json.dumps(fields).encode(), kind)
    except ApiError as error:
        assert error.status == 400  # noqa: PT017 - a refusal is one of two right answers
