"""How an agent asks an engine to give back what memory it only retains, and what the engine answers.

The agent writes a file beside its socket, a JSON object a line and engine, and renews it while it wants to know. The engine reads
it, if it was told to; there is one thing that can be asked. It answers with an event of the kind `memory_probe`, whose details are:

    id, process                     which request, and which of the engine's processes answers
    device                          whose allocator's numbers these are; absent where none are known
    physical_bytes, allocated_bytes, reserved_bytes                     before
    STEP_seconds, STEP_physical_bytes, STEP_allocated_bytes, ...        after each of `STEPS` that was done, in their order
    STEP                            why it was not done: a word of `LEFT_OUT`
    gc_collect_objects              unreachable objects that were found

What is not known is absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

REQUESTS_NAME: Final = "memory-probe"
"""Of the file, in the directory of the agent's socket."""

MAX_REQUESTS_BYTES: Final = 1 << 16
"""A larger file is none of an agent's."""

EVENT_KIND: Final = "memory_probe"

STEPS: Final = ("gc_collect", "empty_cache", "malloc_trim")
"""In the order in which they are done: what Python gives up the allocator may then give back, and what both free, malloc."""

NUMBERS: Final = ("physical", "allocated", "reserved")
"""What is read before the first step and after each, in bytes. Physical memory is anonymous, with what of it is swapped out."""

LEFT_OUT: Final[dict[str, str]] = {
    "busy": "requests were running",
    "not_allowed": "the engine does not say when it is idle",
    "absent": "there is no such thing here",
    "failed": "it raised an error",
}
"""Why a step was not done."""


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file. An `id` is answered once; the line holds until `expires_s`, seconds since the epoch."""

    engine: str
    ask: Literal["memory_probe"]
    id: str
    expires_s: float


def encode_requests(requests: Iterable[ProbeRequest]) -> bytes:
    """The content of the file."""
    return b"".join(msgspec.json.encode(each) + b"\n" for each in requests)


def decode_requests(content: bytes) -> list[ProbeRequest]:
    """What `encode_requests` was given. Raises ValueError for anything else: files are put in place whole."""
    try:
        return [msgspec.json.decode(line, type=ProbeRequest) for line in content.splitlines()]
    except msgspec.MsgspecError as error:
        raise ValueError(f"not requests for a memory probe: {error}") from error
