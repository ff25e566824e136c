"""Ranges, with nobody looking, without the package, and with a domain that records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from aie_hooks import nvtx
from aie_hooks.nvtx import annotate


@pytest.fixture(autouse=True)
def _fresh_caches() -> Iterator[None]:
    _clear()
    yield
    _clear()


def _clear() -> None:
    nvtx._domain.cache_clear()
    annotate.cache_clear()


class _Domain:
    """As `nvtx.Domain` with a tool attached."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.made: list[str] = []

    def get_event_attributes(self, message: str) -> str:
        self.made.append(message)
        return message

    def push_range(self, attributes: str) -> None:
        self.log.append(f"+{attributes}")

    def pop_range(self) -> None:
        self.log.append("-")


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> _Domain:
    domain = _Domain()
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(get_domain=lambda name: domain))
    return domain


def test_ranges_nest_and_end_with_an_error(domain: _Domain) -> None:
    with annotate("step"), annotate("step"), pytest.raises(KeyError), annotate("decode"):
        raise KeyError
    assert domain.log == ["+step", "+step", "+decode", "-", "-", "-"]
    assert domain.made == ["step", "decode"]


def test_as_a_decorator(domain: _Domain) -> None:
    @annotate("add")
    def add(a: int, b: int = 2) -> int:
        """Adds."""
        return a + b

    assert (add(1), add(1, b=5), add.__name__, add.__doc__) == (3, 6, "add", "Adds.")
    assert domain.log == ["+add", "-", "+add", "-"]


def test_what_returns_before_it_runs_cannot_be_decorated(domain: _Domain) -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    for function in (coroutine, generator):
        with pytest.raises(TypeError, match="returns before it runs"):
            annotate("x")(function)


@pytest.mark.parametrize("package", [None, "the one installed, with no tool attached"])
def test_when_nobody_looks_one_object_does_nothing_for_all(monkeypatch: pytest.MonkeyPatch, package: Any) -> None:
    if package is None:
        monkeypatch.setitem(sys.modules, "nvtx", None)
    assert annotate("a") is annotate("b")
    with annotate("a"):
        pass

    def function() -> None: ...

    assert annotate("a")(function) is function


class _Broken(_Domain):
    def push_range(self, attributes: str) -> None:
        raise RuntimeError("the tool is gone")

    def pop_range(self) -> None:
        raise RuntimeError("the tool is gone")


def test_a_profiler_that_fails_does_not_reach_the_engine(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(get_domain=lambda name: _Broken()))
    for _ in range(3):
        with annotate("step"):
            pass
    with pytest.raises(KeyError), annotate("step"):
        raise KeyError
    assert len(caplog.records) == 1
    assert "the tool is gone" in caplog.text


def test_a_package_that_fails_does_not_reach_the_engine(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(name: str) -> None:
        raise OSError("no injection library")

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(get_domain=broken))
    with annotate("step"):
        pass
    assert "no injection library" in caplog.text
