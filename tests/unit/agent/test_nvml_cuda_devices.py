"""What a process calls its GPUs, by CUDA's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.sources.nvml.cuda_devices import GpuName, numbering, parse_environ

GPUS = [GpuName(number, f"GPU-{letter}0000000-1111", "H100") for number, letter in enumerate("abcd")]
UNLIKE = [GPUS[0], GPUS[1]._replace(model="A100")]


@pytest.mark.parametrize(
    ("environ", "order"),
    [
        ({}, (0, 1, 2, 3)),
        ({"CUDA_VISIBLE_DEVICES": "2"}, (2,)),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, (3, 1)),
        ({"CUDA_VISIBLE_DEVICES": " 3 , 1 "}, (3, 1)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-c0000000-1111,GPU-a"}, (2, 0)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, ()),  # names four of them, so none
        ({"CUDA_VISIBLE_DEVICES": "9" * 5000}, ()),
    ],
)
def test_cuda_visible_devices(environ: dict[str, str], order: tuple[int, ...]) -> None:
    found = numbering(environ, GPUS)
    assert (found.order, found.doubt) == (order, None)


def test_names_are_hooks_names() -> None:
    found = numbering({"CUDA_VISIBLE_DEVICES": "3,1"}, GPUS)
    assert [found.name(number) for number in range(4)] == [None, "cuda1", None, "cuda0"]


def test_a_container_counts_what_it_was_given() -> None:
    environ = {"NVIDIA_VISIBLE_DEVICES": "GPU-d0000000-1111,GPU-b0000000-1111"}
    assert numbering(environ, GPUS, in_container=True).order == (1, 3), "in the order of the bus"
    assert numbering(environ, GPUS).order == (0, 1, 2, 3), "outside of containers the variable means nothing"
    both = environ | {"CUDA_VISIBLE_DEVICES": "1"}
    assert numbering(both, GPUS, in_container=True).order == (3,)
    for everything in ("all", "", "void", "none"):
        assert numbering({"NVIDIA_VISIBLE_DEVICES": everything}, GPUS, in_container=True).order == (0, 1, 2, 3)


def test_what_cannot_be_known_is_said() -> None:
    assert numbering(None, GPUS).order == (0, 1, 2, 3)
    assert "may not be read" in (numbering(None, GPUS).doubt or "")
    assert "CUDA_DEVICE_ORDER" in (numbering({}, UNLIKE).doubt or "")
    assert numbering({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, UNLIKE).doubt is None


def test_an_environment_of_proc() -> None:
    content = b"A=1\0CUDA_VISIBLE_DEVICES=0,1\0EMPTY=\0no equals\0A=2\0X=a=b\0\xff=\xfe\0"
    found = parse_environ(content)
    assert (found["A"], found["EMPTY"], found["X"], found["CUDA_VISIBLE_DEVICES"]) == ("1", "", "a=b", "0,1")


@given(st.text(), st.text(), st.booleans())
def test_no_environment_raises_or_invents_a_gpu(visible: str, given_: str, in_container: bool) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": given_}
    order = numbering(environ, GPUS, in_container=in_container).order
    assert len(set(order)) == len(order)
    assert set(order) <= {0, 1, 2, 3}


@given(st.binary())
def test_any_bytes_are_an_environment(content: bytes) -> None:
    assert all("\0" not in name for name in parse_environ(content))
