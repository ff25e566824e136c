"""A real process that loads the libraries it is given, and waits: what a probe's target looks like from outside."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.compiled import program

LOADER = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **paths) {
    for (int i = 1; i < count; i++)
        if (!dlopen(paths[i], RTLD_NOW)) { fprintf(stderr, "%s\\n", dlerror()); return 1; }
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
"""


@contextmanager
def running(command: Sequence[str | Path]) -> Iterator[int]:
    """Runs a program that says one line when it is ready and then reads from its standard input; the tgid."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        ready = process.stdout.readline()
        assert ready, process.stderr.read().decode()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@contextmanager
def loaded(folder: Path, *libraries: Path, name: str = "program") -> Iterator[int]:
    """Compiles a program called `name` in `folder`, which loads the libraries; the tgid."""
    path = folder / name
    if not path.exists():
        program(path, LOADER, "-ldl")
    with running([path, *libraries]) as tgid:
        yield tgid
