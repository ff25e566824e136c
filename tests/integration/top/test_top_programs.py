"""aie-top as it is started: reports, JSON, exit codes, a pseudo-terminal that goes away."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import agent_api as fake
import msgspec
import pytest
from agent_api import AgentApi

from aie_telemetry.api import Snapshot

COMMAND = [sys.executable, "-m", "aie_top"]
NOBODY = "http://127.0.0.1:1"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
        encoding="utf-8",
    )


def test_once_is_a_report_of_eighty_columns() -> None:
    with AgentApi(fake.troubled) as api:
        result = run("--once", "--connect", api.url, COLUMNS="")
    assert result.returncode == 0
    assert result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 80
    for words in ("WHAT IS WRONG", "2 critical", "380 MiB", "smollm2", "DOWN", "96.2%", "1.20 GiB", "gpu-07"):
        assert words in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(("columns", "width"), [("132", 132), ("40", 40), ("3", 20), ("100000", 500), ("wide", 80)])
def test_once_is_as_wide_as_the_environment_says(columns: str, width: int) -> None:
    with AgentApi(fake.troubled) as api:
        result = run("--once", "--connect", api.url, COLUMNS=columns)
    assert result.returncode == 0
    assert max(map(len, result.stdout.splitlines())) == width


def test_once_is_as_wide_as_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with AgentApi(fake.troubled) as api:
        terminal = Terminal("--once", "--connect", api.url, size=(200, 50))
        text = terminal.read_until(b"PSI IO")
        assert terminal.wait() == 0
        os.close(terminal.master)
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", row)) for row in text.decode().splitlines()) > 160


def test_once_in_the_c_locale_is_ascii() -> None:
    with AgentApi(fake.troubled) as api:
        result = run("--once", "--connect", api.url, PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert result.stdout.isascii()


def test_once_does_not_import_what_draws() -> None:
    with AgentApi(fake.healthy) as api:
        program = (
            f"import sys; from aie_top.cli import main; main(['--once', '--connect', '{api.url}']); "
            "sys.exit('textual' in sys.modules)"
        )
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_once_without_an_agent_is_one_line_and_exit_1() -> None:
    for options in ([], ["--json"]):
        result = run("--once", "--connect", NOBODY, *options)
        assert result.returncode == 1
        assert result.stdout == ""
        assert result.stderr == f"aie-top: agent at {NOBODY} is away: connection refused\n"


def test_once_with_one_agent_of_two_reports_both() -> None:
    with AgentApi(fake.healthy) as api:
        result = run("--once", "--connect", api.url, "--connect", NOBODY)
    assert result.returncode == 0
    assert f"agent at {NOBODY} is away" in " ".join(result.stdout.split())
    assert "smollm2" in result.stdout


def test_once_sorts_and_filters() -> None:
    with AgentApi(fake.healthy) as api:
        result = run("--once", "--connect", api.url, "--reverse")
        assert result.stdout.index("smollm2") < result.stdout.index("embedder")
        assert "embedder" not in run("--once", "--connect", api.url, "--filter", "smol").stdout


def test_once_filters_what_is_wrong_with_engines_and_says_so() -> None:
    with AgentApi(fake.troubled) as api:
        smollm2 = run("--once", "--connect", api.url, "--filter", "smollm2").stdout
        embedder = run("--once", "--connect", api.url, "--filter", "embedder").stdout
        nobody = run("--once", "--connect", api.url, "--filter", "zzz").stdout
    assert "380 MiB" in smollm2
    assert "embedder" not in smollm2
    assert "1 problem of what the filter leaves out" in smollm2
    assert "380 MiB" not in embedder
    assert "engine embedder is down" in embedder
    for told in (smollm2, embedder, nobody):
        assert "source process is down" in told, "what is wrong with the host stays"


def test_json_once_is_what_the_agent_sent_one_line_each() -> None:
    with AgentApi(fake.troubled) as api:
        result = run("--once", "--json", "--connect", api.url, "--connect", NOBODY)
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["url"] == api.url
    assert msgspec.convert(first["snapshot"], Snapshot) == fake.troubled()
    assert second == {"url": NOBODY, "error": "connection refused"}
    assert result.returncode == 0


def test_json_is_a_stream_and_ends_with_its_reader() -> None:
    with AgentApi(fake.healthy) as api:
        command = [*COMMAND, "--json", "--connect", api.url, "--interval", "250ms"]
        stream = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert stream.stdout is not None
        assert stream.stderr is not None
        lines = (json.loads(line) for line in stream.stdout)
        snapshots = (line["snapshot"] for line in lines if "snapshot" in line)  # one that is late is told as an error
        times = [each["time_s"] for each in itertools.islice(snapshots, 3)]
        stream.stdout.close()
        assert stream.wait(timeout=60) == 0
        assert stream.stderr.read() == ""
        stream.stderr.close()
    assert times == sorted(set(times))


NO_OUTPUT = "aie-top: cannot write to standard output: "


@pytest.mark.parametrize("options", ["--once", "--json", "--once --json"])
@pytest.mark.parametrize(("where", "why"), [(">&-", "it is closed"), (">/dev/full", "no space left on device")])
def test_output_that_cannot_be_written_is_one_line_and_exit_1(options: str, where: str, why: str) -> None:
    with AgentApi(fake.healthy) as api:
        command = f'exec "$@" {where}'
        arguments = ["sh", "-c", command, "sh", *COMMAND, *options.split(), "--connect", api.url]
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (1, f"{NO_OUTPUT}{why}\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_screen_without_a_terminal_is_one_line_however_it_lacks(closed: str) -> None:
    arguments = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "--connect", NOBODY]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


def test_without_a_terminal_it_says_what_to_use() -> None:
    result = run("--connect", NOBODY)
    assert result.returncode == 2
    assert "--once" in result.stderr


def test_a_picture_without_a_terminal(tmp_path: Path) -> None:
    with AgentApi(fake.healthy) as api:
        result = run("--export-svg", str(tmp_path / "top.svg"), "--size", "100x30", "--connect", api.url)
    assert result.returncode == 0, result.stderr
    assert "smollm2" in (tmp_path / "top.svg").read_text(encoding="utf-8")


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with AgentApi(fake.healthy) as api:
        result = run("--export-svg", str(tmp_path / "no" / "top.svg"), "--connect", api.url)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1


class Terminal:
    """aie-top on a pseudo-terminal."""

    def __init__(self, *arguments: str, size: tuple[int, int] = (80, 24), ignore_hangup: bool = False) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            if ignore_hangup:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
            # Not what the C library has: readline, which pytest loads, puts a COLUMNS there.
            os.execve(COMMAND[0], [*COMMAND, *arguments], {**os.environ, "TERM": "xterm-256color"})

    def read_until(self, words: bytes) -> bytes:
        seen, end = b"", time.monotonic() + 60
        while words not in seen:
            assert time.monotonic() < end, seen[-2000:]
            if select.select([self.master], [], [], 0.2)[0]:
                seen += os.read(self.master, 65536)
        return seen

    def wait(self, timeout_s: float = 60.0) -> int:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        pytest.fail("aie-top did not end")


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (8, 3)])
def test_q_on_a_terminal_quits_at_once_with_exit_0(size: tuple[int, int]) -> None:
    with AgentApi(fake.healthy) as api:
        terminal = Terminal("--connect", api.url, size=size)
        terminal.read_until(b"\x1b[?1049h")
        os.write(terminal.master, b"q")
        # What it writes while it ends must be read, or it would wait for the terminal.
        terminal.read_until(b"\x1b[?1049l")
        assert terminal.wait() == 0
        os.close(terminal.master)


def test_q_quits_however_much_text_an_agent_sends() -> None:
    long = msgspec.structs.replace(fake.healthy(), host=msgspec.structs.replace(fake.host(), hostname="日本" * 500_000))
    with AgentApi(lambda _tick: long) as api:
        terminal = Terminal("--connect", api.url)
        terminal.read_until(b"smollm2")
        os.write(terminal.master, b"q")
        terminal.read_until(b"\x1b[?1049l")
        assert terminal.wait() == 0
        os.close(terminal.master)


@pytest.mark.parametrize("ignore_hangup", [False, True])
def test_it_ends_when_its_terminal_goes(ignore_hangup: bool) -> None:
    """Otherwise it would read the end of its input for ever, with a whole core."""
    with AgentApi(fake.healthy) as api:
        terminal = Terminal("--connect", api.url, ignore_hangup=ignore_hangup)
        terminal.read_until(b"smollm2")
        os.close(terminal.master)
        terminal.wait()


def test_no_color_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with AgentApi(fake.troubled) as api:
        terminal = Terminal("--connect", api.url)
        drawn = terminal.read_until(b"smollm2")
        os.write(terminal.master, b"q")
        terminal.read_until(b"\x1b[?1049l")
        assert terminal.wait() == 0
        os.close(terminal.master)
    codes = {code for sequence in re.findall(rb"\x1b\[([\d;]*)m", drawn) for code in sequence.split(b";")}
    assert codes <= {b"", b"0", b"1", b"2", b"3", b"4", b"7", b"39", b"49"}
