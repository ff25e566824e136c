"""`aie-agent check`: what can be seen on this host, what cannot, why, and what to do."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from aie_agent.commands.agent_api import AgentError, snapshot
from aie_agent.commands.check_bpf import bpf_rows
from aie_agent.commands.check_otlp import otlp_rows
from aie_agent.commands.check_rows import Row, engine_rows, finding_rows, known_as, tgids_shown
from aie_agent.commands.terminal import printable
from aie_agent.config import Config, EngineSection
from aie_agent.config_values import Address
from aie_agent.sources.configured import tgids_of
from aie_agent.sources.discovery import Scanner
from aie_agent.sources.listeners import tgids_listening_at
from aie_telemetry import api


def run(config: Config, *, as_json: bool) -> int:
    """Prints a row for each thing. Returns 0 when all that the configuration asks for can be seen, else 1."""
    rows = list(_rows(config))
    if as_json:
        print(msgspec.json.encode([row._asdict() for row in rows]).decode())
    else:
        width = max(len(row.what) for row in rows)
        for row in rows:
            print(_line(row, width))
    return 0 if all(row.visible for row in rows if row.needed) else 1


def _line(row: Row, width: int) -> str:
    mark = "WRONG   " if row.wrong else "ok      " if row.visible else "MISSING " if row.needed else "not seen"
    remedy = f"\n{' ' * (width + 12)}-> {printable(row.remedy)}" if row.remedy and (row.wrong or not row.visible) else ""
    return f"{mark}  {printable(row.what):<{width}}  {printable(row.found)}{remedy}"


def _rows(config: Config) -> Iterator[Row]:
    agent = _running_agent(config.api.listen)
    yield _api(config.api.listen, agent)
    yield from (_statsd_of(agent) if agent is not None else _statsd(config))
    yield from _host()
    if agent is not None:
        yield from finding_rows(agent)
        yield from engine_rows(agent)
    if not config.engines and (agent is None or not agent.engines):
        yield Row(
            "engines",
            True,
            False,
            "none configured: hooks announce theirs, known ones are found; for others --engine NAME=URL or [[engines]]",
        )
    for engine in config.engines:
        yield from _engine(engine, config.sources.scrape_timeout)
    if config.discovery.enabled:
        yield from _discovered(agent)
    yield from bpf_rows(config.bpf, agent, {} if agent is not None else _engines_here(config))
    yield from _gpus(config, agent)
    yield from otlp_rows(config.otlp)


def _running_agent(listen: Address) -> api.Snapshot | None:
    """What the agent that serves at this address shows, if one does."""
    try:
        return snapshot(f"http://{listen}")
    except AgentError:
        return None


def _api(listen: Address, agent: api.Snapshot | None) -> Row:
    what = f"HTTP API on {listen}"
    if agent is not None:
        return Row(what, True, True, f"an agent serves here already, since {agent.agent.uptime_s:.0f} s")
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen.host, listen.port))
        except OSError as error:
            return Row(what, False, True, f"cannot listen: {error.strerror}", "set api.listen, or stop what holds the port")
    return Row(what, True, True, "free")


def _statsd_of(agent: api.Snapshot) -> Iterator[Row]:
    """The sockets are the running agent's, and it knows whether they work."""
    for source in agent.sources:
        if source.name == "statsd":
            yield Row(
                "StatsD",
                source.state != "down",
                True,
                source.reason or "the running agent's sockets",
                "see the running agent's log",
            )


def _statsd(config: Config) -> Iterator[Row]:
    path = config.statsd.unix.path
    if path is not None:
        what = f"StatsD on unix://{path}"
        directory = next(parent for parent in path.parents if parent.exists())
        writable = os.access(directory, os.W_OK | os.X_OK)
        found = "socket can be created" if writable else f"{directory} is not writable by user {os.geteuid()}"
        yield Row(what, writable, True, found, "run as root, or set statsd.unix to a path that this user may create")
    if not config.statsd.udp.is_off:
        yield _udp(config.statsd.udp)


def _udp(address: Address) -> Row:
    what = f"StatsD on udp://{address}"
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            return Row(
                what, False, True, f"cannot bind: {error.strerror} (an agent that runs, or a StatsD server)",
                'set statsd.udp to another port or to "off"; hooks use the Unix socket by default',
            )  # fmt: skip
    return Row(what, True, True, "free")


def _host(proc: Path = Path("/proc")) -> Iterator[Row]:
    yield _file("CPU, memory, swap of the host", proc / "stat", True, "mount /proc")
    yield _file("pressure stall information", proc / "pressure/cpu", False, "boot with psi=1 (CONFIG_PSI)")
    yield _file("run-queue time of threads", proc / "self/schedstat", False, "use a kernel with CONFIG_SCHED_INFO")
    cgroup2 = Path("/sys/fs/cgroup/cgroup.controllers")
    cgroup1 = Path("/sys/fs/cgroup/cpu")
    found = "cgroup v2" if cgroup2.exists() else "cgroup v1" if cgroup1.exists() else "no cgroup controllers at /sys/fs/cgroup"
    yield Row(
        "CPU quota and memory limit of engines",
        cgroup2.exists() or cgroup1.exists(),
        False,
        found,
        "mount cgroup2 at /sys/fs/cgroup",
    )
    root = os.geteuid() == 0
    found = "all" if root else f"those of user {os.geteuid()}; of others: memory and CPU time, not their sockets"
    yield Row("processes", True, True, found)


def _file(what: str, path: Path, needed: bool, remedy: str) -> Row:
    try:
        with path.open() as file:
            file.read(64)
    except OSError as error:
        return Row(what, False, needed, f"{path}: {error.strerror}", remedy)
    return Row(what, True, needed, str(path))


def _engine(engine: EngineSection, timeout_s: float) -> Iterator[Row]:
    if engine.metrics_url is None:
        return
    what = f"engine {engine.name}"
    from aie_agent.commands.check_page import check_page  # only for this the HTTP client is needed, which takes long to load

    page = check_page(engine.name, engine.metrics_url, timeout_s)
    if page.problem is not None:
        yield Row(f"{what}: page", False, True, page.problem, "start the engine, or correct metrics_url")
        return
    refused = f"; samples not taken: {', '.join(page.refused)}" if page.refused else ""
    yield Row(f"{what}: page", True, True, f"{page.kind}: {page.metrics} metrics at {engine.metrics_url}{refused}")
    for finding in page.lint:
        yield Row(f"{what}: {finding.rule}", False, False, f"{finding.family}: {finding.text}")
    tgids = sorted(tgids_listening_at(engine.metrics_url.host, engine.metrics_url.port))
    found = f"joined by its socket: {', '.join(map(str, tgids))}" if tgids else "no process of ours listens there"
    yield Row(f"{what}: processes", bool(tgids), False, found, "run as root or as the engine's user, or use the hooks")


def _engines_here(config: Config) -> dict[str, tuple[int, ...]]:
    """Processes of the engines that the configuration names and that the scan finds."""
    configured = {engine.name: tuple(sorted(tgids_of(engine)[0])) for engine in config.engines}
    found = {found.name: found.tgids for found in Scanner().scan()} if config.discovery.enabled else {}
    return found | {name: tgids for name, tgids in configured.items() if tgids}


def _discovered(agent: api.Snapshot | None) -> Iterator[Row]:
    """What the scan for known engines finds, whatever else names them; by the names of the agent that runs."""
    for found in Scanner().scan():
        where = f"in container {found.container}, " if found.container else ""
        text = f"{found.kind}, {where}process {tgids_shown(found.tgids)}: {found.url or found.note}"
        yield Row(f"found: {known_as(agent, found.tgids) or found.name}", found.url is not None, False, text)


def _gpus(config: Config, agent: api.Snapshot | None) -> Iterator[Row]:
    """GPUs, link by link; and what the agent that runs sees of them, which takes time to see."""
    from aie_agent.commands.check_gpu import check_gpus  # it takes its time to load, and is the last that is shown

    seen = set()
    for check in check_gpus(config.gpu):
        seen.add(check.remedy)
        yield Row(check.what, check.visible, check.needed, check.found, check.remedy, not check.ok)
    for gpu in agent.gpus if agent is not None else ():
        for problem in gpu.problems:
            if not any(problem in remedy for remedy in seen):
                yield Row(f"GPU {gpu.index}: seen by the agent", True, False, problem, wrong=True)
