"""Compiling the stand-in: once, by whoever comes first, and with one clear line where it cannot be done."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aie_agent.simulate import build
from tests.fakes.stand_in import needs_compiler

pytestmark = needs_compiler


@pytest.fixture(name="cache")
def fixture_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_it_is_compiled_once(cache: Path) -> None:
    first = build.stand_in()
    before = first.stat().st_mtime_ns
    assert build.stand_in() == first
    assert first.stat().st_mtime_ns == before
    assert first.is_relative_to(cache)
    assert first.name == "libnvidia-ml.so.1"


def test_several_processes_may_build_at_once(cache: Path) -> None:
    command = [sys.executable, "-c", "from aie_agent.simulate import build; print(build.stand_in())"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(paths) == 1
    # What each wrote on the way is gone.
    assert [path.name for path in (cache / "aie" / "simulated-gpus").iterdir()] == [Path(paths.pop()).parent.name]


def test_no_compiler_is_one_line_that_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.BuildError, match=r"need a C compiler.*install gcc or clang, or set CC"):
        build.stand_in()


def test_a_compiler_that_refuses_is_quoted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = cache / "refusing-cc"
    compiler.write_text("#!/bin/sh\necho 'x.c:1: error: I refuse' >&2\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(build.BuildError, match="error: I refuse") as raised:
        build.stand_in()
    assert "\n" not in str(raised.value)
    leftovers = [path for path in (cache / "aie" / "simulated-gpus").rglob("*") if path.is_file()]
    assert leftovers == []


def test_a_cache_that_cannot_be_made_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = cache / "a-file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(build.BuildError, match="cannot be written: Not a directory; set XDG_CACHE_HOME"):
        build.stand_in()
