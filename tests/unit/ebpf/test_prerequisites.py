"""What eBPF needs of a host, on file systems made for it."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from aie_ebpf import trials
from aie_ebpf.prerequisites import Prerequisite, check, kernel_source, unmet
from aie_ebpf.trials import Trial

ROOT_CAPABILITIES = "CapEff:\t000001ffffffffff\n"
NO_CAPABILITIES = "CapEff:\t0000000000000000\n"
BPF_PERFMON_PTRACE = f"CapEff:\t{1 << 39 | 1 << 38 | 1 << 19:016x}\n"
RESTORE = f"CapEff:\t{1 << 40 | 1 << 39 | 1 << 38 | 1 << 19:016x}\n"
BPF_ALONE = f"CapEff:\t{1 << 39:016x}\n"


def host(root: Path, status: str, *paths: str) -> dict[str, Prerequisite]:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text("Name:\tx\n" + status)
    for path in paths:
        (root / path).mkdir(parents=True)
    return {row.name: row for row in check(root, ())}


def headers(tree: Path) -> Path:
    """As much of a kernel's headers as BCC cannot do without."""
    (tree / "include/linux").mkdir(parents=True)
    (tree / "include/linux/kconfig.h").touch()
    return tree


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
    headers(tmp_path / "usr/local/lib/aie/kernel-source")
    rows = host(
        tmp_path,
        ROOT_CAPABILITIES,
        "sys/kernel/tracing/events",
        "sys/bus/event_source/devices/uprobe/type",
        "usr/lib/python3/dist-packages/bcc",
    )
    assert all(row.met for row in rows.values()), rows


def test_named_headers_go_before_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    headers(tmp_path / "usr/local/lib/aie/kernel-source")
    own = headers(tmp_path / "lib/modules" / platform.release() / "build")
    assert kernel_source(tmp_path) == own
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(headers(tmp_path / "named")))
    assert kernel_source(tmp_path) == tmp_path / "named"


def test_named_headers_that_are_not_there_hide_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit names a place that a host may not have."""
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path / "nowhere"))
    assert kernel_source(tmp_path) is None
    ours = headers(tmp_path / "usr/local/lib/aie/kernel-source")
    assert kernel_source(tmp_path) == ours
    assert host(tmp_path, ROOT_CAPABILITIES)["kernel headers"][:3] == ("kernel headers", True, str(ours))


def test_half_a_tree_of_headers_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's /lib/modules/RELEASE/build: BCC compiles nothing against it."""
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    (tmp_path / "lib/modules" / platform.release() / "build/include/generated").mkdir(parents=True)
    assert kernel_source(tmp_path) is None
    ours = headers(tmp_path / "usr/local/lib/aie/kernel-source")
    assert kernel_source(tmp_path) == ours


def test_bcc_is_told_of_the_headers_that_are_there(bpf: None, tmp_path: Path) -> None:
    """BCC itself takes what is named, there or not: it compiles a program here though the name leads nowhere."""
    code = "from aie_ebpf.door import Bcc; Bcc().compile_text('#include <uapi/linux/ptrace.h>').close()"
    environment = os.environ | {"BCC_KERNEL_SOURCE": str(tmp_path / "nowhere")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("status", "met"), [(ROOT_CAPABILITIES, True), (BPF_PERFMON_PTRACE, False), (RESTORE, True)])
def test_without_a_capability_files_that_were_replaced_are_not_seen(tmp_path: Path, status: str, met: bool) -> None:
    """That costs a part, not all."""
    row = host(tmp_path, status)["mapped files (map_files)"]
    assert (row.met, row.needed) == (met, False)
    assert "CAP_CHECKPOINT_RESTORE" in row.remedy
    assert row not in unmet([row])


def test_tracefs_that_is_mounted_and_cannot_be_read_is_not_to_be_mounted(tmp_path: Path) -> None:
    rows = host(tmp_path, ROOT_CAPABILITIES)
    assert (rows["tracefs"].met, rows["tracefs"].found) == (False, "not mounted")
    (tmp_path / "proc/self/mounts").write_text("proc /proc proc rw 0 0\ntracefs /sys/kernel/tracing tracefs rw 0 0\n")
    row = next(row for row in check(tmp_path, ()) if row.name == "tracefs")
    assert not row.met
    assert row.found.startswith("mounted at /sys/kernel/tracing, and not readable by user ")
    assert row.remedy.startswith("run with CAP_DAC_READ_SEARCH")
    assert row.remedy.endswith("gid=GROUP /sys/kernel/tracing")


# Becomes a user without a name, keeps these capabilities, and says what it sees. Modules are loaded before: the interpreter may be
# root's alone.
OTHER_USER = """
import ctypes, struct, sys
from aie_ebpf.prerequisites import check
libc = ctypes.CDLL(None, use_errno=True)
KEEP_CAPABILITIES, VERSION_3 = 8, 0x20080522
assert libc.prctl(KEEP_CAPABILITIES, 1, 0, 0, 0) == 0
assert libc.setgroups(0, None) == 0 and libc.setresgid(65534, 65534, 65534) == 0 and libc.setresuid(65534, 65534, 65534) == 0
bits = sum(1 << int(each) for each in sys.argv[1].split(","))
low, high = bits & 0xFFFFFFFF, bits >> 32
assert libc.capset(struct.pack("=Ii", VERSION_3, 0), struct.pack("=6I", low, low, 0, high, high, 0)) == 0, ctypes.get_errno()
print(next(f"{row.met} {row.found}" for row in check() if row.name == "tracefs"))
"""


@pytest.mark.parametrize(("capabilities", "met"), [("19,38,39", "False"), ("2,19,38,39", "True")])
def test_tracefs_as_a_real_user_without_and_with_the_capability(bpf: None, capabilities: str, met: str) -> None:
    """CAP_DAC_READ_SEARCH is 2. A real user's `access` would say no to both."""
    done = subprocess.run([sys.executable, "-c", OTHER_USER, capabilities], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{met} mounted"), done


# A filter that lets all calls through but one, which fails with EPERM, as a container's does.
SECCOMP = """
import ctypes, struct, sys
from aie_ebpf.prerequisites import check
LOAD_NUMBER, IF_EQUAL, RETURN, REFUSE, ALLOW = 0x20, 0x15, 0x06, 0x00050001, 0x7FFF0000
steps = [(LOAD_NUMBER, 0, 0, 0), (IF_EQUAL, 0, 1, int(sys.argv[1])), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
code = b"".join(struct.pack("=HBBI", *step) for step in steps)
text = ctypes.create_string_buffer(code, len(code))
filter = struct.pack("@HP", 4, ctypes.addressof(text))
libc = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 38, 22, 2
assert libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
assert libc.prctl(SET_SECCOMP, FILTER, filter) == 0, ctypes.get_errno()
for row in check():
    if "(2)" in row.name:
        print(row.name, row.met, row.found, row.remedy, sep="|")
"""


@pytest.mark.parametrize("call", ["bpf(2)", "perf_event_open(2)"])
def test_a_call_that_seccomp_refuses_is_a_row_of_its_own(bpf: None, call: str) -> None:
    """A real filter of the kernel's, in a process of its own."""
    number = {"bpf(2)": trials.BPF, "perf_event_open(2)": trials.PERF_EVENT_OPEN}[call][platform.machine()]
    done = subprocess.run([sys.executable, "-c", SECCOMP, str(number)], capture_output=True, text=True, check=True)
    rows = {name: rest for name, *rest in (line.split("|") for line in done.stdout.splitlines())}
    assert {name for name, (met, *_) in rows.items() if met == "False"} == {call}
    assert "seccomp" in rows[call][1]
    assert "seccomp" in rows[call][2]


@pytest.mark.parametrize(
    ("number", "found", "remedy"),
    [
        (0, "works", ""),
        (errno.ENOSYS, "this kernel has no bpf(2)", "CONFIG_BPF_SYSCALL"),
        (errno.EPERM, "refused though we hold", "seccomp"),
        (errno.ENOMEM, "Cannot allocate memory", "report it"),
    ],
)
def test_what_a_trial_says(tmp_path: Path, number: int, found: str, remedy: str) -> None:
    host(tmp_path, ROOT_CAPABILITIES)
    row = check(tmp_path, [Trial("bpf(2)", lambda: number, "works", "CONFIG_BPF_SYSCALL")])[-1]
    assert row.met is (number == 0)
    assert found in row.found
    assert remedy in row.remedy


def test_nothing_is_tried_without_privilege(tmp_path: Path) -> None:
    """The kernel refuses it to everybody: the row of the privilege says so."""
    host(tmp_path, NO_CAPABILITIES)
    assert "bpf(2)" not in {row.name for row in check(tmp_path)}


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
    row = next(row for row in check(tmp_path, ()) if row.name == "pid namespace")
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
