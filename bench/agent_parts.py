"""The agent with a meter: what each of its parts takes of the CPU, in the same process and at the same time as all others.

Run in place of `aie-agent`; bench/agent_cost.py does. On SIGUSR2 it writes a line of JSON to standard error: CPU seconds by part
since the start. A part is a source by its name ("process", "bpf"), one of NVML's threads ("nvml calls" asks the GPUs, "nvml slow"
makes the calls that take their time, "nvml events" waits for XIDs; "nvml" is what becomes of their answers), or "rest": all else,
such as the analysis, the outputs and the loop itself. What a source does on the loop, in its callbacks and in worker threads is
counted there, by the clock of the thread: waiting is no cost.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final

from aie_agent import cli
from aie_agent.sources.base import Runner

REST: Final = "rest"
PREFIX: Final = "parts "
"""What the line begins with: the log goes the same way."""

_PART: Final = ContextVar("part", default=REST)
_spent_ns: Final[dict[str, int]] = defaultdict(int)
_THREADS: Final = {"nvml-events": "nvml events", "nvml-slow": "nvml slow", "nvml": "nvml calls", "aie-statsd": "statsd"}
"""Parts that have threads of their own, by what the threads' names begin with; of two the longer stands first."""


def _metered(part: str, work: Callable[..., Any], *arguments: Any) -> Any:
    began_ns = time.thread_time_ns()
    try:
        return work(*arguments)
    finally:
        _spent_ns[part] += time.thread_time_ns() - began_ns


def _install() -> None:
    """Callbacks of the loop run in the context in which they were asked for, and so do jobs of worker threads."""
    run_handle, run_source, submit = asyncio.Handle._run, Runner.run, ThreadPoolExecutor.submit

    def metered_handle(handle: Any) -> None:
        _metered(handle._context.get(_PART, REST), run_handle, handle)

    async def named_source(runner: Runner) -> None:
        _PART.set(runner.source.name)
        await run_source(runner)

    def metered_job(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        return submit(pool, _metered, _PART.get(), lambda: work(*arguments, **named))

    asyncio.Handle._run = metered_handle  # type: ignore[method-assign, assignment]
    Runner.run = named_source  # type: ignore[method-assign, assignment]
    ThreadPoolExecutor.submit = metered_job  # type: ignore[method-assign, assignment]


def _spent_s() -> dict[str, float]:
    """By part; together what the whole process took."""
    parts = {part: spent_ns / 1e9 for part, spent_ns in list(_spent_ns.items())}
    for thread in threading.enumerate():
        part = next((part for prefix, part in _THREADS.items() if thread.name.startswith(prefix)), None)
        if part is not None and thread.ident is not None:
            parts[part] = parts.get(part, 0.0) + time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    others_s = sum(seconds for part, seconds in parts.items() if part != REST)
    return parts | {REST: time.process_time() - others_s}


def main() -> int:
    """Exits as `aie-agent` does."""
    _install()
    signal.signal(signal.SIGUSR2, lambda *_: print(PREFIX + json.dumps(_spent_s()), file=sys.stderr, flush=True))
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
