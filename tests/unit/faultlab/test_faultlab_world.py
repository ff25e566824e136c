"""Which findings of the agent are the lab's: of what is ours, and not of what this host does not let it see."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace

from aie_agent.sources.bpf.build import NoProbes
from aie_telemetry.api import Agent, Evidence, Finding, Findings, Host, Severity, Snapshot, Source
from tests.faultlab.faults import PLAIN
from tests.faultlab.programs import LabError, Program, SilentError, until
from tests.faultlab.subjects import ENGINE_NAME, lacking
from tests.faultlab.world import World

AGENT_PROCESS = "import time\nprint('its last line', flush=True)\ntime.sleep(600)"
NO_PRIVILEGE = "privilege: not held by user 1000"
NOTHING = Snapshot(
    version=1,
    time_s=0.0,
    window_s=60.0,
    agent=Agent(version="1", uptime_s=1.0, series=1, series_limit=10),
    host=Host(hostname="h", kernel="k"),
)


def finding(cause: str, subject: str = "engine", severity: Severity = "warning", text: str = "3 of 5 (limit 2)") -> Finding:
    evidence = (Evidence(text=text, metric="aie_engine_up"),)
    return Finding(cause=cause, subject=subject, severity=severity, since_s=0.0, summary="s", evidence=evidence)


@pytest.fixture
def refused() -> list[str]:
    """How often the agent refuses to say anything before it does: it takes one of these each time."""
    return []


@pytest.fixture
def sources() -> list[Source]:
    """Those of the agent."""
    return []


@pytest.fixture
def world(tmp_path: Path, refused: list[str], sources: list[Source]) -> Iterator[tuple[World, list[Finding]]]:
    """One in which only a process runs for an agent, which says what is in the list."""
    said: list[Finding] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            now = replace(NOTHING, sources=tuple(sources), findings=tuple(said))
            findings = Findings(version=1, time_s=0.0, findings=tuple(said))
            body = msgspec.json.encode(now if self.path.endswith("/snapshot") else findings)
            self.send_response(503 if refused else 200)
            del refused[:1]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        made = World(PLAIN, tmp_path, load=1.0)
        made.agent_url = f"http://127.0.0.1:{server.server_port}"
        made.agent = Program(Path(sys.executable).name, ["-c", AGENT_PROCESS], tmp_path / "agent.log", {})
        with made.clients:
            yield made, said
        made.agent.stop()
        server.shutdown()
        thread.join()


def test_what_the_agent_says_of_itself_and_its_sources_is_the_labs(world: tuple[World, list[Finding]]) -> None:
    lab_world, said = world
    lab_world.sources = frozenset({"bpf", "host", "nvml", "scrape:other"})
    died = [finding("agent_blind", "probes", "info", "probes are off: the BPF child ended"), finding("agent_blind", "bpf")]
    ours = [finding("engine_hung", ENGINE_NAME), finding("cpu_steal", "host"), finding("gpu_lost", "gpu3"), *died]
    said += [*ours, finding("engine_hung", "other"), finding("agent_blind", "other")]
    assert [each.subject for each in lab_world.findings()] == ["engine", "host", "gpu3", "probes", "bpf"]


def test_what_this_host_does_not_let_the_agent_see_is_no_finding(world: tuple[World, list[Finding]]) -> None:
    lab_world, said = world
    lab_world.sources = frozenset({"host", "nvml"})
    lab_world.lacks = lacking([source("host", "down", "no /proc/stat")], NoProbes(NO_PRIVILEGE).coverage(ENGINE_NAME))
    assert lab_world.lacks == {"host": "no /proc/stat", "probes": NO_PRIVILEGE}
    said += [finding("agent_blind", "probes", "info", f"probes are off: {NO_PRIVILEGE}"), finding("agent_blind", "host")]
    said += [finding("cpu_steal", "host"), finding("agent_blind", "nvml")]
    found = [(each.cause, each.subject) for each in lab_world.findings()]
    assert found == [("cpu_steal", "host"), ("agent_blind", "nvml")]


def source(name: str, state: str, reason: str | None = None, last_success_age_s: float | None = None) -> Source:
    made = {"name": name, "state": state, "reason": reason, "last_success_age_s": last_success_age_s}
    return msgspec.convert(made, Source)


def test_a_source_is_lacking_that_never_worked_and_not_one_that_died() -> None:
    up, page = source("host", "up", None, 0.5), source("scrape:other", "down", "connection refused")
    assert lacking([up, page, source("bpf", "up", None, 0.5)], ()) == {}
    assert lacking([up, source("bpf", "down", "the BPF child ended", 7.0)], ()) == {}
    refused = "bpf() is refused: Operation not permitted"
    assert lacking([up, source("bpf", "down", refused)], ()) == {"bpf": refused, "probes": refused}


def test_what_works_after_its_first_attempt_failed_is_lacking_no_more(
    world: tuple[World, list[Finding]], sources: list[Source]
) -> None:
    lab_world, said = world
    lab_world.sources = frozenset({"bpf", "nvml"})
    never = [source("bpf", "down", "the BPF child ended"), source("nvml", "down", "no driver")]
    sources += never
    lab_world.lacks = lacking(sources, ())
    blind = [finding("agent_blind", subject) for subject in ("bpf", "probes", "nvml")]
    said += blind
    assert lab_world.findings() == ()
    sources[0] = source("bpf", "up", None, 0.5)
    assert lab_world.findings() == (), "it is told of what was"
    said[:] = [blind[2]]
    assert lab_world.findings() == ()
    assert set(lab_world.lacks) == {"nvml"}
    sources[0] = source("bpf", "down", "the BPF child ended", 9.0)
    said[:] = blind
    assert [each.subject for each in lab_world.findings()] == ["bpf", "probes"]


def test_what_never_works_goes_on_lacking(world: tuple[World, list[Finding]], sources: list[Source]) -> None:
    lab_world, said = world
    lab_world.sources = frozenset({"bpf"})
    sources.append(source("bpf", "down", NO_PRIVILEGE))
    lab_world.lacks = lacking(sources, ())
    for told in ([], [finding("agent_blind", "bpf"), finding("agent_blind", "probes")], []):
        said[:] = told
        assert lab_world.findings() == ()
        assert set(lab_world.lacks) == {"bpf", "probes"}


def test_what_explains_a_finding_is_named_as_its_subject_is(world: tuple[World, list[Finding]]) -> None:
    lab_world, said = world
    said.append(replace(finding("x", ENGINE_NAME), explained_by="y", explained_by_subject=ENGINE_NAME))
    (found,) = lab_world.findings()
    assert (found.subject, found.explained_by_subject) == ("engine", "engine")


def test_an_agent_that_does_not_answer_at_once_is_asked_again(world: tuple[World, list[Finding]], refused: list[str]) -> None:
    lab_world, said = world
    said.append(finding("cpu_steal", "host"))
    refused += ["busy", "busy"]
    assert [each.cause for each in lab_world.findings()] == ["cpu_steal"]
    assert refused == []


def test_an_agent_that_goes_on_not_answering_is_silent(
    world: tuple[World, list[Finding]], refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab_world, _ = world
    until(lambda: lab_world.agent.text(), "its process prints nothing")
    monkeypatch.setattr("tests.faultlab.world.SILENT_S", 0.3)
    refused += ["hung"] * 1000
    with pytest.raises(SilentError, match="the agent does not answer, in 0 s:\nits last line"):
        lab_world.findings()


def test_an_agent_that_ended_is_silent_at_once(world: tuple[World, list[Finding]], refused: list[str]) -> None:
    lab_world, _ = world
    lab_world.agent.process.kill()
    lab_world.agent.process.wait()
    refused += ["gone"] * 1000
    with pytest.raises(SilentError, match="ended with -9"):
        lab_world.findings()
    assert len(refused) == 999


def test_the_host_is_looked_at_from_before_the_engine_starts_until_all_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks() -> bool:
        return any(each.name == "host load" for each in threading.enumerate())

    def refuse(self: World, *_: str) -> None:
        self.engine = cast(Program, SimpleNamespace(stop=lambda: None))
        raise LabError(f"looks: {looks()}")

    monkeypatch.setattr(World, "start_engine", refuse)
    with pytest.raises(LabError, match="looks: True"), World(PLAIN, tmp_path / "world"):
        pass
    assert not looks()
