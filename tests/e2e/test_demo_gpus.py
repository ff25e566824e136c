"""The simulated GPUs of `make demo GPUS=8`, through the real agent and aie-top: each step of the minute is seen, and told."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aie_agent.config_values import SimulatedGpus
from aie_telemetry import api
from demo.__main__ import not_seen
from demo.gpus import WALK, Gpus, simulated
from tests.e2e.programs import BIN, Program, eventually, snapshot

# What the agent must say of a GPU after each step, by the step's first words.
SEEN: dict[str, Callable[[api.Gpu], bool]] = {
    "gets too hot": lambda gpu: {"hw_thermal", "hw_slowdown"} <= set(gpu.clock_events),
    "reports XID 94": lambda gpu: gpu.xids.get("94") == 1,
    "negotiates 8": lambda gpu: gpu.pcie_width == 8,
    "falls off the bus": lambda gpu: not gpu.up and gpu.reason == "lost",
    "is back": lambda gpu: gpu.up,
    "has cooled down": lambda gpu: "hw_thermal" not in gpu.clock_events,
    "has all its lanes": lambda gpu: gpu.pcie_width == 16,
}

TROUBLES = ("simulated GPU 6: lost", "simulated GPU 2: too hot", "simulated GPU 4: PCIe", "simulated GPU 5: XID 94")
"""What aie-top tells when all of them are there."""


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Gpus]:
    with simulated(SimulatedGpus("8:H100"), tmp_path) as gpus:
        yield gpus


@pytest.fixture
def agent(tmp_path: Path, gpus: Gpus) -> Iterator[Program]:
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/s.sock"\nudp = "off"\n[gpu]\nexpected = 8\n'
        "[discovery]\nenabled = false\n"
    )
    program = Program("aie-agent", ["run", "--no-bpf", "--config", str(config)], tmp_path / "agent.log", gpus.environment)
    try:
        yield program
    finally:
        program.stop()


def rows(agent: Program) -> tuple[api.Gpu, ...]:
    found = snapshot(agent.url())  # before its first look the agent has none
    return () if found is None else found.gpus


def report(agent: Program) -> str:
    told = subprocess.run(
        [BIN / "aie-top", "--once", "--connect", agent.url()], capture_output=True, text=True, check=True, timeout=60
    )
    return told.stdout


def test_every_step_of_the_minute_is_seen_and_nothing_is_wrong_before_it(gpus: Gpus, agent: Program) -> None:
    eventually(lambda: len(rows(agent)) == 8 and all(gpu.utilization_ratio is not None for gpu in rows(agent)), agent)
    assert all(gpu.simulated and gpu.up for gpu in rows(agent))
    eventually(lambda: all(gpu.processes for gpu in rows(agent)), agent)
    assert "GPU" not in report(agent).partition("GPUS")[0]
    for step in WALK:
        step.do(gpus.controller, step.gpu)
        seen = next(is_seen for words, is_seen in SEEN.items() if step.what.startswith(words))
        eventually(lambda seen=seen, gpu=step.gpu: seen(rows(agent)[gpu]), agent)
        if step.what.startswith("falls off"):
            # The agent tells of heat once it has lasted for some seconds, and aie-top leaves that to it.
            text = eventually(lambda: (told := report(agent)) and all(words in told for words in TROUBLES) and told, agent)
            assert "└ simulated-trainer-7" in text
    assert all(gpu.up for gpu in rows(agent))


def test_the_minute_is_in_order_and_all_troubles_are_there_when_the_report_is_taken() -> None:
    times = [step.at_s for step in WALK]
    assert times == sorted(times)
    assert times[-1] < 60
    assert max(step.at_s for step in WALK if step.what.startswith(("gets", "reports", "negotiates", "falls"))) < 30
    assert min(step.at_s for step in WALK if step.what.startswith(("is back", "has"))) > 30
    assert all(any(step.what.startswith(words) for words in SEEN) for step in WALK)


def test_advice_is_told_only_with_what_is_not_seen() -> None:
    check = [
        "ok        engine  a",
        "   -> faster so",
        "not seen  eBPF  no privilege",
        "   -> run as root",
        "wrong     GPU 0",
        "   -> move it",
    ]
    assert not_seen(check) == ["not seen  eBPF  no privilege", "   -> run as root"]
