"""What a process calls its GPUs, by CUDA's rules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes.proc_tree import ProcTree
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.sources.nvml.cuda_devices import GpuName, numbering, parse_environ
from aie_agent.sources.nvml.device_files import DeviceFiles, read_device_files
from aie_agent.sources.procfs import Procfs

# The numbers of their files in /dev follow another order than NVML's on some hosts.
GPUS = [GpuName(number, f"GPU-{letter}0000000-1111", "H100", number + 4) for number, letter in enumerate("abcd")]
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


def files(*minors: int) -> DeviceFiles:
    return DeviceFiles(frozenset(minors))


def test_names_are_hooks_names() -> None:
    found = numbering({"CUDA_VISIBLE_DEVICES": "3,1"}, GPUS)
    assert [found.name(number) for number in range(4)] == [None, "cuda1", None, "cuda0"]


def test_a_container_counts_what_it_was_given() -> None:
    environ = {"NVIDIA_VISIBLE_DEVICES": "GPU-d0000000-1111,GPU-b0000000-1111"}
    assert numbering(environ, GPUS, in_container=True).order == (1, 3), "in the order of the bus"
    assert numbering(environ, GPUS).order == (0, 1, 2, 3), "outside of containers the variable means nothing"
    both = environ | {"CUDA_VISIBLE_DEVICES": "1"}
    assert numbering(both, GPUS, in_container=True).order == (3,)


@pytest.mark.parametrize("listed", ["all", "", "void", "none", "/var/run/nvidia-container-devices", "MIG-1"])
def test_where_a_container_lists_none_its_device_files_do(listed: str) -> None:
    """CDI, volume mounts, GKE: the variable is what the image brought, or says how the devices come."""
    environ = {"NVIDIA_VISIBLE_DEVICES": listed}
    found = numbering(environ, GPUS, in_container=True, files=files(5, 7))
    assert (found.order, found.doubt) == ((1, 3), None)
    assert found.name(3) == "cuda1"
    assert numbering(environ | {"CUDA_VISIBLE_DEVICES": "1"}, GPUS, in_container=True, files=files(5, 7)).order == (3,)
    unseen = numbering(environ, GPUS, in_container=True)
    assert unseen.order == (0, 1, 2, 3)
    assert "cannot be seen" in (unseen.doubt or "")
    assert numbering(environ, GPUS[:1], in_container=True).doubt is None, "there is but one"


def test_device_files_are_believed_more_than_a_variable() -> None:
    environ = {"NVIDIA_VISIBLE_DEVICES": "2,3"}
    assert numbering(environ, GPUS, in_container=True, files=files(6, 7)) == ((2, 3), None)
    privileged = numbering(environ, GPUS, in_container=True, files=files(4, 5, 6, 7))
    assert privileged.order == (0, 1, 2, 3)
    assert "device files" in (privileged.doubt or "")


def test_open_files_stand_for_device_files_that_are_not_shown() -> None:
    found = numbering({}, GPUS, in_container=True, files=DeviceFiles(frozenset({5}), only_open=True))
    assert found.order == (1,)
    assert "has open" in (found.doubt or "")
    everything = numbering({}, GPUS, in_container=True, files=DeviceFiles(frozenset({4, 5, 6, 7}), only_open=True))
    assert (everything.order, everything.doubt) == ((0, 1, 2, 3), None)


def test_device_files_of_no_gpu_that_is_known_say_nothing() -> None:
    found = numbering({}, GPUS, in_container=True, files=files(99))
    assert found.order == (0, 1, 2, 3)
    assert found.doubt is not None


def test_device_files_of_a_process(tmp_path: Path) -> None:
    proc = ProcTree(tmp_path / "proc")
    procfs = Procfs(proc.root)
    assert read_device_files(procfs, 300) is None
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "null"):
        proc.write("/".join(("200", "root", "dev", name)), "")
    assert read_device_files(procfs, 200) == files(0, 12)
    (proc.root / "300/fd").mkdir(parents=True)
    for number, target in enumerate(("/dev/nvidiactl", "/dev/nvidia3", "/dev/nvidia3", "socket:[1]", "/home/nvidia9")):
        (proc.root / f"300/fd/{number}").symlink_to(target)
    assert read_device_files(procfs, 300) == DeviceFiles(frozenset({3}), only_open=True)
    proc.write("400/root", "no directory")
    assert read_device_files(procfs, 400) is None


def test_device_files_of_a_real_process() -> None:
    """Of this one: no more than its /dev has."""
    found = read_device_files(Procfs(), os.getpid())
    there = {name for name in os.listdir("/dev") if name.removeprefix("nvidia").isdigit()}
    assert {f"nvidia{minor}" for minor in (found.minors if found else ())} == there


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
