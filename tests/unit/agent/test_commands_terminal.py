"""What the commands of `aie-agent` write: to terminals that other people's names must not move, to full disks, and in ASCII."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from aie_agent.cli import main
from aie_agent.commands import check, parse_statsd
from aie_agent.commands.check_rows import Row

AIE_AGENT: Final = (sys.executable, "-m", "aie_agent.cli")
MOVES: Final = "a\x1b[2J\x9b\rb"
SHOWN: Final = "a?[2J??b"


def through_a_shell(arguments: list[str], where: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with a shell's redirection."""
    call = ["sh", "-c", f'exec "$@" {where}', "sh", *AIE_AGENT, *arguments]
    return subprocess.run(call, capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A recording of a statistic that is not named in ASCII."""
    file = tmp_path / "table.csv"
    file.write_text("ü😀\n" + "".join(f"{row * 7919 % 1009}\n" for row in range(600)))
    return str(file)


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_configuration_that_cannot_even_be_complained_of_is_no_answer(command: str) -> None:
    """It was status 1: something is not seen."""
    assert through_a_shell([command, "--config", "/nonexistent"], "2>/dev/full").returncode == 2


def test_an_address_that_cannot_even_be_complained_of_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('[statsd]\nunix = "off"\nudp = "off"\n')
    arguments = ["run", "--no-bpf", "--no-discovery", "--config", str(file), "--listen", "192.0.2.1:1", "--insecure"]
    assert through_a_shell(arguments, "2>/dev/full").returncode == 2


def test_what_standard_output_cannot_encode_is_escaped(table: str) -> None:
    """It was a traceback, and status 1: a drift."""
    done = through_a_shell(["drift", "--reference", table, "--stream", table], "", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  \\u00fc\\ud83d\\ude00: 0 of " in done.stdout


def test_json_is_json_in_any_encoding(table: str) -> None:
    done = through_a_shell(["drift", "--reference", table, "--stream", table, "--json"], "", PYTHONIOENCODING="ascii")
    assert list(json.loads(done.stdout)["per_statistic"]) == ["ü😀"]


def test_no_line_of_statsd_moves_the_cursor() -> None:
    out = io.StringIO()
    parse_statsd.run(datadog=True, as_json=False, stdin=io.BytesIO(b"a\x1b[2J:1|c|#k:\x1b[2J\n"), stdout=out)
    assert [line for line in out.getvalue().splitlines() if not line.isprintable()] == []
    assert out.getvalue().startswith("a?[2J:1|c|#k:?[2J\n  counter a?[2J k=?[2J: 1.0")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_line_that_does_not_end_is_refused_before_it_fills_the_memory(tmp_path: Path, as_json: bool) -> None:
    zeros = tmp_path / "zeros"
    zeros.write_bytes(b"x:1|c\n")
    os.truncate(zeros, 16 << 20)
    with zeros.open("ab") as file:
        file.write(b"\ny:1|c\n")
    out = io.StringIO()
    with zeros.open("rb") as file:
        assert parse_statsd.run(datadog=False, as_json=as_json, stdin=file, stdout=out) == 0
    told = out.getvalue()
    assert len(told) < 1 << 20
    assert "line longer than 8192 bytes: '65536 bytes or more'" in told
    assert told.count("counter") == 2, "what stands before and behind it is answered"


def test_closed_input_is_one_line() -> None:
    done = through_a_shell(["parse-statsd"], "<&-")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "aie-agent parse-statsd: cannot read standard input: it is closed\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["drift", "--stream", "S", "--reference", MOVES],
        ["baseline", "show", MOVES],
        ["baseline", "build", MOVES, "--output", "/nonexistent/O"],
        ["leak", MOVES],
        ["check", "--config", MOVES],
        ["run", "--config", MOVES],
        ["dashboards", "--export", f"/dev/null/{MOVES}"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_no_name_in_a_complaint_moves_the_cursor(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.removesuffix("\n").isprintable()


def test_nor_does_one_that_is_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    """As `leak *` has them."""
    with pytest.raises(SystemExit) as ended:
        main(["leak", "F", MOVES])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"unrecognized arguments: {SHOWN}\n")


def test_no_row_of_check_moves_the_cursor() -> None:
    row = Row(f"engine {MOVES}", False, True, MOVES, MOVES)
    assert check._line(row, 16).split("\n") == [f"MISSING   engine {SHOWN:<9}  {SHOWN}", f"{' ' * 28}-> {SHOWN}"]


@pytest.mark.parametrize("command", [("drift", "--stream", "S", "--reference"), ("baseline", "show")], ids=lambda words: words[0])
def test_a_reference_that_fails_in_the_middle_is_named(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "/proc/self/mem"]) == 2
    assert capsys.readouterr().err == f"aie-agent {command[0]}: /proc/self/mem: Input/output error\n"
