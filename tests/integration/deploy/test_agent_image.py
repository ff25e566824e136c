"""What the agent's image installs: the wheel of what its Dockerfile copies, and what pip finds for its line. No image is built."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[3]
DOCKERFILE: Final = (ROOT / "deploy" / "Dockerfile").read_text()
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: Final[list[str]] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
MOST_BYTES: Final = 2_000_000
"""Of the wheel; docs/deploy.md says how large it is."""
OFFLINE: Final = re.compile(r"NewConnectionError|ConnectionError|Max retries|timed out|name resolution", re.IGNORECASE)


def _copied() -> Iterator[str]:
    """What the image copies before it installs."""
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        yield from sources.split()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built where nothing else is than what the image copies."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in _copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = built.glob("*.whl")
    return found


def _files(folder: Path, as_name: str) -> set[str]:
    return {
        f"{as_name}/{path.relative_to(folder).as_posix()}"
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_all_of_the_packages_and_nothing_else(wheel: Path) -> None:
    """Rules, runbooks, boards and programs of probes among it; no tests."""
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    expected = {name for package in PACKAGES for name in _files(ROOT / package, Path(package).name)}
    assert names == expected | _files(ROOT / "docs" / "runbooks", "aie_alerts/causes")
    for folder, suffix, least in (
        ("aie_alerts/rules", ".yaml", 7),
        ("aie_alerts/runbooks", ".md", 60),
        ("aie_dashboards/json", ".json", 9),
        ("aie_ebpf/programs", ".bpf.c", 10),
    ):
        assert sum(name.startswith(folder) and name.endswith(suffix) for name in names) >= least, folder
    assert not [name for name in names if re.search(r"(^|/)(tests?/|test_|conftest)", name)]


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_BYTES


def _pinned() -> dict[str, str]:
    lines = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in lines}


def _engine_s_own() -> set[str]:
    """What the engine asks for, and the agent does not."""
    extras: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    asked = {extra: {canonicalize_name(Requirement(text).name) for text in extras[extra]} for extra in ("engine", "agent", "otel")}
    return asked["engine"] - asked["agent"] - asked["otel"]


def test_what_pip_finds_for_the_image_s_line_has_no_torch_and_is_pinned(wheel: Path, tmp_path: Path) -> None:
    (line,) = re.findall(r"pip (install .*)", DOCKERFILE)
    words = [str(wheel) + word.removeprefix(".") if word.startswith(".[") else word for word in shlex.split(line)]
    assert words != shlex.split(line)
    words = [word for word in words if word != "--no-cache-dir"]  # the image's is a matter of its size
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", *words, "--dry-run", "--ignore-installed", "--retries", "1", "--report", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560, check=False)
    if done.returncode != 0 and OFFLINE.search(done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    found = {
        canonicalize_name(each["metadata"]["name"]): each["metadata"]["version"]
        for each in json.loads(report.read_text())["install"]
    }
    assert found.pop("aie-observability") == PROJECT["project"]["version"]
    assert found.keys() >= {"aiohttp", "msgspec", "nvidia-ml-py", "opentelemetry-sdk"}
    assert "torch" in _engine_s_own()
    assert not found.keys() & _engine_s_own()
    assert [name for name in found if name.startswith(("nvidia-", "torch", "triton"))] == ["nvidia-ml-py"]
    pinned = _pinned()
    assert found == {name: pinned.get(name) for name in found}
