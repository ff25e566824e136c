"""A CUDA driver and runtime that need no GPU, and small programs that use them: built from tests/fakes/cuda for a test's length."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

SOURCES: Final = Path(__file__).with_name("cuda")
_FLAGS: Final = ("-O2", "-g0", "-Wall", "-Wno-int-to-pointer-cast", f"-I{SOURCES}")

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing: make setup-system")
"""For every test that builds the stand-in."""


class StandIn:
    """The libraries, built in a folder, and the programs beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = folder / "libcuda.so.1"
        self.runtime = folder / "libcudart.so.12"
        self._library(self.driver, SOURCES / "libcuda.c")
        self._library(self.runtime, SOURCES / "libcudart.c", self.driver)

    def program(self, name: str, *libraries: Path) -> Path:
        """Builds tests/fakes/cuda/drivers/NAME.c, once."""
        built = self.folder / name
        if not built.exists():
            _gcc(_source(name), *libraries, self.runtime, self.driver, f"-Wl,-rpath,{self.folder}", "-o", built, "-lpthread")
        return built

    def built(self, name: str) -> Path:
        """Builds tests/fakes/cuda/drivers/NAME.c as libNAME.so."""
        built = self.folder / f"lib{name}.so"
        self._library(built, _source(name), self.runtime, self.driver)
        return built

    def start(
        self, name: str, *arguments: str, libraries: tuple[Path, ...] = (), environment: Mapping[str, str] | None = None
    ) -> Program:
        """Runs a program up to its first step; `environment` is added to ours."""
        return Program([str(self.program(name, *libraries)), *arguments], environment)

    def _library(self, built: Path, *inputs: Path) -> None:
        _gcc("-shared", "-fPIC", f"-Wl,-soname,{built.name}", *inputs, f"-Wl,-rpath,{self.folder}", "-o", built, "-lpthread")


class Program:
    """A running program: it names the step that is next and waits for a line. End it by `with`."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | dict(environment or {})
        )
        self.next = self._line()
        if not self.next:
            raise AssertionError(f"{command[0]} ended with {self._process.wait()} before its first step")

    @property
    def tgid(self) -> int:
        """Its process."""
        return self._process.pid

    def step(self) -> str:
        """Lets it do the step that it named. Returns the name of the one after it; "" when it has ended."""
        self.begin()
        self.next = self._line()
        return self.next

    def begin(self) -> None:
        """Lets it begin the step that it named, without waiting for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def run(self, until: str = "") -> None:
        """Lets it do all steps before the one of that name."""
        while self.next != until:
            assert self.next, f"it ended before {until}"
            self.step()

    def kill(self) -> None:
        """Ends it at once; it is gone when this returns."""
        self._process.kill()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def _source(name: str) -> Path:
    return SOURCES / "drivers" / f"{name}.c"


@functools.cache
def _compiler() -> str:
    found = shutil.which("gcc")
    assert found is not None
    return found


def _gcc(*arguments: str | Path) -> None:
    done = subprocess.run([_compiler(), *_FLAGS, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        raise AssertionError(f"gcc failed: {done.stderr.splitlines()[:3]}")
