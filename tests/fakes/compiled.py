"""Small real programs and shared libraries, compiled by the host's C compiler for a test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def shared_library(path: Path, source: str, *flags: str) -> Path:
    """A shared library at `path`. Skips the test on a host without gcc."""
    return _compile(path, source, "-shared", "-fPIC", *flags)


def program(path: Path, source: str, *flags: str) -> Path:
    """An executable at `path`; position-independent, unless a flag says otherwise. Skips the test on a host without gcc."""
    return _compile(path, source, *flags)


def tool(name: str) -> str:
    """The path of a program of binutils. Skips the test on a host without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


def _compile(path: Path, source: str, *flags: str) -> Path:
    text = path.with_suffix(path.suffix + ".c")
    text.write_text(source)
    ended = subprocess.run([tool("gcc"), "-O1", "-o", path, text, *flags], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return path
