"""Which pod a process belongs to, by the paths that the kubelet and container runtimes give control groups."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.sources.containers import pod_uid

UID = "0a1b2c3d-4e5f-6789-abcd-ef0123456789"
ESCAPED = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
HEX = "c" * 64


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        # cgroupfs, v2 and v1
        (f"0::/kubepods/besteffort/pod{UID}/{HEX}", UID),
        (f"0::/kubepods/pod{UID}/{HEX}", UID),
        (f"12:memory:/kubepods/burstable/pod{UID}/{HEX}\n11:cpu,cpuacct:/kubepods/burstable/pod{UID}/{HEX}", UID),
        (f"0::/\n5:cpu,cpuacct:/kubepods/pod{UID}/{HEX}", UID),  # hybrid: the unified hierarchy has no path
        # systemd, v2 and v1, guaranteed and burstable
        (f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/cri-containerd-{HEX}.scope", UID),
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/crio-{HEX}.scope", UID),
        (f"4:memory:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{ESCAPED}.slice/docker-{HEX}.scope", UID),
        (f"0::/kubepods.slice/kubepods-pod{UID.replace('-', chr(92) + 'x2d')}.slice/crio-{HEX}.scope", UID),
        # below a slice of the kubelet's own (kind), and of containerd in another notation
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{ESCAPED}.slice/cri-containerd-{HEX}.scope", UID),
        (f"0::/docker/{HEX}/kubelet/kubepods/burstable/pod{UID}/{HEX}", UID),
        (f"0::/system.slice/containerd.service/kubepods-burstable-pod{ESCAPED}.slice:cri-containerd:{HEX}", UID),
        # static pods, whose UID is a hash
        (f"0::/kubepods/burstable/pod{STATIC}/{HEX}", STATIC),
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/crio-{HEX}.scope", STATIC),
        # a cluster within a pod: that of the innermost container, which is the one that is shown
        (f"0::/kubepods/pod{STATIC}/{HEX}/kubelet/kubepods/pod{UID}/{HEX}", UID),
    ],
)
def test_a_pod(cgroup: str, expected: str) -> None:
    assert pod_uid(cgroup.encode()) == expected
    assert pod_uid(cgroup.encode() + b"\n") == expected


@pytest.mark.parametrize(
    "cgroup",
    [
        "",
        "0::/",
        "0::/system.slice/kubelet.service",
        "0::/kubepods.slice",
        f"0::/docker/{HEX}",
        f"0::/machine.slice/libpod_pod_{HEX}/libpod-{HEX}.scope",  # a pod of Podman's
        f"0::/user.slice/pod{UID}",  # anybody may call a group so
        f"0::/kubepods/burstable/pod{UID}ff/{HEX}",
        f"0::/kubepods/burstable\n1:cpu:/pod{UID}",
    ],
)
def test_no_pod(cgroup: str) -> None:
    assert pod_uid(cgroup.encode()) is None


@given(st.uuids(), st.sampled_from(["", "burstable", "besteffort"]), st.booleans())
def test_every_uid_comes_back(uid: uuid.UUID, quality: str, is_systemd: bool) -> None:
    slices = f"kubepods-{quality}.slice/" if quality else ""
    slice_ = f"kubepods{'-' + quality if quality else ''}-pod{str(uid).replace('-', '_')}.slice"
    path = f"/kubepods.slice/{slices}{slice_}/crio-{HEX}.scope" if is_systemd else f"/kubepods/{quality}/pod{uid}/{HEX}"
    assert pod_uid(f"0::{path}\n".encode()) == str(uid)


@given(st.binary())
def test_any_bytes(content: bytes) -> None:
    assert pod_uid(content) is None or b"kubepods" in content
