"""What an engine makes of the file in which an agent says that answers are not to be trusted."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from aie_engine.degrade import MOST_VALID_S, DegradeWatch, Said, State, state_of
from aie_telemetry.degraded import Degraded

NOW_S = 1000.0
NOBODY = 65534


def _line(cause: str = "output_drift", engine: str = "e", expires_s: float = NOW_S + 60, severity: str = "warning") -> bytes:
    row = {"engine": engine, "cause": cause, "severity": severity, "since_s": 900.0, "expires_s": expires_s, "summary": "s"}
    return msgspec.json.encode(msgspec.convert(row, Degraded)) + b"\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", State()),
        (_line(), State(("output_drift",))),
        (_line() + _line("input_drift") + _line(), State(("input_drift", "output_drift"))),
        (_line("nan_logits", severity="critical"), State(("nan_logits",), critical=True)),
        (_line(engine="another"), State()),
        (_line(expires_s=NOW_S), State()),
        (b"{" + _line(), State()),
        (b'{"engine": "e"}\n\xff\xfe\n' + _line(), State(("output_drift",))),
        (b'{"x": ' + b"[" * 100_000 + b"\n" + _line(), State(("output_drift",))),
        (_line("a header: is, no cause\\r\\n"), State()),
    ],
)
def test_only_lines_of_the_engine_that_hold_count(content: bytes, expected: State) -> None:
    assert state_of(content, "e", NOW_S) == expected


def test_changes_are_told_once_and_a_line_runs_out_by_itself(tmp_path: Path) -> None:
    now_s = NOW_S
    told: list[State] = []
    path = tmp_path / "degraded"
    watch = DegradeWatch(path, "e", told.append, clock=lambda: now_s)
    watch.look(watch.read())
    assert told == []
    path.write_bytes(_line())
    for _ in range(3):
        watch.look(watch.read())
    assert told == [State(("output_drift",))]
    now_s += 61
    watch.look(watch.read())
    assert told[1:] == [State()]


def test_a_file_that_cannot_be_read_degrades_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = DegradeWatch(tmp_path, "e", lambda _: None)
    assert [watch.read(), watch.read()] == [Said(), Said()]
    assert len(caplog.records) == 1
    os.mkfifo(tmp_path / "pipe")
    assert DegradeWatch(tmp_path / "pipe", "e", lambda _: None).read() == Said()


def test_a_line_holds_no_longer_than_a_while_after_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "degraded"
    path.write_bytes(_line(expires_s=1e15))
    os.utime(path, (NOW_S, NOW_S))
    said = DegradeWatch(path, "e", lambda _: None).read()
    assert state_of(said.content, "e", NOW_S + MOST_VALID_S - 1, said.written_s) == State(("output_drift",))
    assert state_of(said.content, "e", NOW_S + MOST_VALID_S, said.written_s) == State()


@pytest.mark.parametrize(
    ("owner", "directory_owner", "mode", "heeded"),
    [
        (0, 0, 0o644, True),
        (NOBODY, 0, 0o644, False),
        (NOBODY, NOBODY, 0o644, True),
        (NOBODY, NOBODY - 1, 0o644, False),
        (0, 0, 0o646, False),
        (0, 0, 0o664, False),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_what_anybody_could_have_written_degrades_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, owner: int, directory_owner: int, mode: int, heeded: bool
) -> None:
    path = tmp_path / "degraded"
    path.write_bytes(_line())
    os.chown(path, owner, owner)
    path.chmod(mode)
    os.chown(tmp_path, directory_owner, directory_owner)
    watch = DegradeWatch(path, "e", lambda _: None)
    assert (watch.read().content == _line()) is heeded
    watch.read()
    assert len(caplog.records) == (not heeded)
