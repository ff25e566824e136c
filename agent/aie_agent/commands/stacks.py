"""`aie-agent stacks`: where the Python threads of an engine are, and what they wait for; or what of its GPU memory grows, and where
its threads are meanwhile. Stops nothing: each dump reads the memory of a process that goes on."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from aie_agent.commands import stacks_text
from aie_agent.commands.agent_api import DEFAULT_AGENT, AgentError, snapshot
from aie_agent.commands.stacks_native import NativeLook, NativeSeen
from aie_agent.stacks.evidence import MOST_PROCESSES
from aie_agent.stacks.merge import folded, merge
from aie_agent.stacks.model import Dump, clean
from aie_agent.stacks.py_spy import Reason, StacksError, dump
from aie_agent.stacks.shown import as_api
from aie_telemetry import api
from aie_telemetry.durations import parse_duration

# A process of the engine that is no Python, or that ends meanwhile, hides nothing.
_NO_FAULT: tuple[Reason, ...] = ("not_python", "gone")


class Taken(NamedTuple):
    """All dumps, in the order in which they were taken, and what could not be read, each once."""

    dumps: tuple[Dump, ...]
    problems: tuple[StacksError, ...]


class _Output(msgspec.Struct):
    """What `--json` prints. `native` only where it was asked for (`--kind locks`). `cuda_before` is what the agent saw before the
    first dump, `cuda` after the last."""

    dumps: tuple[api.StackDump, ...]
    problems: tuple[str, ...]
    locks: tuple[api.Lock, ...] = ()
    native: NativeSeen | None = None
    cuda_before: api.CudaUse | None = None
    cuda: api.CudaUse | None = None


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's arguments."""
    parser = commands.add_parser("stacks", help="where an engine's Python threads are, and what they wait for, without stopping it")
    whom = parser.add_mutually_exclusive_group(required=True)
    whom.add_argument("--engine", metavar="NAME", help="all processes of an engine, as the running agent knows them")
    whom.add_argument("--pid", type=int, metavar="N", help="one process")
    parser.add_argument(
        "--kind",
        choices=("locks", "memory"),
        help="locks: with the native code that waits for them; memory: of GPUs (default: what Python's stacks say of locks)",
    )
    parser.add_argument("--dumps", type=_count, default=3, metavar="N", help="how often to look, 1 to 100 (default: 3)")
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="seconds from look to look (default: 1)")
    parser.add_argument("--agent", default=DEFAULT_AGENT, metavar="URL", help=f"the running agent (default: {DEFAULT_AGENT})")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--folded", dest="form", action="store_const", const="folded", help="folded stacks, for flame graphs")
    form.add_argument("--tree", dest="form", action="store_const", const="tree", help="a tree for people (the default)")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="every dump, as one JSON object")
    parser.set_defaults(form="tree")


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 100:
        raise argparse.ArgumentTypeError("expected a number from 1 to 100")
    return number


def _seconds(text: str) -> float:
    """A number of seconds, or a duration with its unit."""
    try:
        seconds = parse_duration(text) if text[-1:].isalpha() else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not 0.01 <= seconds <= 600:
        raise argparse.ArgumentTypeError("expected 0.01 to 600 seconds")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    """Prints what was found. Returns 0; 1 where no stacks, or not what was asked for, could be read."""
    engine_wanted = arguments.engine is not None or arguments.kind == "memory"
    try:
        before = _engine(arguments) if engine_wanted else _engine_if_known(arguments)
    except AgentError as error:
        return _complain(str(error))
    tgids = [arguments.pid] if arguments.engine is None or before is None else [each.tgid for each in before.processes]
    if not tgids:
        return _complain(f"engine {arguments.engine}: no process of it is known")
    if len(tgids) > MOST_PROCESSES:
        _complain(f"engine {arguments.engine} has {len(tgids)} processes: the first {MOST_PROCESSES} are looked at")
    tgids = tgids[:MOST_PROCESSES]
    with NativeLook(tgids if arguments.kind == "locks" and arguments.form != "folded" else ()) as native:
        taken = take(tgids, arguments.dumps, arguments.interval)
        seen = native.seen()
    after = _engine_if_known(arguments) if before is not None else None
    _print(arguments.form, arguments.kind, taken, seen, before, after or before)
    for problem in taken.problems:
        _complain(str(problem))
    unseen = arguments.kind == "memory" and (after or before or _NOBODY).cuda is None
    failed = any(problem.reason not in _NO_FAULT for problem in taken.problems)
    nothing = not taken.dumps and not (seen is not None and seen.locks)
    return 1 if unseen or failed or nothing else 0


_NOBODY = api.Engine(name="", state="unknown")


def _complain(text: str) -> Literal[1]:
    print(f"aie-agent: {clean(text, 1000)}", file=sys.stderr)
    return 1


def _engine(arguments: argparse.Namespace) -> api.Engine:
    """The engine that is asked for, or whose the process is, as the agent knows it. Raises AgentError."""
    engines = snapshot(arguments.agent).engines
    for engine in engines:
        if engine.name == arguments.engine or arguments.pid in [process.tgid for process in engine.processes]:
            return engine
    known = f"it knows {', '.join(engine.name for engine in engines)}" if engines else "it knows none"
    what = f"process {arguments.pid}" if arguments.engine is None else f"engine {arguments.engine}"
    raise AgentError(f"the agent at {arguments.agent} does not know {what}: {known}")


def _engine_if_known(arguments: argparse.Namespace) -> api.Engine | None:
    """What the agent adds where there is one; a process can be looked at without."""
    try:
        return _engine(arguments)
    except AgentError:
        return None


def take(tgids: Sequence[int], dumps: int, interval_s: float) -> Taken:
    """So many looks at each process. A process that cannot be read is not tried again."""
    found: list[Dump] = []
    problems: dict[int, StacksError] = {}
    begin_s = time.monotonic()
    for look in range(dumps):
        time.sleep(max(begin_s + look * interval_s - time.monotonic(), 0.0))
        for tgid in tgids:
            if tgid not in problems:
                try:
                    found.append(dump(tgid, time.time()))
                except StacksError as error:
                    problems[tgid] = error
        if len(problems) == len(tgids):
            break
    return Taken(tuple(found), _each_once(problems.values()))


def _each_once(problems: Iterable[StacksError]) -> tuple[StacksError, ...]:
    return tuple({str(problem): problem for problem in problems}.values())


def _print(
    form: str, kind: str | None, taken: Taken, seen: NativeSeen | None, before: api.Engine | None, after: api.Engine | None
) -> None:
    if form == "json":
        texts = tuple(str(problem) for problem in taken.problems)
        output = _Output(tuple(as_api(each) for each in taken.dumps), texts, native=seen)
        if after is not None:
            output.locks = after.locks if kind != "memory" else ()
            output.cuda_before, output.cuda = (before.cuda if before else None, after.cuda) if kind == "memory" else (None, None)
        print(msgspec.json.encode(output).decode())
        return
    if seen is not None:
        for line in stacks_text.native(seen, taken.dumps):
            print(line)
    if not taken.dumps and kind != "memory":
        return  # why stands on standard error
    threads = merge(taken.dumps)
    if form == "folded":
        lines: Iterator[str] = folded(threads)
    elif kind == "memory":
        lines = stacks_text.memory(taken.dumps, threads, before, after)
    else:
        lines = stacks_text.locks(taken.dumps, threads, after)
    for line in lines:
        print(line)
