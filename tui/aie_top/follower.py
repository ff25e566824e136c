"""Follows several agents at once and publishes frames at the pace that was asked for. A dead agent delays no other."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Sequence
from typing import Final

import aiohttp
import msgspec

from aie_top.client import AwayError, follow, open_session
from aie_top.decode import DecodeError, decode_snapshot
from aie_top.model import build_frame
from aie_top.rows import AgentState, Frame
from aie_top.targets import Target

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 5.0
# Changes of a connection are shown at once, but not more often than this when agents flap.
_LEAST_INTERVAL_S: Final = 0.1


async def follow_for_ever(
    session: aiohttp.ClientSession, target: Target, received: Callable[[bytes], None], away: Callable[[str], None]
) -> None:
    """Calls `received` for every snapshot, which may raise DecodeError, and `away` with the reason each time the agent is lost."""
    backoff_s = FIRST_BACKOFF_S

    def on_snapshot(body: bytes) -> None:
        nonlocal backoff_s
        received(body)
        backoff_s = FIRST_BACKOFF_S

    while True:
        try:
            await follow(session, target, on_snapshot)
        except (AwayError, DecodeError) as error:
            away(str(error))
        await asyncio.sleep(backoff_s)
        backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)


class Follower:
    """`sink` gets at most one frame an `interval_s` for new data, and one at once when an agent comes or goes."""

    def __init__(
        self, targets: Sequence[Target], sink: Callable[[Frame], None], interval_s: float, zone: datetime.tzinfo | None = None
    ) -> None:
        self._targets = targets
        self._sink = sink
        self._interval_s = interval_s
        self._zone = zone
        self._states = [AgentState(label=target.url) for target in targets]
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with open_session() as session, asyncio.TaskGroup() as tasks:
            for index in range(len(self._targets)):
                tasks.create_task(self._follow(session, index))
            tasks.create_task(self._publish())

    async def _follow(self, session: aiohttp.ClientSession, index: int) -> None:
        def received(body: bytes) -> None:
            snapshot = decode_snapshot(body)
            self._update(index, phase="live", reason=None, snapshot=snapshot, received_s=time.monotonic())

        await follow_for_ever(
            session, self._targets[index], received, lambda reason: self._update(index, phase="away", reason=reason)
        )

    def _update(self, index: int, **changes: object) -> None:
        before = self._states[index]
        now = self._states[index] = msgspec.structs.replace(before, **changes)
        if now.phase != before.phase:
            self._urgent.set()
        self._changed.set()

    async def _publish(self) -> None:
        """Without news a frame goes out all the same, since ages grow."""
        while True:
            self._changed.clear()
            self._urgent.clear()
            self._sink(build_frame(self._states, time.monotonic(), self._zone))
            await asyncio.sleep(_LEAST_INTERVAL_S)
            # A little less than the interval: the agent's own pace is not exactly ours, and each of its snapshots should be shown.
            await _wait(self._urgent, self._interval_s * 0.8 - _LEAST_INTERVAL_S)
            await _wait(self._changed, self._interval_s * 0.45)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
