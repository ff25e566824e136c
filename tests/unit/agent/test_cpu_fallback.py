"""When an engine that computes on the CPU beside idle GPUs is a finding, and when it is none."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.engine_world import EngineWorld

from aie_agent.analysis.engine_causes.cpu_fallback import cpu_fallback
from aie_telemetry.api import Gpu, GpuFault, GpuProcess
from aie_telemetry.catalogue import CATALOGUE

UTILIZATION = "aie_gpu_utilization_ratio gpu=0 uuid=u"
BUSY_CPU = {"aie_process_cpu_seconds_total engine=e mode=user": 6.0, UTILIZATION: 0.0}


def gpu(**more: Any) -> Gpu:
    return Gpu(index=0, name="H100", uuid="u", pci_bus_id="b", **{"up": True, **more})


def info(kind: str, device: str = "") -> str:
    return f"aie_engine_info device={device} dtype= engine=e kind={kind} model=m revision= version="


def world(gpus: list[Gpu], kind: str = "vllm", cpu: dict[str, float] = BUSY_CPU, running: float = 2.0) -> EngineWorld:
    made = EngineWorld(gpus=gpus)
    made.serve(20, requests_running=running, more={**cpu, info(kind): 1.0})
    return made


def test_vllm_on_the_cpu_beside_an_idle_gpu() -> None:
    finding = world([gpu()]).engine(cpu_fallback)
    assert finding is not None
    assert (finding.cause, finding.subject, finding.severity) == ("cpu_fallback", "e", "warning")
    assert "6.0 CPU cores" in finding.evidence[0].text
    assert "torch.cuda.is_available()" in finding.advice
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


def test_an_engine_that_said_cuda_before_it_was_restarted() -> None:
    made = EngineWorld(gpus=[gpu()])
    made.serve(20, requests_running=2, more={**BUSY_CPU, info("aie-engine", "cuda:0"): 1.0})
    assert made.engine(cpu_fallback) is None
    made.serve(20, requests_running=2, more={**BUSY_CPU, info("aie-engine", "cpu"): 1.0})
    finding = made.engine(cpu_fallback)
    assert finding is not None
    assert "said cuda before" in finding.evidence[0].text


NORMAL: dict[str, dict[str, Any]] = {
    "no GPU": {"gpus": []},
    "a GPU that is lost": {"gpus": [gpu(up=False)]},
    "a simulated GPU": {"gpus": [gpu(simulated=True)]},
    "it is on the GPU": {"gpus": [gpu(processes=(GpuProcess(tgid=1, command="vllm", engine="e"),))]},
    "nobody can tell who is on the GPU": {"gpus": [gpu(faults=(GpuFault(cause="gpu_pid_namespace", text="hidden"),))]},
    "a busy GPU": {"gpus": [gpu()], "cpu": {**BUSY_CPU, UTILIZATION: 0.6}},
    "a GPU that does a little": {"gpus": [gpu()], "cpu": {**BUSY_CPU, UTILIZATION: 0.02}},
    "a GPU that does not say how busy it is": {"gpus": [gpu()], "cpu": {"aie_process_cpu_seconds_total engine=e mode=user": 6.0}},
    "no request": {"gpus": [gpu()], "running": 0.0},
    "hardly any CPU": {"gpus": [gpu()], "cpu": {**BUSY_CPU, "aie_process_cpu_seconds_total engine=e mode=user": 0.9}},
    "made for CPUs, too": {"gpus": [gpu()], "kind": "llama.cpp"},
    "the reference engine, on a CPU as asked": {"gpus": [gpu()], "kind": "aie-engine"},
}


@pytest.mark.parametrize("name", NORMAL)
def test_what_is_normal(name: str) -> None:
    assert world(**NORMAL[name]).engine(cpu_fallback) is None


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert EngineWorld(gpus=[gpu()]).engine(cpu_fallback) is None
