"""What eBPF needs of a host, on file systems made for it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from aie_ebpf.prerequisites import Prerequisite, check

ROOT_CAPABILITIES = "CapEff:\t000001ffffffffff\n"
NO_CAPABILITIES = "CapEff:\t0000000000000000\n"
BPF_PERFMON_PTRACE = f"CapEff:\t{1 << 39 | 1 << 38 | 1 << 19:016x}\n"
BPF_ALONE = f"CapEff:\t{1 << 39:016x}\n"


def host(root: Path, status: str, *paths: str) -> dict[str, Prerequisite]:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text("Name:\tx\n" + status)
    for path in paths:
        (root / path).mkdir(parents=True)
    return {row.name: row for row in check(root)}


def test_a_bare_host_lacks_everything_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    rows = host(tmp_path, NO_CAPABILITIES)
    for name in ("privilege", "tracefs", "kernel headers"):
        assert not rows[name].met
        assert rows[name].remedy


@pytest.mark.parametrize(("status", "met"), [(ROOT_CAPABILITIES, True), (BPF_PERFMON_PTRACE, True), (BPF_ALONE, False)])
def test_privilege(tmp_path: Path, status: str, met: bool) -> None:
    assert host(tmp_path, status)["privilege"].met is met


def test_a_host_that_was_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    rows = host(
        tmp_path,
        ROOT_CAPABILITIES,
        "sys/kernel/tracing/events",
        "usr/lib/python3/dist-packages/bcc",
        "usr/local/lib/aie/kernel-source/include",
    )
    assert all(row.met for row in rows.values()), rows


def test_named_headers_go_before_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path / "nowhere"))
    assert not host(tmp_path, ROOT_CAPABILITIES, "usr/local/lib/aie/kernel-source/include")["kernel headers"].met


@pytest.mark.parametrize(
    ("modes", "met", "found"),
    [
        (None, True, "none"),
        ("[none] integrity confidentiality\n", True, "none"),
        ("none [integrity] confidentiality\n", True, "integrity"),
        ("none integrity [confidentiality]\n", False, "confidentiality"),
    ],
)
def test_lockdown(tmp_path: Path, modes: str | None, met: bool, found: str) -> None:
    if modes is not None:
        (tmp_path / "sys/kernel/security").mkdir(parents=True)
        (tmp_path / "sys/kernel/security/lockdown").write_text(modes)
    row = host(tmp_path, ROOT_CAPABILITIES)["kernel lockdown"]
    assert (row.met, row.found) == (met, found)


@pytest.mark.parametrize(("inode", "met"), [("4026531836", True), ("4026532201", False), (None, True)])
def test_pid_namespace(tmp_path: Path, inode: str | None, met: bool) -> None:
    if inode is not None:
        (tmp_path / "proc/self/ns").mkdir(parents=True)
        (tmp_path / "proc/self/ns/pid").symlink_to(f"pid:[{inode}]")
    (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/self/status").write_text(ROOT_CAPABILITIES)
    row = next(row for row in check(tmp_path) if row.name == "pid namespace")
    assert row.met is met
    assert "hostPID" in row.remedy


def test_a_pid_namespace_of_ones_own_is_seen_by_a_real_process() -> None:
    """unshare as root: what the kernel says, not a file made for the test."""
    code = "from aie_ebpf import prerequisites as p; print(next(row.found for row in p.check() if row.name == 'pid namespace'))"
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0 and os.geteuid() != 0:
        pytest.skip("unshare needs root")
    assert done.stdout == "one of the agent's own\n", done.stderr


def test_the_architecture_is_this_machines() -> None:
    row = next(row for row in check() if row.name == "architecture")
    assert row.found == platform.machine()
    assert row.met is (row.found in ("x86_64", "aarch64"))
