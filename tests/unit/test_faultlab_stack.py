"""Which alerts `make stack` takes for the fault's, on a host that others use as well."""

from __future__ import annotations

import pytest

from tests.faultlab.__main__ import chosen
from tests.faultlab.stack import is_of

FINDING = {"component": "finding"}


@pytest.mark.parametrize(
    ("fault", "labels"),
    [
        ("stopped", {"component": "engine", "cause": "engine_stopped"}),
        ("cpu-neighbour", {"component": "host", "cause": "cpu_starved"}),
        ("thermal", {"component": "gpu"}),
        ("tenant", FINDING | {"cause": "gpu_neighbour"}),
    ],
)
def test_of_the_fault(fault: str, labels: dict[str, str]) -> None:
    (broken,) = chosen([fault])
    assert is_of(broken, labels)


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({"component": "host"}, id="somebody on the host was killed for lack of memory"),
        pytest.param({"component": "host", "cause": "cpu_starved"}, id="others take its CPUs"),
        pytest.param({"component": "slo"}, id="an objective is missed"),
        pytest.param({"component": "agent"}, id="the agent restarts"),
        pytest.param({"component": "engine", "cause": "queue_saturation"}, id="its engine has another fault"),
        pytest.param(FINDING | {"cause": "disk_stall"}, id="another finding"),
        pytest.param({"component": "engine", "cause": "engine_stopped", "engine": "vllm"}, id="another engine"),
    ],
)
def test_of_something_else(labels: dict[str, str]) -> None:
    (stopped,) = chosen(["stopped"])
    assert not is_of(stopped, labels)


def test_a_null_fault_has_no_cause() -> None:
    (null,) = chosen(["release"])
    assert not is_of(null, {"component": "memory", "cause": "memory_leak"})
