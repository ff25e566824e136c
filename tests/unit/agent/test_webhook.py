"""The webhook of drift: what a real server gets, when it does not take it, and that nobody waits for it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest

from aie_agent.config_drift import Moment, WebhookUrl
from aie_agent.outputs.webhook import ATTEMPTS, Webhook, _post
from aie_telemetry.api import Finding

WAIT_S = 60.0  # a bound; no test that passes waits for it
PAUSES_S = (0.001,) * (ATTEMPTS - 1)


class Receiver(ThreadingHTTPServer):
    """Answers each POST with the next of `statuses`, then with 204. `hold` keeps answers back."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.came: Queue[Any] = Queue()
        self.statuses: list[int] = []
        self.hold = threading.Event()
        self.hold.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/drift?from=aie"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.came.put((self.path, self.headers["Content-Type"], body))
        self.server.hold.wait(WAIT_S)
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.hold.set()
        server.shutdown()
        thread.join(WAIT_S)


def _finding(cause: str = "output_drift", severity: Literal["info", "warning"] = "warning", **more: Any) -> Finding:
    return Finding(cause=cause, subject="e", severity=severity, since_s=5.0, summary="its answers look different", **more)


def _counts(webhook: Webhook, until: dict[str, float]) -> None:
    end = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        if {labels[0]: value for _, labels, value in webhook.counts()} == until:
            return
        end.wait(0.005)
    raise AssertionError(list(webhook.counts()))


def test_it_gets_what_the_file_has_and_an_empty_list_at_the_end(receiver: Receiver) -> None:
    webhook = Webhook(receiver.url, PAUSES_S)
    webhook.update([_finding(), _finding("disk_stall"), _finding("output_collapse", explained_by="nan_logits")], 1000.0)
    path, kind, body = receiver.came.get(timeout=WAIT_S)
    assert (path, kind) == ("/drift?from=aie", "application/json")
    assert body == [
        {
            "engine": "e",
            "cause": "output_drift",
            "severity": "warning",
            "since_s": 5.0,
            "expires_s": 1120.0,
            "summary": "its answers look different",
            "model": "",
        }
    ]
    for now_s in (1001.0, 1029.0):
        webhook.update([_finding()], now_s)  # nothing new
    webhook.update([_finding("output_drift", "info")], 1029.5)
    assert receiver.came.get(timeout=WAIT_S)[2] == []
    _counts(webhook, {"ok": 2})
    webhook.close()


def test_what_holds_is_said_again(receiver: Receiver) -> None:
    webhook = Webhook(receiver.url, PAUSES_S)
    for now_s in (1000.0, 1031.0):
        webhook.update([_finding()], now_s)
        assert receiver.came.get(timeout=WAIT_S)[2][0]["expires_s"] == now_s + 120.0
    webhook.close()


def test_it_is_tried_again_and_no_redirect_is_followed(receiver: Receiver) -> None:
    receiver.statuses = [500, 302]
    webhook = Webhook(receiver.url, PAUSES_S)
    webhook.update([_finding()], 1000.0)
    _counts(webhook, {"ok": 1})
    assert receiver.came.qsize() == ATTEMPTS
    webhook.close()


def test_attempts_end_and_failures_are_counted(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.statuses = [503] * (2 * ATTEMPTS)
    webhook = Webhook(receiver.url, PAUSES_S)
    webhook.update([_finding()], 1000.0)
    _counts(webhook, {"failed": 1})
    webhook.update([_finding()], 1031.0)
    _counts(webhook, {"failed": 2})
    assert receiver.came.qsize() == 2 * ATTEMPTS
    assert [record.getMessage().split(": ", 2)[2] for record in caplog.records] == ["status 503; said once until it does"]
    webhook.close()


def test_nobody_waits_for_a_server_that_does_not_answer(receiver: Receiver) -> None:
    receiver.hold.clear()
    webhook = Webhook(receiver.url, PAUSES_S)
    webhook.update([_finding()], 1000.0)
    receiver.came.get(timeout=WAIT_S)
    for change in range(4):  # returns though the first is not answered; the newest is what is sent then
        webhook.update([_finding()] if change % 2 else [], 1001.0 + change)
    receiver.hold.set()
    assert receiver.came.get(timeout=WAIT_S)[2][0]["expires_s"] == 1004.0 + 120.0
    _counts(webhook, {"ok": 2, "superseded": 3})
    webhook.close()


def test_one_that_drips_for_ever_is_cut_at_the_deadline() -> None:
    """Each read gets something at once, so no timeout of a read ends it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                while not gone.wait(0.01):
                    try:
                        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    except OSError:
                        gone.set()

        thread = threading.Thread(target=drip)
        thread.start()
        url = urlsplit(f"http://127.0.0.1:{server.getsockname()[1]}/")
        assert _post(url, b"[]", 0.1) == "no answer within 0.1 s"
        thread.join(WAIT_S)
        assert gone.is_set()


def test_one_that_never_ends_its_handshake_is_cut_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert _post(urlsplit(f"https://127.0.0.1:{server.getsockname()[1]}/"), b"[]", 0.1) == "no answer within 0.1 s"


@pytest.mark.parametrize("host", ["größe" * 20, "a" * 70, "a..b"])
def test_no_name_ends_the_thread(host: str) -> None:
    """Whatever the configuration let through."""
    webhook = Webhook(f"https://{host}/", PAUSES_S)
    for count, now_s in enumerate((1000.0, 1031.0), 1):
        webhook.update([_finding()], now_s)
        _counts(webhook, {"failed": count})
    webhook.close()


def test_an_error_that_nobody_thought_of_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    webhook = Webhook("http://127.0.0.1:99999/", PAUSES_S)
    for count, now_s in enumerate((1000.0, 1031.0), 1):
        webhook.update([_finding()], now_s)
        _counts(webhook, {"failed": count})
    assert "could not be sent" in caplog.text
    webhook.close()


def test_nobody_there_is_a_failure_and_off_is_off() -> None:
    with Receiver() as gone:
        url = gone.url
    webhook = Webhook(url, PAUSES_S)
    webhook.update([_finding()], 1000.0)
    _counts(webhook, {"failed": 1})
    webhook.close()
    off = Webhook(None)
    off.update([_finding()], 1000.0)
    assert list(off.counts()) == []


@pytest.mark.parametrize(
    "url", ["https://hooks.example.org/x", "http://127.0.0.1:9/", "http://[::1]:9/x", "http://localhost/", "off"]
)
def test_urls_that_may_be(url: str) -> None:
    assert WebhookUrl.parse(url).url == (None if url == "off" else url)


@pytest.mark.parametrize(
    "url",
    [
        "https://größe.example/", f"https://{'a' * 70}.example/", f"https://{'a.' * 130}example/", "https://h:99999/",
        "https://h/größe", "https://h/?q=ü", "https://a..b/", "https://h/a b",
        "http://example.org/", "https://user:word@example.org/", "ftp://127.0.0.1/", "127.0.0.1:80", "http://127.0.0.1:x/", 7,
    ],
)  # fmt: skip
def test_urls_that_may_not_be(url: object) -> None:
    with pytest.raises(ValueError, match="expected a URL"):
        WebhookUrl.parse(url)


def test_moments() -> None:
    assert Moment.parse("1970-01-01T01:00:00+01:00") == 0.0
    assert Moment.parse("2026-11-30T12:00:00Z") == 1796040000.0
    with pytest.raises(ValueError, match="expected a moment"):
        Moment.parse("yesterday")
