"""NVLinks: which may be inactive, and which errors a link that is well does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aie_agent.analysis.gpu_checklist import Check, check_gpu
from aie_agent.analysis.links import Linked, error_problem, has_built_in_links, inactive_problem
from aie_agent.outputs.gpus import gpus
from aie_agent.samples import Batch, Point
from aie_agent.sources.nvml.facts import GpuFacts
from aie_agent.sources.nvml.nvlinks import NvLinks
from aie_agent.sources.nvml.rows import ROWS
from aie_agent.store import Store
from aie_telemetry.catalogue import CATALOGUE

H100 = "NVIDIA H100 80GB HBM3"
CARD = "NVIDIA A100 80GB PCIe"


@pytest.mark.parametrize(
    "name",
    [
        H100, "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", "NVIDIA H200", "NVIDIA H20", "NVIDIA H800", "NVIDIA B200",
        "NVIDIA B300 SXM6 AC", "NVIDIA GB200",
    ],
)  # fmt: skip
def test_boards_with_built_in_links(name: str) -> None:
    assert has_built_in_links(name)


@pytest.mark.parametrize(
    "name",
    [
        CARD, "NVIDIA A100-PCIE-40GB", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H800 PCIe", "NVIDIA A30",
        "NVIDIA L40S", "NVIDIA GeForce RTX 3090", "NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e", "NVIDIA GB10", "",
    ],
)  # fmt: skip
def test_boards_that_may_go_without(name: str) -> None:
    assert not has_built_in_links(name)


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        (Linked(16, 2), "2 of 18 NVLinks are not active"),
        (Linked(16, 2, H100, 16, is_divided=True), "2 of 18 NVLinks are not active"),
        (Linked(0, 18, H100, 18), "none of 18 NVLinks is active, and another NVIDIA H100 80GB HBM3 has 18"),
        (Linked(0, 18, H100, 0), "this board has them built in: look whether the fabric manager runs"),
        (Linked(0, 18, H100), "this board has them built in"),
        (Linked(0, 12, CARD, 4), "none of 12 NVLinks is active, and another NVIDIA A100 80GB PCIe has 4"),
    ],
)
def test_nvlinks_that_should_be_active(links: Linked, expected: str) -> None:
    assert expected in (inactive_problem(links) or "")


@pytest.mark.parametrize(
    "links",
    [
        Linked(18, 0, H100, 18),
        Linked(0, 0, H100, 18),
        Linked(),
        Linked(18, None),
        Linked(0, 12, CARD),
        Linked(0, 12, CARD, 0),
        Linked(0, 18, H100, is_only_gpu=True),
        Linked(0, 12, "NVIDIA A100-SXM4-80GB", 12, is_divided=True),
    ],
)
def test_nvlinks_that_are_as_they_should_be(links: Linked) -> None:
    """The null: no bridges, a virtual machine with one GPU, MIG, and what is not known. The rule is exact."""
    assert inactive_problem(links) is None


@pytest.mark.parametrize(
    ("per_second", "expected"),
    [
        ({"replay": 0.1}, "replay 0.1/s"),
        ({"recovery": 0.02, "crc_flit": 5.0}, "(recovery 0.02/s)"),
        ({"crc_flit": 100.0}, "crc flit 100/s"),
        ({"malformed_packet": 0.02}, "malformed packet 0.02/s"),
        ({"buffer_overrun": 1.0, "symbol": 1e6}, "(buffer overrun 1/s)"),
        ({"receive": 0.1, "receive_general": 0.1, "receive_remote": 0.1}, "receive general 0.1/s, receive 0.1/s, receive remote"),
        ({"recovery_failed": 0.02}, "recovery failed 0.02/s"),
        ({"link_integrity": 0.02}, "link integrity 0.02/s"),
        ({"effective": 0.02}, "effective 0.02/s"),
    ],
)
def test_nvlink_errors_that_rise(per_second: dict[str, float], expected: str) -> None:
    assert expected in (error_problem(per_second) or "")


@pytest.mark.parametrize(
    "per_second",
    [
        {},
        {"replay": 0.0, "recovery": 0.0},
        {"crc_flit": 99.0, "crc_data": 50.0},
        {"symbol": 1e6, "transmit_discard": 3.0},
        dict.fromkeys((row.labels[0] for row in ROWS if row.metric == "aie_gpu_nvlink_errors_total"), 0.0),
        {"new": 9e9},
    ],
)
def test_nvlink_errors_of_a_link_that_is_well(per_second: dict[str, float]) -> None:
    assert error_problem(per_second) is None


def causes(*hosts: tuple[str, float, float]) -> list[list[str]]:
    """Of GPUs with this name and so many links active and inactive: the causes of each, by way of the store."""
    store = Store(max_series=1000, retention_s=300)
    points = []
    for at, (name, active, inactive) in enumerate(hosts):
        for metric, value, labels in (
            ("aie_gpu_up", 1.0, {"reason": ""}),
            ("aie_gpu_info", 1.0, {"name": name}),
            ("aie_gpu_nvlink_links", active, {"state": "active"}),
            ("aie_gpu_nvlink_links", inactive, {"state": "inactive"}),
        ):
            points.append(Point(metric, CATALOGUE[metric].kind, tuple(sorted((labels | {"gpu": str(at)}).items())), value))
    store.apply(Batch("nvml", 100.0, points))
    return [[fault.cause for fault in row.faults] for row in gpus(store, 100.0, 60.0)]


def test_a_gpu_is_judged_beside_its_neighbours() -> None:
    wrong = ["gpu_nvlink_inactive"]
    assert causes((H100, 18, 0), (H100, 0, 18)) == [[], wrong]
    assert causes((H100, 0, 18), (H100, 0, 18)) == [wrong, wrong]
    assert causes((CARD, 4, 0), (CARD, 0, 12)) == [[], wrong]


def test_gpus_without_links_that_are_well() -> None:
    assert causes((H100, 0, 18)) == [[]]
    assert causes((CARD, 0, 12), (CARD, 0, 12)) == [[], []]
    assert causes((CARD, 0, 12), (H100, 18, 0)) == [[], []], "of another model"


def facts(name: str, active: int, inactive: int, **changes: object) -> GpuFacts:
    return replace(GpuFacts(index=0, name=name, nvlinks=NvLinks(active, inactive, {}, active, {})), **changes)  # type: ignore[arg-type]


def nvlink(gpu: GpuFacts, *others: GpuFacts) -> Check:
    (found,) = (check for check in check_gpu(gpu, 1, others) if check.what == "NVLink")
    return found


def test_check_judges_as_the_agent_does() -> None:
    assert "another NVIDIA H100 80GB HBM3 has 18" in nvlink(facts(H100, 0, 18), facts(H100, 18, 0)).remedy
    assert "built in" in nvlink(facts(H100, 0, 18), facts(H100, 0, 18)).remedy
    assert nvlink(facts(H100, 0, 18), facts(H100, 0, 18)).found == "0 of 18 links active"


@pytest.mark.parametrize(
    ("gpu", "others", "found"),
    [
        (facts(CARD, 0, 12), [facts(CARD, 0, 12)], "0 of 12 links active: no bridge"),
        (facts(CARD, 0, 12), [facts(H100, 18, 0)], "0 of 12 links active: no bridge"),
        (facts(H100, 0, 18), [], "0 of 18 links active: no other GPU here answers"),
        (facts(H100, 0, 18, mig=True), [facts(H100, 18, 0)], "0 of 18 links active: MIG divides it"),
    ],
)
def test_check_finds_nothing_wrong_with_what_is_normal(gpu: GpuFacts, others: list[GpuFacts], found: str) -> None:
    check = nvlink(gpu, *others)
    assert (check.ok, check.found) == (True, found)
