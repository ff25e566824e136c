"""What users' shells, disks and networks do to the commands that give a verdict: one line, no traceback, no status of a verdict."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import pytest

from aie_agent.cli import main
from aie_agent.commands import agent_api, diagnose
from aie_agent.commands.drift_csv import TableError, read_table
from aie_agent.csv_lines import LONGEST
from aie_telemetry import api

AIE_AGENT: Final = str(Path(sys.executable).parent / "aie-agent")
MEMORY: Final = "time_s,physical_bytes\n" + "".join(f"{60 * row},12000000000\n" for row in range(120))

OK: Final = b"HTTP/1.1 200 OK\r\n"
DEEP: Final = b'{"version":1,"other":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
WHOLE: Final = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"


@contextmanager
def answering(content: bytes) -> Iterator[str]:
    """A server on a port of its own that answers one connection so; yields its URL."""

    def answer() -> None:
        client, _ = server.accept()
        with client:
            client.recv(65536)
            client.sendall(content)

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(timeout=60)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"SSH-2.0-OpenSSH_9.6\x1b[2J\r\n", "it speaks no HTTP (BadStatusLine)"),
        (b"HTTP/1.1 abc\r\n\r\n", "it speaks no HTTP (BadStatusLine)"),
        (OK + b"X: " + b"a" * 70_000 + b"\r\n\r\n", "it speaks no HTTP (LineTooLong)"),
        (OK + b"X: a\r\n" * 200 + b"\r\n", "it speaks no HTTP (HTTPException)"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "it speaks no HTTP (IncompleteRead)"),
        (WHOLE % (len(DEEP), DEEP), "no agent of this version: maximum recursion depth exceeded"),
    ],
    ids=["ssh", "status", "long header", "many headers", "chunk", "deep"],
)
def test_what_answers_and_is_no_agent_is_one_line(content: bytes, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(content) as url:
        assert main(["diagnose", "--agent", url]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err
    assert "\x1b" not in err


@contextmanager
def dripping(head: bytes) -> Iterator[str]:
    """A server that answers so, and then by a byte now and then for as long as somebody listens; yields its URL."""

    def answer() -> None:
        client, _ = server.accept()
        with client, suppress(OSError):
            client.sendall(head)
            while not over.wait(0.02):
                client.sendall(b" ")

    over = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        given_up = threading.Timer(60, over.set)
        given_up.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        assert not over.is_set(), "it was listened to until it ended"
        given_up.cancel()
        over.set()
        thread.join(timeout=60)


@pytest.mark.parametrize("head", [OK + b"\r\n", OK + b"X: "], ids=["body", "header"])
def test_an_answer_that_drips_is_not_waited_for(head: bytes) -> None:
    """Each receive is answered in time."""
    with dripping(head) as url, pytest.raises(agent_api.AgentError, match=r"no whole answer within 0\.5 s"):
        agent_api.snapshot(url, timeout_s=0.5)


@pytest.mark.parametrize("url", ["http://127.0.0.1:port", "http://a b", "https://h:1x/"])
def test_what_is_no_url_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--agent", url]) == 2
    assert capsys.readouterr() == ("", f"aie-agent: --agent: expected a URL such as {agent_api.DEFAULT_AGENT}, got {url!r}\n")


def test_no_name_of_a_finding_moves_the_cursor() -> None:
    def finding(cause: str, by: str = "") -> api.Finding:
        return api.Finding(cause=cause, subject="\x1b[2J", severity="warning", since_s=0.0, summary=cause, explained_by=by)

    snapshot = msgspec.convert(
        {
            "version": 1,
            "time_s": 1.0,
            "window_s": 60.0,
            "agent": {"version": "1", "uptime_s": 1.0, "series": 1, "series_limit": 10},
            "host": {"hostname": "h", "kernel": "k"},
        },
        api.Snapshot,
    )
    told = list(diagnose.report(msgspec.structs.replace(snapshot, findings=(finding("a\x07"), finding("b\x9b", "a\x07"))), 90.0))
    assert [line for line in told if not line.isprintable()] == []
    assert "    a?, ?[2J, for 90 s" in told
    assert "    explains: b? (b?)" in told


def test_no_text_of_a_reference_moves_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, made = _table(tmp_path / "R.csv", [1.0 * row for row in range(1000)]), str(tmp_path / "m.aieref")
    assert main(["baseline", "build", str(recording), "--output", made, "--model", "m\x1b[2J", "--revision", "r\rs\nt"]) == 0
    assert main(["baseline", "show", made]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.split("\n") if not line.isprintable()] == []
    assert out.count("  model: m?[2J\n  revision: r?s?t\n") == 2


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """Output is written when a command ends, as to any file or pipe, or at once."""
    return {**os.environ, "PYTHONUNBUFFERED": request.param}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """In which nothing is wrong."""
    file = tmp_path / "memory.csv"
    file.write_text(MEMORY)
    return file


@pytest.mark.parametrize(
    ("where", "says"),
    [(">/dev/full", "[Errno 28] No space left on device"), (">&-", "cannot write to standard output: it is closed")],
)
def test_output_that_cannot_be_written_is_one_line(environment: dict[str, str], recording: Path, where: str, says: str) -> None:
    call = ["sh", "-c", f'exec "$@" {where}', "sh", AIE_AGENT, "leak", str(recording)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stderr) == (2, f"aie-agent: {says}\n")


@pytest.mark.parametrize("where", [">/dev/full 2>&1", "2>/dev/full"])
@pytest.mark.parametrize("file", ["memory.csv", "none.csv"])
def test_where_not_even_that_can_be_written_it_is_no_verdict(recording: Path, file: str, where: str) -> None:
    """A log of both on a disk that is full: it was status 1, a leak."""
    call = ["sh", "-c", f'"$@" {where}; echo "$?"', "sh", AIE_AGENT, "leak", str(recording.with_name(file))]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60, check=True)
    status = done.stdout.splitlines()[-1]
    assert status == ("0" if (file, where) == ("memory.csv", "2>/dev/full") else "2")


def test_a_reader_that_left_is_no_verdict(environment: dict[str, str], recording: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        call = [AIE_AGENT, "leak", str(recording)]
        done = subprocess.run(call, stdout=pipe, stderr=subprocess.PIPE, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stderr) == (141, b"")


def _table(path: Path, times: list[float]) -> Path:
    rng = random.Random(0)
    path.write_text("time_s,entropy\n" + "".join(f"{time_s},{rng.random()}\n" for time_s in times))
    return path


@pytest.mark.parametrize("first", [1.79e12, -1.79e12, 1e300])
def test_milliseconds_are_no_hours(tmp_path: Path, first: float) -> None:
    """They would be a thousand times as many, and a reference of half an hour would pass for one of three weeks."""
    with pytest.raises(TableError, match=r"time_s: .* is no number of seconds; milliseconds\?"):
        read_table(_table(tmp_path / "R.csv", [first + 1000 * row for row in range(9)]))
    assert read_table(_table(tmp_path / "S.csv", [1.79e9 + 1800 * row for row in range(3)])).hours == 1.0


def test_a_file_that_fails_in_the_middle_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="/proc/self/mem: Input/output error"):
        read_table(Path("/proc/self/mem"))


def test_what_has_no_line_ends_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    """A disk image of zeros, all of which would be read as one line."""
    zeros = tmp_path / "zeros"
    zeros.touch()
    os.truncate(zeros, 64 << 20)
    with pytest.raises(TableError, match=f"a line of {LONGEST} characters or more"):
        read_table(zeros)


def test_a_number_that_is_none_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["drift", "--reference", "R", "--stream", "S", "--rate", "many"])
    assert ended.value.code == 2
    assert "argument --rate: expected a number above 0, at most 1000000" in capsys.readouterr().err
