"""`aie-agent check` and `aie-agent probe` as far as probes go, with a child that is a real process and has no BPF."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aie_agent.cli import main
from aie_agent.commands import probe
from aie_agent.commands.check_bpf import bpf_rows
from aie_agent.config import BpfSection
from aie_agent.sources.bpf.recent import summary
from aie_agent.sources.bpf.visit import Window
from aie_ebpf import messages as m
from aie_ebpf.prerequisites import Prerequisite
from aie_telemetry import api

FAKE = [sys.executable, str(Path(__file__).parents[2] / "fakes" / "bpf_child.py")]
MET = [Prerequisite("privilege", True, "held", "")]
READY = m.Ready(sets=(), cost_ns={}, bcc_version="1")


def snapshot(*engines: api.Engine, source: api.Source | None = None) -> api.Snapshot:
    return api.Snapshot(
        version=1,
        time_s=1.0,
        window_s=60.0,
        agent=api.Agent(version="1", uptime_s=1.0, series=0, series_limit=1),
        host=api.Host(hostname="h", kernel="k"),
        engines=engines,
        sources=(source,) if source else (),
    )


# A shell that starts another and waits for it: an engine with one worker.
PARENT = ["sh", "-c", "sleep 600 & echo $!; wait"]


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process, and one that it started."""
    with subprocess.Popen(PARENT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        yield parent.pid, child
        os.kill(child, signal.SIGKILL)


def test_without_an_agent_a_child_looks_at_the_engines_that_are_found(
    family: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And at what they started, as an agent would."""
    told = tmp_path / "told"
    monkeypatch.setenv("AIE_FAKE_TOLD", str(told))
    rows = {row.what: row for row in bpf_rows(BpfSection(), None, {"chat": [family[0]]}, MET, [*FAKE, "works"])}
    assert {each["tgid"] for each in msgspec.json.decode(told.read_text().splitlines()[0])["targets"]} == set(family)
    assert rows["eBPF: child process"].visible
    assert rows["eBPF: cost of one hit of a probe"].found == "uprobe 1.50 us, tracepoint 0.10 us"
    assert rows["engine chat: probes locks"].visible
    assert "futex" in rows["engine chat: probes locks"].found


def test_what_is_left_out_is_a_row() -> None:
    rows = {row.what: row for row in bpf_rows(BpfSection(), None, {"chat": [os.getpid()]}, MET, [*FAKE, "works"])}
    assert rows["engine chat: probes"].found == f"process {os.getpid()} is the agent itself"


def test_a_part_that_is_missing_does_not_keep_the_child_from_looking() -> None:
    part = Prerequisite("uprobes", False, "not seen: CUDA calls", "use another kernel", needed=False)
    rows = {row.what: row for row in bpf_rows(BpfSection(), None, {}, [*MET, part], [*FAKE, "works"])}
    assert (rows["eBPF: uprobes"].visible, rows["eBPF: uprobes"].remedy) == (False, "use another kernel")
    assert rows["eBPF: child process"].visible


def test_processes_are_named_where_they_differ() -> None:
    def seen(tgid: int, **rest: Any) -> m.Coverage:
        return m.Coverage(engine="chat", tgid=tgid, set="locks", **({"state": "on"} | rest))

    (same,) = summary([seen(7, missing=("the GIL",)), seen(8, missing=("the GIL",))], "chat")
    assert same.missing == ("the GIL",)
    (other,) = summary([seen(7, missing=("the GIL",)), seen(8)], "chat")
    assert other.missing == ("process 7: the GIL",)
    (off,) = summary([seen(9, state="off", reason="no room"), seen(7, state="off", reason="no room"), seen(8)], "chat")
    assert (off.state, off.missing) == ("part", ("processes 7, 9: no room",))
    (each,) = summary([seen(7, state="off", reason="no room"), seen(8, state="off", reason="no probes")], "chat")
    assert (each.state, each.reason) == ("off", "process 7: no room; process 8: no probes")
    (many,) = summary([*(seen(tgid, missing=("the GIL",)) for tgid in range(1, 7)), seen(8)], "chat")
    assert many.missing == ("processes 1, 2, 3, 4 and 2 more: the GIL",)


def test_a_child_that_cannot_work_is_a_row_with_the_reason() -> None:
    rows = {row.what: row for row in bpf_rows(BpfSection(), None, {}, MET, [*FAKE, "fails"])}
    assert not rows["eBPF: child process"].visible
    assert rows["eBPF: child process"].found == "no BCC here; install it"


def test_no_child_is_started_where_something_is_missing() -> None:
    unmet = [Prerequisite("BCC", False, "no module bcc", "install it")]
    rows = list(bpf_rows(BpfSection(), None, {"chat": [os.getpid()]}, unmet, ["/nonexistent"]))
    assert [(row.what, row.visible, row.remedy) for row in rows] == [("eBPF: BCC", False, "install it")]
    off = list(bpf_rows(BpfSection(enabled=False), None, {}, MET, ["/nonexistent"]))
    assert off[-1].found == "switched off"


def test_the_running_agents_view() -> None:
    engine = api.Engine(
        name="chat",
        state="up",
        probe_overhead_ratio=0.0042,
        coverage=(
            api.Coverage(set="locks", state="on"),
            api.Coverage(set="cuda_memory", state="part", missing=("libcudart is linked statically",)),
            api.Coverage(set="cuda_sync", state="off", reason="over its budget", remedy="raise bpf.budget"),
            api.Coverage(set="cuda_launch", state="window"),
        ),
    )
    down = api.Source(name="bpf", state="down", reason="BPF child ended: signal 9 (SIGKILL)")
    rows = {row.what: row for row in bpf_rows(BpfSection(), snapshot(engine, source=down), {}, MET, ["/nonexistent"])}
    assert rows["eBPF: child process"].found == "BPF child ended: signal 9 (SIGKILL)"
    assert rows["engine chat: cost of probes"].found == "0.42 % of one CPU, over the last minute"
    assert rows["engine chat: probes cuda_memory"].found.endswith("; not seen: libcudart is linked statically")
    assert not rows["engine chat: probes cuda_sync"].visible
    assert rows["engine chat: probes cuda_sync"].found == "over its budget"
    assert rows["engine chat: probes cuda_launch"].found == "on demand: aie-agent probe --engine chat --set cuda_launch"


def test_what_a_window_saw() -> None:
    process = m.ProcessReport(engine="chat", tgid=1, cuda=m.Cuda(launches={"cuLaunchKernel": 300}))
    reports = tuple(m.Report(period_s=1.0, processes=(process,)) for _ in range(2))
    closed = m.WindowClosed(set="cuda_launch", engine="chat", open_s=2.0, hits=600, stolen_s=0.02)
    answer = probe.answer_of(Window(READY, reports, closed), "cuda_launch", "chat")
    assert list(probe.lines(answer)) == [
        "aie_cuda_launches_total{call=cuLaunchKernel}: 600, 300 a second",
        "taken from chat: 20 ms in 2.0 s (1 % of one CPU), 600 hits",
    ]


def test_collections_are_shown_with_their_quantiles() -> None:
    slots = [0] * (len(m.HISTOGRAM_BOUNDS_S) + 1)
    slots[10], slots[20] = 99, 1
    gc = m.Histogram(slots=tuple(slots), total=1.2)
    report = m.Report(period_s=1.0, processes=(m.ProcessReport(engine="chat", tgid=1, gc=gc),))
    closed = m.WindowClosed(set="gc", engine="chat", open_s=1.0, hits=200, stolen_s=0.001)
    (seen,) = probe.answer_of(Window(READY, (report,), closed), "gc", "chat").seen
    assert seen.times == 100
    assert seen.p50_seconds is not None
    assert m.HISTOGRAM_BOUNDS_S[9] < seen.p50_seconds <= m.HISTOGRAM_BOUNDS_S[10]
    assert seen.total_seconds == 1.2


def test_a_window_that_never_opened_says_why() -> None:
    closed = m.WindowClosed(set="gc", engine="chat", open_s=0.0, hits=0, stolen_s=0.0, reason="no USDT probes in the interpreter")
    assert list(probe.lines(probe.answer_of(Window(READY, (), closed), "gc", "chat"))) == ["gc: no USDT probes in the interpreter"]


def test_the_command_asks_its_child_for_a_window(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aie_ebpf.prerequisites.check", lambda: MET)
    monkeypatch.setattr("aie_agent.commands.probe.run", lambda arguments: _RUN(arguments, [*FAKE, "works"]))
    assert main(["probe", "--pid", str(os.getppid()), "--set", "cuda_launch", "--seconds", "1", "--json"]) == 0
    answer = msgspec.json.decode(capsys.readouterr().out)
    assert (answer["hits"], answer["stolen_s"], answer["seen"]) == (7, 0.02, [])


_RUN = probe.run


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--pid", "0", "--set", "gc"], "pid-0: no process of it lives"),
        (["--engine", "chat", "--set", "gc", "--agent", "http://127.0.0.1:1"], "no agent answers at http://127.0.0.1:1"),
    ],
)
def test_who_is_not_there(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aie_ebpf.prerequisites.check", lambda: MET)
    assert main(["probe", *arguments]) == 1
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "121", "x"])
def test_how_long_is_bounded(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["probe", "--pid", "1", "--set", "gc", "--seconds", seconds])
    assert ended.value.code == 2
    assert "--seconds" in capsys.readouterr().err
