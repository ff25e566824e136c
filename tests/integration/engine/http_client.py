"""A plain HTTP client over one connection a request, which may leave an answer unread."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

TIMEOUT_S = 60.0


class Reply(NamedTuple):
    """An answer that has been read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        """The error object, whose form is checked."""
        body = self.json()
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["message"]
        assert self.headers["Content-Type"].startswith("application/json")
        return dict(body["error"])

    def events(self) -> list[Any]:
        """The server-sent events, decoded; checks that they end with [DONE]."""
        lines = [line for line in self.body.decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def send(
    url: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> http.client.HTTPConnection:
    """Sends a request and returns its connection; nothing is read. A body that is not bytes is sent as JSON."""
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=TIMEOUT_S)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, dict(headers or {}))
    return connection


def receive(connection: http.client.HTTPConnection) -> Reply:
    """Reads the whole answer and closes the connection."""
    response = connection.getresponse()
    reply = Reply(response.status, response.headers, response.read())
    connection.close()
    return reply


def post(url: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """One request and its answer."""
    return receive(send(url, "POST", path, body, headers))


def get(url: str, path: str) -> Reply:
    """One request and its answer."""
    return receive(send(url, "GET", path))


def chat(prompt: str = "Hello", **fields: Any) -> dict[str, Any]:
    """A body of /v1/chat/completions for the fake model."""
    return {"model": "fake", "messages": [{"role": "user", "content": prompt}], "max_tokens": 8} | fields


def text(prompt: Any = "Hello", **fields: Any) -> dict[str, Any]:
    """A body of /v1/completions for the fake model."""
    return {"model": "fake", "prompt": prompt, "max_tokens": 8} | fields


CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
