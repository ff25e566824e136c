"""Asks the agent that runs, over its HTTP API."""

from __future__ import annotations

import http.client
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


def snapshot(url: str, timeout_s: float = 5.0) -> api.Snapshot:
    """What the agent at `url` shows now. Raises AgentError."""
    if not url.startswith(("http://", "https://")):
        raise AgentError(f"--agent: expected a URL such as {DEFAULT_AGENT}, got {url!r}")
    try:
        with _OPENER.open(f"{url.rstrip('/')}/api/v1/snapshot", timeout=timeout_s) as answer:
            return msgspec.json.decode(answer.read(_MOST_BYTES), type=api.Snapshot)
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
