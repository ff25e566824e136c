"""`aie-agent run`: the daemon."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from typing import Any, TextIO

from aiohttp.http_exceptions import HttpProcessingError

from aie_agent.agent import Agent
from aie_agent.commands.terminal import complain
from aie_agent.config import Config
from aie_agent.outputs.http import ListenError
from aie_agent.sources.nvml.build import SimulationError

log = logging.getLogger(__name__)


def run(config: Config) -> int:
    """Runs until SIGTERM or SIGINT. Returns 0, or 2 when the HTTP server cannot listen."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("aiohttp.server").addFilter(_is_no_clients_mistake)
    _raise_file_limit()
    try:
        asyncio.run(_serve(config))
    except (ListenError, SimulationError) as error:
        complain(str(error))
        return 2
    return 0


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrors().report)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host = config.api.listen.host
    # What is loaded now stays: the collector need not walk it every time.
    gc.freeze()
    agent = Agent(config)
    loop.add_signal_handler(signal.SIGUSR1, agent.release_gpus)
    # Where findings are written to standard output, nothing else is.
    told = sys.stderr if config.findings.print else sys.stdout
    await agent.run(stop, lambda port: _announce(host, port, told))


def _raise_file_limit() -> None:
    """Many idle clients must not leave the sources without descriptors for /proc."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _is_no_clients_mistake(record: logging.LogRecord) -> bool:
    """A logging filter: what is no HTTP at all is the client's fault, and no traceback of ours."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


class LoopErrors:
    """Reports what asyncio cannot deliver to anybody, each message once a minute: at the limit of open files they are thousands."""

    EVERY_S = 60.0

    def __init__(self) -> None:
        self._last_s: dict[str, float] = {}

    def report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For `loop.set_exception_handler`."""
        message = str(context.get("message"))[:200]
        now_s = loop.time()
        if now_s - self._last_s.get(message, -self.EVERY_S) >= self.EVERY_S:
            if len(self._last_s) > 100:
                self._last_s.clear()
            self._last_s[message] = now_s
            log.error("%s: %r", message, context.get("exception"))


def _announce(host: str, port: int, stream: TextIO) -> None:
    shown = f"[{host}]" if ":" in host else host
    print(f"aie-agent: listening on http://{shown}:{port}", file=stream, flush=True)
