"""What this host allows of eBPF: each prerequisite with why it is missing and what to do. Reads files only, loads nothing."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

# Linux capability numbers (include/uapi/linux/capability.h).
_CAP_SYS_PTRACE: Final = 19
_CAP_SYS_ADMIN: Final = 21
_CAP_PERFMON: Final = 38
_CAP_BPF: Final = 39

# Where Debian puts modules of its own Python; BCC's is pure Python, so that any interpreter can use it from there.
DEBIAN_PACKAGES: Final = Path("/usr/lib/python3/dist-packages")

# Where `make setup-system` merges a kernel's two header trees. Any kernel's do, since our programs read no kernel structs.
KERNEL_SOURCE: Final = Path("/usr/local/lib/aie/kernel-source")


# Calling conventions that the programs know: where arguments and return addresses are.
_ARCHITECTURES: Final = ("x86_64", "aarch64")

# The inode of the first pid namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO).
_HOST_PID_NAMESPACE: Final = "pid:[4026531836]"


class Prerequisite(NamedTuple):
    """One thing that eBPF needs: whether it is there, what was found, and what to do when it is not."""

    name: str
    met: bool
    found: str
    remedy: str


def check(root: Path = Path("/")) -> list[Prerequisite]:
    """All prerequisites on the host whose file system is at `root`."""
    return [row(root) for row in _ROWS]


def _privilege(root: Path) -> Prerequisite:
    status = (root / "proc/self/status").read_text()
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    holds = {bit for bit in (_CAP_SYS_PTRACE, _CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF) if effective >> bit & 1}
    met = _CAP_SYS_ADMIN in holds or {_CAP_BPF, _CAP_PERFMON, _CAP_SYS_PTRACE} <= holds
    found = "held" if met else f"not held by user {os.geteuid()}"
    return Prerequisite("privilege", met, found, "run as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE")


def _tracefs(root: Path) -> Prerequisite:
    readable = any(os.access(root / path / "events", os.R_OK) for path in ("sys/kernel/tracing", "sys/kernel/debug/tracing"))
    found = "mounted" if readable else "not mounted, or not readable by this user"
    return Prerequisite("tracefs", readable, found, "make setup-system (as root), or: mount -t tracefs tracefs /sys/kernel/tracing")


def _bcc(root: Path) -> Prerequisite:
    debian = root / DEBIAN_PACKAGES.relative_to("/") / "bcc"
    met = importlib.util.find_spec("bcc") is not None or debian.is_dir()
    found = "installed" if met else f"no module bcc in {sys.prefix} or in Debian's packages"
    return Prerequisite("BCC", met, found, "make setup-system (as root), or: apt-get install python3-bpfcc")


def kernel_source(root: Path = Path("/")) -> Path | None:
    """The kernel headers that BCC is to compile against: those that BCC_KERNEL_SOURCE names, the running kernel's, or ours."""
    named = os.environ.get("BCC_KERNEL_SOURCE")
    own = root / "lib/modules" / os.uname().release / "build"
    candidates = [Path(named)] if named else [own, root / KERNEL_SOURCE.relative_to("/")]
    return next((path for path in candidates if (path / "include").is_dir()), None)


def _headers(root: Path) -> Prerequisite:
    present = kernel_source(root)
    found = f"none for {os.uname().release}" if present is None else str(present)
    remedy = "make setup-system (as root), or set BCC_KERNEL_SOURCE"
    return Prerequisite("kernel headers", present is not None, found, remedy)


def _architecture(root: Path) -> Prerequisite:
    machine = os.uname().machine
    return Prerequisite("architecture", machine in _ARCHITECTURES, machine, f"use a host of {' or '.join(_ARCHITECTURES)}")


def _lockdown(root: Path) -> Prerequisite:
    """The file reads "none [integrity] confidentiality": the mode in brackets holds. Only the last forbids what we need: reading
    memory, perf events and tracefs."""
    try:
        modes = (root / "sys/kernel/security/lockdown").read_text()
    except OSError:
        modes = ""  # a kernel without lockdown, or securityfs is not mounted: what BPF refuses then says the child
    mode = modes.partition("[")[2].partition("]")[0] or "none"
    return Prerequisite(
        "kernel lockdown",
        mode != "confidentiality",
        mode,
        "boot without lockdown=confidentiality (integrity is enough for Secure Boot)",
    )


def _pid_namespace(root: Path) -> Prerequisite:
    """Programs see processes by the pids of the host."""
    try:
        met = os.readlink(root / "proc/self/ns/pid") == _HOST_PID_NAMESPACE
    except OSError:
        met = True  # a kernel without pid namespaces has but one
    found = "the host's" if met else "one of the agent's own"
    return Prerequisite("pid namespace", met, found, "set hostPID: true in the pod, or docker run --pid=host")


_ROWS: Final[tuple[Callable[[Path], Prerequisite], ...]] = (
    _architecture,
    _privilege,
    _lockdown,
    _pid_namespace,
    _tracefs,
    _bcc,
    _headers,
)
