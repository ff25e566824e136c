"""`aie-agent probe`: opens a set of probes on an engine for a bounded time; says what was seen, and what that took from it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from aie_agent.analysis.window import quantile
from aie_agent.commands.agent_api import DEFAULT_AGENT, AgentError, snapshot
from aie_agent.commands.terminal import complain
from aie_agent.config import BpfSection
from aie_agent.namesakes import ProcessId
from aie_agent.sources.bpf.child import COMMAND, ChildError
from aie_agent.sources.bpf.points import Levels, UnfitError, add_up
from aie_agent.sources.bpf.targets import search
from aie_agent.sources.bpf.visit import Window, open_window
from aie_agent.sources.process_tree import ProcessTree
from aie_agent.sources.procfs import Procfs
from aie_ebpf import prerequisites
from aie_ebpf.messages import Target
from aie_ebpf.probes import SETS, When
from aie_telemetry.durations import parse_duration

LONGEST_S: Final = 120.0

# What each set is for; the rest of what a child reports is not this command's answer. Stacks (`aie-agent stacks`) are no series.
_SHOWN: Final = {"cuda_launch": ("aie_cuda_launches_total",), "gc": ("aie_process_gc_seconds",)}
WINDOW_SETS: Final = tuple(each.name for each in SETS if each.when is When.WINDOW and each.name in _SHOWN)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One series over the window: how often, and for a distribution of times the median, the 99th percentile and the sum."""

    metric: str
    labels: dict[str, str]
    times: float
    per_second: float
    p50_seconds: float | None = None
    p99_seconds: float | None = None
    total_seconds: float | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    engine: str
    set: str
    open_s: float
    hits: int
    stolen_s: float
    reason: str
    seen: tuple[Seen, ...]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's arguments."""
    parser = commands.add_parser("probe", help="open a set of probes on an engine for a while: needs root; costs what it then says")
    whom = parser.add_mutually_exclusive_group(required=True)
    whom.add_argument("--engine", metavar="NAME", help="all processes of an engine, as the running agent knows them")
    whom.add_argument("--pid", type=int, metavar="N", help="one process and what it started")
    parser.add_argument("--set", required=True, choices=WINDOW_SETS, help="what to look at")
    parser.add_argument(
        "--seconds", type=_seconds, default=10.0, metavar="S", help=f"for how long, 1 to {LONGEST_S:.0f} (default: 10)"
    )
    parser.add_argument("--agent", default=DEFAULT_AGENT, metavar="URL", help=f"the running agent (default: {DEFAULT_AGENT})")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text if text[-1:].isalpha() else f"{text}s")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not 1 <= seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"expected 1 to {LONGEST_S:.0f} seconds")
    return seconds


def run(arguments: argparse.Namespace, command: Sequence[str] = COMMAND) -> int:
    """Prints what was seen. Returns 0; 1 where the set could not be opened."""
    unmet = prerequisites.unmet(prerequisites.check())
    if unmet:
        return _complain("; ".join(f"{item.name}: {item.found} ({item.remedy})" for item in unmet))
    name = arguments.engine or f"pid-{arguments.pid}"
    try:
        targets = _targets(arguments, name)
        window = asyncio.run(open_window(targets, section_of(arguments.set), arguments.set, arguments.seconds, command))
        answer = answer_of(window, arguments.set, name)
    except (AgentError, ChildError, UnfitError) as error:
        return _complain(str(error))
    if arguments.json:
        print(msgspec.json.encode(answer).decode())
    else:
        print("\n".join(lines(answer)))
    return 1 if answer.reason and not answer.open_s else 0


def answer_of(window: Window, set_: str, engine: str) -> Answer:
    """Everything of the set that the reports of a window tell, added up. Raises UnfitError."""
    sums = add_up(window.reports, Levels(window.ready, (), {}))
    closed = window.closed
    seconds = max(closed.open_s, 1e-3)
    shown = _SHOWN[set_]
    points = [
        Seen(metric=each.name, labels=_labels(each.tags), times=each.value, per_second=each.value / seconds)
        for each in sums.points()
        if each.name in shown
    ]
    distributions = [
        Seen(
            metric=each.name,
            labels=_labels(each.tags),
            times=sum(each.counts),
            per_second=sum(each.counts) / seconds,
            p50_seconds=quantile(each.bounds, each.counts, 0.5),
            p99_seconds=quantile(each.bounds, each.counts, 0.99),
            total_seconds=each.total,
        )
        for each in sums.histograms()
        if each.name in shown
    ]
    return Answer(
        engine=engine,
        set=set_,
        open_s=closed.open_s,
        hits=closed.hits,
        stolen_s=closed.stolen_s,
        reason=closed.reason,
        seen=tuple(points + distributions),
    )


def lines(answer: Answer) -> Iterator[str]:
    """The answer for people."""
    if answer.reason:
        yield f"{answer.set}: {answer.reason}"
    if not answer.open_s:
        return
    if not answer.seen:
        yield f"{answer.set}: nothing happened in {answer.open_s:.1f} s"
    for each in answer.seen:
        labels = ", ".join(f"{name}={value}" for name, value in each.labels.items())
        name = f"{each.metric}{{{labels}}}" if labels else each.metric
        shape = ""
        if each.p50_seconds is not None and each.p99_seconds is not None and each.total_seconds is not None:
            shape = f"; half within {1e3 * each.p50_seconds:.3g} ms, P99 {1e3 * each.p99_seconds:.3g} ms"
            shape += f", {each.total_seconds:.3g} s together"
        yield f"{name}: {each.times:g}, {each.per_second:.3g} a second{shape}"
    share = 100 * answer.stolen_s / answer.open_s
    taken = f"{1e3 * answer.stolen_s:.3g} ms in {answer.open_s:.1f} s ({share:.2g} % of one CPU), {answer.hits} hits"
    yield f"taken from {answer.engine}: {taken}"


def _labels(tags: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in tags if name != "engine"}


def section_of(set_: str) -> BpfSection:
    """What this child is to do is its one set: what the agent has attached already would be paid for twice."""
    return BpfSection(budget=1.0, without=tuple(each.name for each in SETS if each.name != set_))


def _targets(arguments: argparse.Namespace, name: str) -> tuple[Target, ...]:
    """Raises AgentError where there is no process."""
    procfs = Procfs()
    if arguments.pid is not None:
        tgids = [arguments.pid]
    else:
        engine = next((each for each in snapshot(arguments.agent).engines if each.name == name), None)
        if engine is None:
            raise AgentError(f"the agent knows no engine {name}")
        tgids = [process.tgid for process in engine.processes]
    processes = [ProcessId(tgid, ticks) for tgid in tgids if (ticks := procfs.start_ticks(tgid)) is not None]
    targets = search({name: processes}, ProcessTree(procfs)).targets
    if not targets:
        raise AgentError(f"{name}: no process of it lives")
    return targets


def _complain(text: str) -> int:
    complain(text, "aie-agent probe")
    return 1
