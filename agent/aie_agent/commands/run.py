"""`aie-agent run`: the daemon."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys

from aie_agent.agent import Agent
from aie_agent.config import Config
from aie_agent.outputs.http import ListenError


def run(config: Config) -> int:
    """Runs until SIGTERM or SIGINT. Returns 0, or 2 when the HTTP server cannot listen."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(_serve(config))
    except ListenError as error:
        print(f"aie-agent: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host = config.api.listen.host
    # What is loaded now stays: the collector need not walk it every time.
    gc.freeze()
    await Agent(config).run(stop, lambda port: _announce(host, port))


def _announce(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    print(f"aie-agent: listening on http://{shown}:{port}", flush=True)
