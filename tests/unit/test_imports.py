"""Who may import whom (DESIGN, section 1), wherever in a file the import stands; and what an import must not bring along."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = {
    "aie_telemetry": "telemetry",
    "aie_hooks": "engine",
    "aie_engine": "engine",
    "aie_ebpf": "ebpf",
    "aie_agent": "agent",
    "aie_top": "tui",
    "aie_dashboards": "dashboards",
    "aie_alerts": "alerts",
}
MAY_IMPORT: Final[dict[str, frozenset[str]]] = {
    "aie_telemetry": frozenset(),
    "aie_hooks": frozenset({"aie_telemetry"}),
    "aie_engine": frozenset({"aie_hooks", "aie_telemetry"}),
    "aie_ebpf": frozenset({"aie_telemetry"}),
    "aie_agent": frozenset({"aie_ebpf", "aie_telemetry", "aie_dashboards", "aie_alerts"}),
    "aie_top": frozenset({"aie_telemetry"}),
    "aie_dashboards": frozenset(),
    "aie_alerts": frozenset(),
}
# Only the engine computes; hooks read torch's numbers where a function is asked for them.
MAY_IMPORT_TORCH: Final = frozenset({"aie_engine", "aie_hooks"})


def imported(source: str) -> Iterator[str]:
    """Every module that a source imports: by statement anywhere in it, relative ones apart, or by name with `import_module`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            first = node.args[0] if node.args else None
            if name in ("import_module", "__import__") and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def _sources(package: str) -> list[Path]:
    return sorted((ROOT / FOLDERS[package] / package).rglob("*.py"))


def _imports(package: str) -> set[tuple[str, str]]:
    """Of a package: its files, with the top-level packages that each imports."""
    return {(str(path.relative_to(ROOT)), name.split(".")[0]) for path in _sources(package) for name in imported(path.read_text())}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_who_imports_whom(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    wrong = {(path, name) for path, name in _imports(package) if name in MAY_IMPORT and name not in allowed}
    assert wrong == set()


@pytest.mark.parametrize("package", sorted(MAY_IMPORT.keys() - MAY_IMPORT_TORCH))
def test_torch_is_named_where_it_may_be(package: str) -> None:
    assert {(path, name) for path, name in _imports(package) if name == "torch"} == set()


def test_every_import_form_is_seen() -> None:
    source = """
import a.b, c
from d.e import f
from . import g
def h():
    from i import j
    import_module("k")
    importlib.import_module("l.m")
    __import__("n")
"""
    assert sorted(imported(source)) == ["a.b", "c", "d.e", "i", "k", "l.m", "n"]


def _modules(package: str) -> list[str]:
    """All modules of a package, but those that run a program when they are imported."""
    names = []
    for path in _sources(package):
        parts = path.relative_to(ROOT / FOLDERS[package]).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def _run(script: str, *arguments: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


_IMPORT_AND_LIST: Final = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*{name.split(".")[0] for name in sys.modules})
"""


def _brought_along(modules: list[str]) -> set[str]:
    """The top-level packages that are loaded after importing these modules."""
    return set(_run(_IMPORT_AND_LIST, *modules).split())


def test_aie_hooks_brings_nothing_heavy() -> None:
    unwanted = {"torch", "numpy", "nvtx", "aie_engine", "aie_agent"}
    assert not _brought_along(["aie_hooks"]) & (unwanted | {"msgspec"})
    assert not _brought_along(_modules("aie_hooks")) & unwanted


_GET_ALL: Final = """
import aie_hooks
for name in aie_hooks._HOMES:
    getattr(aie_hooks, name)
print(set(aie_hooks._HOMES) <= set(dir(aie_hooks)), hasattr(aie_hooks, "nonsense"))
"""


def test_every_name_of_aie_hooks_is_there() -> None:
    assert _run(_GET_ALL) == "True False\n"


@pytest.mark.parametrize("package", ["aie_agent", "aie_top", "aie_ebpf", "aie_telemetry"])
def test_torch_is_never_loaded(package: str) -> None:
    modules = _modules(package)
    if modules:
        assert not _brought_along(modules) & {"torch", "aie_engine", "aie_hooks"}
