"""From the agents' snapshots to rows. Pure: the same states, time and zone give the same frame."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Final

import msgspec

from aie_telemetry.api import Snapshot
from aie_top.columns import engines as engine_columns
from aie_top.gpu_problems import indices_of, recent_xids, told_by_agent
from aie_top.gpu_processes import process_rows
from aie_top.gpu_state import HEAT, conditions
from aie_top.problems import engine_of, hung_engines, problems_of
from aie_top.rows import AgentState, DriftRow, EngineRow, Frame, GpuProcessRow, GpuRow, HostRow, MemoryRow, ProblemRow, View

# The agent sends once a second. Data older than this is marked, whatever the connection says.
STALE_AFTER_S: Final = 3.5


def build_frame(states: Sequence[AgentState], now_s: float, zone: datetime.tzinfo | None = None) -> Frame:
    """`now_s` is on the clock of `received_s`; `zone` None is the reader's own."""
    snapshots = [state.snapshot for state in states if state.snapshot is not None]
    stale = {state.label: _stale_s(state, now_s) for state in states}
    gpus = tuple(row for state in states for row in _gpu_rows(state, stale[state.label]))
    return Frame(
        clock=_clock(snapshots, zone),
        window_s=max((snapshot.window_s for snapshot in snapshots), default=None),
        hosts=tuple(_host_row(state, stale[state.label]) for state in states),
        problems=tuple(problems_of(states, stale)),
        engines=tuple(
            EngineRow(
                agent=state.label,
                host=state.snapshot.host.hostname,
                engine=engine,
                stale_s=stale[state.label],
                hangs=engine.name in hung_engines(state.snapshot),
            )
            for state in states
            if state.snapshot is not None
            for engine in state.snapshot.engines
        ),
        memory=tuple(
            MemoryRow(agent=state.label, host=state.snapshot.host.hostname, memory=memory, stale_s=stale[state.label])
            for state in states
            if state.snapshot is not None
            for memory in state.snapshot.memory
        ),
        gpus=gpus,
        gpu_processes=process_rows(gpus),
        drift=tuple(
            DriftRow(agent=state.label, host=state.snapshot.host.hostname, drift=drift, stale_s=stale[state.label])
            for state in states
            if state.snapshot is not None
            for drift in state.snapshot.drift
        ),
    )


def arrange(frame: Frame, view: View) -> Frame:
    """The frame as the user wants it: engines, memory and GPUs filtered, in one order. What is wrong and hosts are never hidden."""
    engines = _sorted_engines([row for row in frame.engines if _matches(row, view.filter)], view)
    rank = {row.key: position for position, row in enumerate(engines)}
    memory = [row for row in frame.memory if (row.agent, row.memory.engine) in rank or _memory_matches(row, view.filter)]
    drift = [row for row in frame.drift if (row.agent, row.drift.engine) in rank]
    drift.sort(key=lambda row: rank[row.agent, row.drift.engine])
    memory.sort(key=lambda row: rank.get((row.agent, row.memory.engine), len(rank)))
    return Frame(
        clock=frame.clock,
        window_s=frame.window_s,
        hosts=frame.hosts,
        problems=frame.problems,
        engines=tuple(engines),
        memory=tuple(memory),
        gpus=tuple(row for row in frame.gpus if _gpu_matches(row, view.filter)),
        gpu_processes=tuple(row for row in frame.gpu_processes if _process_matches(row, view.filter)),
        drift=tuple(drift),
    )


def concerning(arranged: Frame, whole: Frame, words: str) -> Frame:
    """`arranged` without the problems of engines and GPUs that the filter left out. Those of hosts and agents stay, and whatever
    has the words in its own text."""
    shown = {(row.host, row.engine.name) for row in arranged.engines}
    engines = {(row.host, row.engine.name) for row in whole.engines} - shown
    gpus = {(row.host, row.gpu.index) for row in whole.gpus} - {(row.host, row.gpu.index) for row in arranged.gpus}

    def left_out(row: ProblemRow) -> bool:
        about = indices_of(row.subject)
        hidden = all((row.host, index) in gpus for index in about) if about else (row.host, engine_of(row.subject)) in engines
        return hidden and not _contains((row.subject, row.summary, row.host), words)

    return msgspec.structs.replace(arranged, problems=tuple(row for row in arranged.problems if not left_out(row)))


def next_sort(current: str) -> str:
    keys = engine_columns.sort_keys()
    return keys[(keys.index(current) + 1) % len(keys)] if current in keys else keys[0]


def _sorted_engines(rows: list[EngineRow], view: View) -> list[EngineRow]:
    """Numbers start with the largest, text with the first letter; what is not known comes last either way."""
    column = engine_columns.by_key(view.sort)
    value_of = column.sort_value
    if value_of is None:
        return rows
    values = {row.key: value_of(row) for row in rows}
    known = [row for row in rows if values[row.key] is not None]
    unknown = [row for row in rows if values[row.key] is None]
    known.sort(key=lambda row: (values[row.key], row.key), reverse=column.largest_first != view.reverse)
    return known + unknown


def _matches(row: EngineRow, wanted: str) -> bool:
    engine = row.engine
    fields = (engine.name, row.host, engine.state, engine.kind, engine.model, engine.device)
    return _contains(fields, wanted)


def _memory_matches(row: MemoryRow, wanted: str) -> bool:
    return _contains((row.memory.engine, row.memory.device, row.host), wanted)


def _gpu_matches(row: GpuRow, wanted: str) -> bool:
    gpu = row.gpu
    state = "up" if gpu.up else "down"
    return _contains((f"GPU {gpu.index}", gpu.name, gpu.uuid, gpu.pci_bus_id, gpu.reason, state, row.host, *row.engines), wanted)


def _process_matches(row: GpuProcessRow, wanted: str) -> bool:
    one = row.process
    return _contains(
        (str(one.tgid), one.command, one.engine, "orphan" if one.orphan else None, one.container, one.pod, row.host), wanted
    )


def _contains(fields: Sequence[str | None], wanted: str) -> bool:
    words = wanted.casefold().split()
    text = " ".join(field for field in fields if field).casefold()
    return all(word in text for word in words)


def _gpu_rows(state: AgentState, stale_s: float | None) -> list[GpuRow]:
    snapshot = state.snapshot
    if snapshot is None or not snapshot.gpus:
        return []
    recent, told = recent_xids(snapshot), told_by_agent(snapshot)
    return [
        GpuRow(
            agent=state.label,
            host=snapshot.host.hostname,
            gpu=gpu,
            found=tuple(conditions(gpu, recent.get(gpu.index), told.get((HEAT, gpu.index)))),
            time_s=snapshot.time_s,
            stale_s=stale_s,
        )
        for gpu in snapshot.gpus
    ]


def _host_row(state: AgentState, stale_s: float | None) -> HostRow:
    snapshot = state.snapshot
    if snapshot is None:
        return HostRow(agent=state.label, phase=state.phase, reason=state.reason)
    return HostRow(
        agent=state.label,
        phase=state.phase,
        reason=state.reason,
        host=snapshot.host,
        about=snapshot.agent,
        sources=snapshot.sources,
        stale_s=stale_s,
    )


def _stale_s(state: AgentState, now_s: float) -> float | None:
    if state.received_s is None:
        return None
    age_s = now_s - state.received_s
    return age_s if state.phase != "live" or age_s > STALE_AFTER_S else None


def _clock(snapshots: Sequence[Snapshot], zone: datetime.tzinfo | None) -> str:
    newest_s = max((snapshot.time_s for snapshot in snapshots), default=None)
    if newest_s is None:
        return ""
    try:
        return datetime.datetime.fromtimestamp(newest_s, zone).strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):  # an agent with an absurd clock
        return ""
