"""The interpreters of this host that a test can run with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def interpreters() -> list[str]:
    """This one, the distribution's, and those that pyenv has: 3.7 and later."""
    names = [sys.executable, "/usr/bin/python3"]
    root = shutil.which("pyenv") and subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False).stdout.strip()
    if root:
        names += sorted(str(path) for path in Path(root).glob("versions/3.*/bin/python3"))
    return [name for name in names if Path(name).exists() and "/3.6" not in name]


def version_of(interpreter: str) -> tuple[int, int]:
    """Its major and minor version, as it says itself."""
    code = "import sys; print(*sys.version_info[:2])"
    major, minor = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return int(major), int(minor)


def one_of_each(names: list[str]) -> dict[tuple[int, int], str]:
    """The first interpreter of each version, by version."""
    found: dict[tuple[int, int], str] = {}
    for name in names:
        found.setdefault(version_of(name), name)
    return dict(sorted(found.items()))
