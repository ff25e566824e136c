"""What eBPF needs of a host, on file systems made for it."""

from __future__ import annotations

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
    for name in ("privilege", "kernel types (BTF)", "tracefs", "kernel headers"):
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
        "sys/kernel/btf/vmlinux",
        "sys/kernel/tracing/events",
        "usr/lib/python3/dist-packages/bcc",
        "usr/local/lib/aie/kernel-source/include",
    )
    assert all(row.met for row in rows.values()), rows


def test_named_headers_go_before_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path / "nowhere"))
    assert not host(tmp_path, ROOT_CAPABILITIES, "usr/local/lib/aie/kernel-source/include")["kernel headers"].met
