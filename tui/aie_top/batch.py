"""`--once` and `--json`: without a screen, and without importing what draws one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final, TextIO

import aiohttp
import msgspec

from aie_top.client import ONCE_S, AwayError, open_session, read_snapshot
from aie_top.decode import DecodeError, decode_snapshot
from aie_top.follower import follow_for_ever
from aie_top.model import build_frame
from aie_top.output import OutputError, write
from aie_top.report import render, report_lines
from aie_top.rows import AgentState, View
from aie_top.targets import Target

OK: Final = 0
NO_AGENT: Final = 1


class JsonLine(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One line of `--json`: the snapshot exactly as the agent sent it, or why there is none."""

    url: str
    snapshot: msgspec.Raw | None = None
    error: str | None = None


def once(targets: Sequence[Target], view: View, out: TextIO, *, width: int, colour: bool, ascii_only: bool) -> int:
    """Prints the report. Agents that do not answer are in it; if none does, one line on stderr and exit status 1."""
    answers = asyncio.run(_ask_all(targets))
    states = [_state(target, answer) for target, answer in zip(targets, answers, strict=True)]
    if all(state.snapshot is None for state in states):
        return _nobody(states)
    frame = build_frame(states, time.monotonic())
    write(out, render(report_lines(frame, view, width, ascii_only=ascii_only), colour=colour))
    return OK


def once_json(targets: Sequence[Target], out: TextIO) -> int:
    """One line an agent, in the order asked for. Exit status as in `once`."""
    answers = asyncio.run(_ask_all(targets))
    states = [_state(target, answer) for target, answer in zip(targets, answers, strict=True)]
    if all(state.snapshot is None for state in states):
        return _nobody(states)
    for state, answer in zip(states, answers, strict=True):
        raw = answer if isinstance(answer, bytes) and state.snapshot is not None else None
        _write(out, JsonLine(url=state.label, snapshot=msgspec.Raw(raw) if raw else None, error=state.reason))
    return OK


def stream_json(targets: Sequence[Target], out: TextIO, interval_s: float) -> int:
    """A line for each snapshot, at most one an interval and agent, and one when an agent goes away. Ends with ctrl+c or pipe."""
    try:
        asyncio.run(_stream_all(targets, out, interval_s))
    except KeyboardInterrupt:
        return OK
    except ExceptionGroup as group:
        failed = next((error for error in group.exceptions if isinstance(error, OutputError)), None)
        if failed is None:
            raise
        raise failed from None
    return OK


async def _stream_all(targets: Sequence[Target], out: TextIO, interval_s: float) -> None:
    async with open_session() as session, asyncio.TaskGroup() as tasks:
        for target in targets:
            tasks.create_task(_stream(session, target, out, interval_s))


async def _stream(session: aiohttp.ClientSession, target: Target, out: TextIO, interval_s: float) -> None:
    due_s, last_reason = 0.0, ""

    def received(body: bytes) -> None:
        nonlocal due_s, last_reason
        decode_snapshot(body)  # what is passed on is a snapshot
        last_reason = ""
        now_s = time.monotonic()
        if now_s >= due_s:
            due_s = now_s + interval_s * 0.8
            _write(out, JsonLine(url=target.url, snapshot=msgspec.Raw(body)))

    def away(reason: str) -> None:
        nonlocal last_reason
        if reason != last_reason:  # said once, not with every try
            last_reason = reason
            _write(out, JsonLine(url=target.url, error=reason))

    await follow_for_ever(session, target, received, away)


async def _ask_all(targets: Sequence[Target]) -> list[bytes | AwayError]:
    async def ask(target: Target) -> bytes | AwayError:
        try:
            return await read_snapshot(session, target)
        except AwayError as error:
            return error

    async with open_session(ONCE_S) as session:
        return await asyncio.gather(*map(ask, targets))


def _state(target: Target, answer: bytes | AwayError) -> AgentState:
    try:
        if isinstance(answer, AwayError):
            raise answer
        return AgentState(label=target.url, phase="live", snapshot=decode_snapshot(answer), received_s=time.monotonic())
    except (AwayError, DecodeError) as error:
        return AgentState(label=target.url, phase="away", reason=str(error))


def _nobody(states: Sequence[AgentState]) -> int:
    each = "; ".join(f"agent at {state.label} is away: {state.reason}" for state in states)
    print(f"aie-top: {each}", file=sys.stderr)
    return NO_AGENT


def _write(out: TextIO, one: JsonLine) -> None:
    # The agent's JSON may be laid out over lines; a line here is one object.
    line = msgspec.json.encode(one)
    write(out, (msgspec.json.format(line, indent=-1) if b"\n" in line else line).decode() + "\n")
