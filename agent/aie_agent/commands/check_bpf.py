"""The part of `aie-agent check` about probes: what the host allows, what is seen of each engine and why not, what a probe costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

from aie_agent.commands.check_rows import Row
from aie_agent.config import BpfSection
from aie_agent.namesakes import ProcessId
from aie_agent.sources.bpf.child import COMMAND, ChildError
from aie_agent.sources.bpf.recent import summary
from aie_agent.sources.bpf.targets import Watched, search
from aie_agent.sources.bpf.visit import look
from aie_agent.sources.process_tree import ProcessTree
from aie_agent.sources.procfs import Procfs
from aie_ebpf import prerequisites
from aie_ebpf.prerequisites import Prerequisite
from aie_ebpf.probes import SETS
from aie_telemetry import api


def bpf_rows(
    section: BpfSection,
    agent: api.Snapshot | None,
    engines: Mapping[str, Sequence[int]],
    found: Sequence[Prerequisite] | None = None,
    command: Sequence[str] = COMMAND,
) -> Iterator[Row]:
    """What `agent`, which runs, sees; without one, what a child of our own sees of `engines` (tgids by name) and of what they
    started, as the agent would."""
    items = prerequisites.check() if found is None else found
    for item in items:
        yield Row(f"eBPF: {item.name}", item.met, False, item.found, item.remedy)
    if not section.enabled:
        yield Row("eBPF", False, False, "switched off", "leave out --no-bpf, or set bpf.enabled = true")
    elif agent is not None:
        yield from _of_agent(agent)
    elif not prerequisites.unmet(items):
        yield from _of_child(section, engines, command)


def _of_agent(agent: api.Snapshot) -> Iterator[Row]:
    source = next((each for each in agent.sources if each.name == "bpf"), None)
    if source is not None:
        found = source.reason or ("its programs are being compiled" if source.state == "waiting" else "the running agent's probes")
        yield Row("eBPF: child process", source.state != "down", False, found, "see the running agent's log")
    for engine in agent.engines:
        yield from _coverage_rows(engine.name, engine.coverage)
        if engine.probe_overhead_ratio is not None:
            found = f"{100 * engine.probe_overhead_ratio:.2f} % of one CPU, over the last minute"
            yield Row(f"engine {engine.name}: cost of probes", True, False, found)


def _of_child(section: BpfSection, engines: Mapping[str, Sequence[int]], command: Sequence[str]) -> Iterator[Row]:
    watched = _watched(engines)
    try:
        sight = asyncio.run(look(watched.targets, section, command))
    except ChildError as error:
        yield Row(
            "eBPF: child process", False, False, str(error), "run aie-agent check again; if it stays so, report it with this line"
        )
        return
    yield Row("eBPF: child process", True, False, f"programs are compiled (BCC {sight.ready.bcc_version})")
    costs = ", ".join(f"{kind} {cost_ns / 1000:.2f} us" for kind, cost_ns in sight.ready.cost_ns.items())
    yield Row("eBPF: cost of one hit of a probe", bool(costs), False, costs or "not known")
    for state in sight.ready.sets:
        if not state.loaded:
            yield Row(f"eBPF: set {state.set}", False, False, state.reason)
    for engine in engines:
        if engine in watched.left_out:
            yield Row(f"engine {engine}: probes", False, False, watched.left_out[engine])
        yield from _coverage_rows(engine, summary(sight.coverage, engine))


def _watched(engines: Mapping[str, Sequence[int]]) -> Watched:
    """The processes that an agent would watch."""
    procfs = Procfs()
    living = {
        engine: [ProcessId(tgid, ticks) for tgid in tgids if (ticks := procfs.start_ticks(tgid)) is not None]
        for engine, tgids in engines.items()
    }
    return search(living, ProcessTree(procfs))


def _coverage_rows(engine: str, coverage: Iterable[api.Coverage]) -> Iterator[Row]:
    for each in coverage:
        what = f"engine {engine}: probes {each.set}"
        yield Row(what, each.state != "off", False, _seen(engine, each), each.remedy)


def _seen(engine: str, coverage: api.Coverage) -> str:
    sees = next((each.sees for each in SETS if each.name == coverage.set), "")
    missing = f"; not seen: {'; '.join(coverage.missing)}" if coverage.missing else ""
    notes = f"; {'; '.join(coverage.notes)}" if coverage.notes else ""
    words = {
        "on": f"{sees}{missing}{notes}",
        "part": f"{sees}{missing}{notes}",
        "window": f"on demand: aie-agent probe --engine {engine} --set {coverage.set}",
        "off": coverage.reason or f"not seen: {sees}",
        "none": coverage.reason,
    }
    return words[coverage.state]
