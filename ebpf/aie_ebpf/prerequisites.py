"""What this host allows of eBPF: each prerequisite with why it is missing and what to do. Reads files, and tries two system calls
(`trials`); loads no program."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from aie_ebpf.trials import TRIALS, Trial

# Linux capability numbers (include/uapi/linux/capability.h).
_CAP_SYS_PTRACE: Final = 19
_CAP_SYS_ADMIN: Final = 21
_CAP_PERFMON: Final = 38
_CAP_BPF: Final = 39
_CAP_CHECKPOINT_RESTORE: Final = 40

# Where Debian puts modules of its own Python; BCC's is pure Python, so that any interpreter can use it from there.
DEBIAN_PACKAGES: Final = Path("/usr/lib/python3/dist-packages")

# Where `make setup-system` merges a kernel's two header trees. Any kernel's do, since our programs read no kernel structs.
KERNEL_SOURCE: Final = Path("/usr/local/lib/aie/kernel-source")

# What BCC puts before every program (kbuild_helper.cc): without it nothing compiles.
_BCC_INCLUDES: Final = Path("include/linux/kconfig.h")

# Calling conventions that the programs know: where arguments and return addresses are.
_ARCHITECTURES: Final = ("x86_64", "aarch64")

# The inode of the first pid namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO).
_HOST_PID_NAMESPACE: Final = "pid:[4026531836]"


class Prerequisite(NamedTuple):
    """One thing that eBPF needs: whether it is there, what was found, and what to do when it is not. Without one that is not
    `needed` a part is not seen, which `found` says."""

    name: str
    met: bool
    found: str
    remedy: str
    needed: bool = True


def check(root: Path = Path("/"), trials: Iterable[Trial] = TRIALS) -> list[Prerequisite]:
    """All prerequisites on the host whose file system is at `root`. What is tried out is the kernel that runs; without privilege it
    refuses everybody, and nothing is tried."""
    rows = [row(root) for row in _ROWS]
    if _is_privileged(_capabilities(root)):
        rows += [Prerequisite(each.name, *_told(each)) for each in trials]
    return rows


def unmet(rows: Iterable[Prerequisite]) -> list[Prerequisite]:
    """Those without which there are no probes at all."""
    return [row for row in rows if row.needed and not row.met]


def _told(trial: Trial) -> tuple[bool, str, str]:
    number = trial.call()
    return number == 0, trial.works if number == 0 else trial.found(number), trial.remedy(number)


def _capabilities(root: Path) -> int:
    """Those in effect, a bit each."""
    status = (root / "proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)


def _is_privileged(capabilities: int) -> bool:
    return _holds(capabilities, _CAP_SYS_ADMIN) or _holds(capabilities, _CAP_BPF, _CAP_PERFMON, _CAP_SYS_PTRACE)


def _holds(capabilities: int, *numbers: int) -> bool:
    return all(capabilities >> number & 1 for number in numbers)


def _privilege(root: Path) -> Prerequisite:
    met = _is_privileged(_capabilities(root))
    found = "held" if met else f"not held by user {os.geteuid()}"
    remedy = "run as root, or with CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and CAP_CHECKPOINT_RESTORE"
    return Prerequisite("privilege", met, found, remedy)


def _files_of_others(root: Path) -> Prerequisite:
    """/proc/PID/map_files opens a library whose path leads to it no more. As it also leads into other containers' files, the kernel
    wants a capability more for it than for the rest of /proc/PID."""
    capabilities = _capabilities(root)
    met = _holds(capabilities, _CAP_CHECKPOINT_RESTORE) or _holds(capabilities, _CAP_SYS_ADMIN)
    lacking = "CUDA calls are not seen through a libcuda that was deleted or replaced, or that is on overlayfs or btrfs"
    found = "can be opened" if met else lacking
    return Prerequisite("mapped files (map_files)", met, found, "run as root, or with CAP_CHECKPOINT_RESTORE, too", needed=False)


def _tracefs(root: Path) -> Prerequisite:
    """Mounted for root alone (mode 0700), it is there and cannot be read. `access` would ask for the real user, who has no
    capabilities: so it is opened."""
    places = [root / path for path in ("sys/kernel/tracing", "sys/kernel/debug/tracing")]
    if any(_can_list(place / "events") for place in places):
        return Prerequisite("tracefs", True, "mounted", "")
    mount = _mount_of(root, "tracefs")
    if mount is not None:
        remedy = f"run with CAP_DAC_READ_SEARCH, too; or for a group of the agent's: mount -o remount,mode=750,gid=GROUP {mount}"
        return Prerequisite("tracefs", False, f"mounted at {mount}, and not readable by user {os.geteuid()}", remedy)
    remedy = "make setup-system (as root), or: mount -t tracefs tracefs /sys/kernel/tracing"
    return Prerequisite("tracefs", False, "not mounted", remedy)


def _can_list(directory: Path) -> bool:
    try:
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
    except OSError:
        return False
    return True


def _mount_of(root: Path, kind: str) -> str | None:
    """Where a file system of a kind is mounted, by /proc/self/mounts: device, place, kind, options."""
    try:
        lines = (root / "proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((words[1] for line in lines if len(words := line.split()) > 2 and words[2] == kind), None)


def _uprobes(root: Path) -> Prerequisite:
    met = (root / "sys/bus/event_source/devices/uprobe/type").exists()
    found = "in the kernel" if met else "none in this kernel, or /sys is not mounted: CUDA calls are not seen"
    remedy = "use a kernel with CONFIG_UPROBE_EVENTS; in a container, mount /sys"
    return Prerequisite("uprobes", met, found, remedy, needed=False)


def _bcc(root: Path) -> Prerequisite:
    debian = root / DEBIAN_PACKAGES.relative_to("/") / "bcc"
    met = importlib.util.find_spec("bcc") is not None or debian.is_dir()
    found = "installed" if met else f"no module bcc in {sys.prefix} or in Debian's packages"
    return Prerequisite("BCC", met, found, "make setup-system (as root), or: apt-get install python3-bpfcc")


def kernel_source(root: Path = Path("/")) -> Path | None:
    """The kernel headers that BCC is to compile against: those that BCC_KERNEL_SOURCE names, the running kernel's, or ours. What is
    not there is passed over, and so is half a tree: Debian's `build` leaves most of `include` to another one beside it."""
    named = os.environ.get("BCC_KERNEL_SOURCE")
    own = root / "lib/modules" / os.uname().release / "build"
    candidates = [*([Path(named)] if named else []), own, root / KERNEL_SOURCE.relative_to("/")]
    return next((path for path in candidates if (path / _BCC_INCLUDES).is_file()), None)


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
    _files_of_others,
    _tracefs,
    _uprobes,
    _bcc,
    _headers,
)
