"""Asks the agent that runs, over its HTTP API."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from typing import Final

import msgspec

from aie_telemetry import api
from aie_telemetry.endpoints import AGENT_HTTP_PORT

DEFAULT_AGENT: Final = f"http://127.0.0.1:{AGENT_HTTP_PORT}"

_MOST_BYTES: Final = 32 << 20

# As the agent itself connects: never through a proxy that the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class AgentError(Exception):
    """The agent does not answer, or is none: one line that says what, and what to do."""


def snapshot(url: str, timeout_s: float = 20.0) -> api.Snapshot:
    """What the agent at `url` shows now; it may take so long in all: on a host in trouble it waits for a CPU like all others.
    Raises AgentError."""
    if not url.startswith(("http://", "https://")):
        raise AgentError(f"--agent: expected a URL such as {DEFAULT_AGENT}, got {url!r}")
    try:
        return msgspec.json.decode(_read(f"{url.rstrip('/')}/api/v1/snapshot", timeout_s), type=api.Snapshot)
    except urllib.error.HTTPError as error:
        raise AgentError(f"the agent at {url} answers {error.code}") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise AgentError(f"no agent answers at {url} ({reason}): start one (aie-agent run), or name it with --agent") from error
    except http.client.InvalidURL as error:
        raise AgentError(f"--agent: expected a URL such as {DEFAULT_AGENT}, got {url!r}") from error
    except http.client.HTTPException as error:  # of some other server; its text may hold all that it sent
        raise AgentError(f"what answers at {url} is no agent: it speaks no HTTP ({type(error).__name__})") from error
    except (ValueError, RecursionError) as error:
        raise AgentError(f"what answers at {url} is no agent of this version: {error}") from error


def _read(url: str, timeout_s: float) -> bytes:
    """All of the answer. Raises OSError, ValueError and HTTPException."""
    asking = _Asking(url, timeout_s)
    asking.start()
    asking.join(timeout_s)
    if asking.problem is not None:
        raise asking.problem
    if asking.answer is None:
        raise TimeoutError(f"no whole answer within {timeout_s:g} s")
    return asking.answer


class _Asking(threading.Thread):
    """A connection's own timeout is one of each receive, never reached by who sends a byte now and then. So who asks waits for
    this thread, and at the deadline leaves it to end with the process."""

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._timeout_s = timeout_s
        self.answer: bytes | None = None
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            with _OPENER.open(self._url, timeout=self._timeout_s) as answer:
                self.answer = answer.read(_MOST_BYTES)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.problem = error
