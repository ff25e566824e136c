"""`aie-engine` as a process: what it says when it cannot start, and how it stops."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from engine_process import COMMAND, WAIT_S, engine_process
from http_client import get, post, receive, send

from aie_engine.cli import main
from aie_engine.loading import load_model

CHAT = "/v1/chat/completions"


def chat(**fields: object) -> dict[str, object]:
    return {"model": "smollm2", "messages": [{"role": "user", "content": "Count to one hundred."}], "temperature": 0} | fields


def refused(*arguments: str) -> str:
    """Starts the engine, which must say in one line why it cannot, and exit with 2; returns the line."""
    result = subprocess.run([*COMMAND, "serve", *arguments], capture_output=True, text=True, timeout=WAIT_S)
    said = [line for line in result.stderr.splitlines() if " INFO " not in line]
    assert (result.returncode, len(said)) == (2, 1), result.stderr
    assert result.stdout == ""
    assert said[0].startswith("aie-engine")
    return said[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a command is needed"),
        (["serve"], "--model"),
        (["serve", "--model", "x", "--port", "http"], "--port"),
        (["serve", "--model", "x", "--port", "70000"], "--port must be 0 to 65535"),
        (["serve", "--model", "x", "--deadline", "120"], "120s"),
        (["serve", "--model", "x", "--deadline", "0s"], "--deadline"),
        (["serve", "--model", "x", "--max-running", "0"], "--max-running must be at least 1"),
        (["serve", "--model", "x", "--max-step-tokens", "16"], "--max-step-tokens must be more than --max-running"),
        (["serve", "--model", "x", "--threads", "0"], "--threads must be 1 to "),
        (["serve", "--model", "x", "--threads", "100000"], "--threads must be 1 to "),
        (["serve", "--model", "x", "--device", "gpu9"], "--device must be cpu, cuda or cuda:N"),
        (["serve", "--model", "x", "--device", "meta"], "--device must be cpu, cuda or cuda:N"),
        (["serve", "--model", "x", "--device", "cuda:256"], "--device must be cpu, cuda or cuda:N"),
        (["serve", "--model", "x", "--device", "cuda:-1"], "--device must be cpu, cuda or cuda:N"),
        (["serve", "--model", "x", "--kv-tokens", "-5"], "--kv-tokens"),
        (["serve", "--model", "x", "--port", "0", "--statsd", "tcp://x"], "--statsd"),
        (["serve", "--model", "x", "--name", "chat engine"], "--name must be 1 to 63 letters, digits or ._/@-"),
        (["serve", "--model", "x", "--name", ""], "--name must be"),
        (["serve", "--model", "x", "--name", "-chat"], "--name"),
        (["serve", "--model", "x", "--name", "Häuser"], "--name must be"),
        (["serve", "--model", "x", "--name", "n" * 64], "--name must be"),
        (["serve", "--model", "x", "--body-timeout", "0ms"], "--body-timeout"),
        (["serve", "--model", "x" * 256], "--model must be a file or folder with a name of up to 255 characters"),
        (["serve", "--model", "x/" + "y" * 1400], "--model must be"),
        (["serve", "--model", "x", "--response-cache-bytes", "-1"], "--response-cache-bytes must be at least 0"),
        (["serve", "--model", "x", "--trace-rate", "1.5"], "--trace-rate must be 0 to 1"),
        (["serve", "--model", "x", "--trace-rate", "nan"], "--trace-rate must be 0 to 1"),
        (["serve", "--model", "x", "--otlp-endpoint", "localhost:4318"], "--otlp-endpoint must be a URL"),
        (["serve", "--model", "x", "--otlp-endpoint", "http://"], "--otlp-endpoint must be a URL"),
        (["serve", "--model", "x", "--otlp-endpoint", "http://x:port"], "--otlp-endpoint must be a URL"),
        (["serve", "--model", "x", "--no-such-flag"], "--no-such-flag"),
    ],
)
def test_a_mistyped_command_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(arguments)
    except SystemExit as exit_:  # argparse's way
        status = exit_.code  # type: ignore[assignment]
    captured = capsys.readouterr()
    assert status == 2
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("aie-engine")
    assert said.replace("120s", "10s") in captured.err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("aie-engine 0.")


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("--model", "smollm2", "--statsd", "off", "--port", str(port))
    assert f"cannot listen on 127.0.0.1:{port}" in line


def test_a_host_that_is_not_here() -> None:
    assert "cannot listen on 192.0.2.1:0" in refused("--model", "smollm2", "--port", "0", "--host", "192.0.2.1")


def test_a_device_that_is_not_here() -> None:
    line = refused("--model", "x", "--port", "0", "--statsd", "off", "--device", "cuda:99")
    assert "device cuda:99 asked for" in line


def test_a_model_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    line = refused("--model", str(pipe), "--port", "0", "--statsd", "off")
    assert f"{pipe}: is not a regular file" in line


@pytest.fixture(scope="module")
def gguf() -> Path:
    return load_model("smollm2").path


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "garbage", "a folder with nothing in it", "absurd length"])
@pytest.mark.model
def test_a_model_that_cannot_be_read(damage: str, gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with gguf.open("rb") as stream:
        head = stream.read(1 << 20)
    contents = {"empty": b"", "truncated": head, "garbage": b"\x00" * 4096, "absurd length": head[:8] + b"\xff" * 4096}
    if damage in contents:
        file.write_bytes(contents[damage])
    elif damage == "a folder with nothing in it":
        file = tmp_path
    line = refused("--model", str(file), "--port", "0", "--statsd", "off")
    assert str(file) in line


@pytest.mark.model
def test_a_cache_that_no_memory_can_hold() -> None:
    line = refused("--model", "smollm2", "--port", "0", "--statsd", "off", "--kv-tokens", str(10**12))
    assert "--kv-tokens 1000000000000" in line


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_request_finish(number: int) -> None:
    with engine_process("--grace", "100s") as engine:
        url = engine.wait_until_ready()
        connection = send(url, "POST", CHAT, chat(stream=True, max_tokens=30))
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")  # it runs
        status: list[int] = []
        stopper = threading.Thread(target=lambda: status.append(engine.stop(number)))
        stopper.start()
        body = response.read()
        stopper.join()
        assert b'"finish_reason":"length"' in body
        assert body.endswith(b"data: [DONE]\n\n")
        assert status == [0]


@pytest.mark.model
def test_a_request_that_outlasts_the_grace_time_is_told() -> None:
    with engine_process("--grace", "50ms") as engine:
        url = engine.wait_until_ready()
        connection = send(url, "POST", CHAT, chat(stream=True, max_tokens=5000, messages=[{"role": "user", "content": "Go on."}]))
        response = connection.getresponse()
        assert engine.stop(signal.SIGTERM) == 0
        assert b"shutting down" in response.read()


@pytest.mark.model
def test_a_signal_while_the_model_loads() -> None:
    with engine_process() as engine:
        engine.wait_until_listening()
        assert engine.stop(signal.SIGTERM) == 0


@pytest.mark.model
def test_health_is_answered_while_the_model_loads() -> None:
    with engine_process() as engine:
        url = engine.wait_until_listening()
        assert get(url, "/health").status == 200
        ready = get(url, "/health/ready")
        # Loading takes seconds; where it took less than one request, there is nothing to see.
        assert ready.status == 200 or ready.json()["reason"] == "loading"
        engine.wait_until_ready()
        assert get(url, "/health/ready").status == 200
        assert post(url, CHAT, chat(max_tokens=1)).status == 200
        assert receive(send(url, "GET", "/v1/models")).json()["data"][0]["id"] == "smollm2"
