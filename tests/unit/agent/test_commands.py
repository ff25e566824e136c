"""The commands of `aie-agent` that end by themselves, run as a user runs them."""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from aie_agent.commands.check_rows import known_as
from aie_telemetry import api

AIE_AGENT = Path(sys.executable).parent / "aie-agent"


def aie_agent(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([AIE_AGENT, *arguments], input=stdin, capture_output=True, check=False, timeout=60)


def test_parse_statsd_as_json() -> None:
    done = aie_agent("parse-statsd", "--json", stdin=b"a.b,k=v:1|c|@0.1\nc:+3|g\n\nd:x|ms\ne:u1|s\n")
    rows = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert rows[0] == {
        "line": "a.b,k=v:1|c|@0.1",
        "samples": [{"name": "a_b", "type": "counter", "value": 1.0, "tags": {"k": "v"}, "rate": 0.1}],
        "errors": [],
    }
    assert rows[1]["samples"] == [{"name": "c", "type": "gauge", "value": 3.0, "tags": {}, "rate": 1.0, "delta": True}]
    assert rows[2]["samples"] == []
    assert "not a finite number" in rows[2]["errors"][0]
    assert rows[3]["samples"][0]["value"] == "u1"
    assert done.returncode == 0


def test_parse_statsd_for_people() -> None:
    done = aie_agent("parse-statsd", "--datadog", stdin=b"a:1|c|@0.5|#k:v\n_sc|x|0\n")
    assert done.returncode == 0
    assert done.stdout.decode() == (
        "a:1|c|@0.5|#k:v\n  counter a k=v: 1.0, each stands for 2\n"
        "_sc|x|0\n  ignored: aie does not use lines of kind service_check\n"
    )


def test_parse_statsd_says_what_the_agent_would_refuse_all_the_same() -> None:
    lines = b"fine:1|c\nc:-2|c\naie_foo:1|c\naie_engine_requests_running,engine=e,zone=a:3|g\n"
    done = aie_agent("parse-statsd", "--json", stdin=lines)
    rows = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert [len(row["samples"]) for row in rows] == [1, 1, 1, 1], "the codec reads them all"
    assert [row["errors"] for row in rows] == [[], [], [], []]
    assert [bool(row.get("refused")) for row in rows] == [False, True, True, True]
    assert done.returncode == 0
    text = aie_agent("parse-statsd", stdin=b"wait:5|ms\naie_foo:1|c\n").stdout.decode()
    assert "stored as wait_seconds" in text
    assert "refused by the agent: aie_foo:" in text


def test_parse_statsd_takes_any_bytes() -> None:
    done = aie_agent("parse-statsd", "--json", stdin=bytes(range(256)) * 50)
    assert done.stderr == b""
    assert all(msgspec.json.decode(line) for line in done.stdout.splitlines())


def check(*arguments: str, bpf: bool = False) -> tuple[int, dict[str, dict[str, object]]]:
    """Without probes where they are not what is asked for: to compile them takes longer than all the rest."""
    done = aie_agent("check", "--json", *([] if bpf else ["--no-bpf"]), *arguments)
    return done.returncode, {row["what"]: row for row in msgspec.json.decode(done.stdout)} if done.stdout else {}


def config(tmp_path: Path, text: str = "") -> str:
    file = tmp_path / "agent.toml"
    file.write_text(f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/run/statsd.sock"\nudp = "127.0.0.1:0"\n{text}')
    return str(file)


def test_check_is_content_with_an_ordinary_host(tmp_path: Path) -> None:
    status, rows = check("--config", config(tmp_path), bpf=True)
    assert status == 0, rows
    assert rows["CPU, memory, swap of the host"]["visible"]


def test_check_names_an_engine_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        status, rows = check("--config", config(tmp_path), "--engine", f"chat=http://127.0.0.1:{port}/metrics")
    assert status == 1
    row = rows["engine chat: page"]
    assert not row["visible"]
    assert "refused" in str(row["found"])
    assert row["remedy"]


def test_check_names_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
        udp.bind(("127.0.0.1", 0))
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        tcp.settimeout(0)
        file = tmp_path / "agent.toml"
        file.write_text(f'[statsd]\nunix = "off"\nudp = "127.0.0.1:{udp.getsockname()[1]}"\n')
        done = aie_agent("check", "--no-bpf", "--config", str(file), "--listen", f"127.0.0.1:{tcp.getsockname()[1]}")
    assert done.returncode == 1
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith("MISSING")]
    assert len(lines) == 2
    assert all("Address already in use" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--config", "/nonexistent/agent.toml"], "cannot be read"),
        (["--engine", "chat"], "NAME=URL"),
        (["--engine", "chat=ftp://x"], "engines[0].metrics_url"),
        (["--listen", "nowhere"], "HOST:PORT"),
    ],
)
@pytest.mark.parametrize("command", ["run", "check"])
def test_bad_configuration_is_one_line_and_status_2(command: str, arguments: list[str], says: str) -> None:
    done = aie_agent(command, *arguments)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
    assert says in done.stderr.decode()


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("api = 1", ["--listen", "127.0.0.1:1"], "api: expected object"),
        ("engines = 1", ["--engine", "a=http://h/"], "engines: expected array"),
    ],
)
def test_a_wrong_file_stays_one_line_with_options_beside_it(tmp_path: Path, text: str, arguments: list[str], says: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    done = aie_agent("check", "--config", str(file), *arguments)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert says in done.stderr.decode()


def test_an_engine_on_the_command_line_replaces_the_one_of_the_file(tmp_path: Path) -> None:
    _, rows = check(
        "--config",
        config(tmp_path, '[[engines]]\nname = "chat"\nmetrics_url = "http://127.0.0.1:1/old"\n'),
        "--engine",
        "chat=http://127.0.0.1:1/new",
    )
    assert "/new" in str(rows["engine chat: page"]["found"])


def test_check_ignores_the_environments_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with http_server(b'# TYPE aie_engine_requests_running gauge\naie_engine_requests_running{model="m"} 1\n') as port:
        _, rows = check("--config", config(tmp_path), "--engine", f"chat=http://127.0.0.1:{port}/metrics")
    assert rows["engine chat: page"]["visible"], rows["engine chat: page"]
    assert rows["engine chat: processes"]["visible"]


def test_check_says_what_engine_it_is_and_what_is_wrong_with_its_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "fixtures/pages/sglang-0.4.prom").read_bytes()
    with http_server(page) as port:
        status, rows = check("--config", config(tmp_path), "--engine", f"chat=http://127.0.0.1:{port}/metrics")
    assert str(rows["engine chat: page"]["found"]).startswith("sglang: 8 metrics at http://")
    assert not rows["engine chat: gauge_for_counter"]["visible"]
    assert "cache_hit_rate" in str(rows["engine chat: gauge_for_counter"]["found"])
    assert not rows["engine chat: gauge_for_counter"]["needed"]
    assert status == 0


def test_check_says_why_a_page_cannot_be_read(tmp_path: Path) -> None:
    with http_server(b"<html><body>Welcome</body></html>\n") as port:
        status, rows = check("--config", config(tmp_path), "--engine", f"chat=http://127.0.0.1:{port}/metrics")
    assert "no Prometheus text page" in str(rows["engine chat: page"]["found"])
    assert status == 1


def test_check_shows_what_the_running_agent_finds_and_knows(tmp_path: Path) -> None:
    engine = api.Engine(
        name="chat",
        state="up",
        kind="vllm",
        metrics_from=("page",),
        processes=(api.Process(tgid=10, start_time_s=1.0, command="vllm"),),
        note="a note",
    )
    hung = api.Finding(
        cause="engine_hung", subject="chat", severity="critical", since_s=940.0, summary="engine chat hangs", advice="Restart it."
    )
    agent = api.Snapshot(
        version=api.VERSION,
        time_s=1000.0,
        window_s=60.0,
        agent=api.Agent(version="test", uptime_s=1.0, series=3, series_limit=100),
        host=api.Host(hostname="host", kernel="kernel"),
        findings=(hung,),
        engines=(engine, api.Engine(name="old", state="down")),
    )
    with http_server(msgspec.json.encode(agent)) as port:
        listen = ("--config", config(tmp_path), "--listen", f"127.0.0.1:{port}")
        status, rows = check(*listen)
        text = aie_agent("check", *listen).stdout.decode()
    assert rows["engine_hung: chat"]["wrong"]
    assert rows["engine_hung: chat"]["found"] == "engine chat hangs (critical, for 60 s)"
    assert rows["engine chat"]["found"] == "vllm; up; process 10; numbers from page; a note"
    assert (rows["engine chat"]["visible"], rows["engine old"]["visible"]) == (True, False)
    assert "engines" not in rows, "it has some, whatever is configured"
    assert status == 0, "nothing that the configuration asks for is missing"
    assert "-> Restart it." in text
    assert "WRONG     engine_hung: chat" in text
    assert known_as(agent, [9, 10]) == "chat"
    assert known_as(agent, [11]) is known_as(None, [10]) is None


@contextlib.contextmanager
def http_server(body: bytes) -> Iterator[int]:
    """Serves one body; gives the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_commands_that_end_at_once_do_not_load_the_server() -> None:
    code = "import sys; import aie_agent.cli; sys.exit(bool({'aiohttp', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
