"""NVTX ranges for Nsight Systems and the like, at next to no cost when nobody looks: domain, message and range are made once.

    with annotate("decode"):        # or @annotate("decode")
        ...

Uses the `nvtx` package, which needs neither CUDA nor torch; without it, ranges do nothing. (`torch.cuda.nvtx` is another thing:
it raises on CPU builds.)
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

DOMAIN: Final = "aie"

_log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Range:
    """Does nothing by itself. Holds no state of an entry, so that one object serves all threads, also nested in itself."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        return None

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """`function` within the range. Raises TypeError for coroutines and generators, whose call returns before they run."""
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function!r} returns before it runs: put `with annotate(...)` around what it does between two awaits")
        return self._around(function)

    def _around(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        return function


class _MarkedRange(Range):
    """Pushes and pops a range of the domain, on the thread that enters."""

    __slots__ = ("_attributes", "_failed", "_pop", "_push")

    def __init__(self, domain: Any, name: str) -> None:
        self._attributes = domain.get_event_attributes(message=name)
        self._push = domain.push_range
        self._pop = domain.pop_range
        self._failed = False

    def __enter__(self) -> None:
        try:
            self._push(self._attributes)
        except Exception as error:  # noqa: BLE001 - a profiler's trouble is not the engine's, and it is logged
            self._complain(error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self._pop()
        except Exception as error:  # noqa: BLE001 - as above
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            _log.error("an NVTX range could not be marked; said once a range", exc_info=error)

    def _around(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def marked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                return function(*args, **kwargs)

        return marked


_NOTHING: Final = Range()


@functools.lru_cache(maxsize=1024)
def annotate(name: str) -> Range:
    """The range `name`: a context manager, and a decorator of plain functions. Names should be few and fixed."""
    try:
        domain = _domain()
        return _NOTHING if domain is None else _MarkedRange(domain, name)
    except Exception as error:  # noqa: BLE001 - as above
        _log.error("no NVTX range %r: it does nothing", name, exc_info=error)
        return _NOTHING


@functools.cache
def _domain() -> Any | None:
    """Our domain, or None when nobody can see it: no `nvtx` package, NVTX_DISABLE is set, or no tool is attached."""
    try:
        import nvtx  # here, because most engines run without it
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN)
    return None if type(domain).__name__ == "DummyDomain" else domain
