"""The part of `aie-agent check` about GPUs: reads the host, and shows what `analysis/gpu_checklist.py` makes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.analysis import gpu_checklist as checklist
from aie_agent.analysis.gpu_checklist import Check
from aie_agent.config import GpuSection
from aie_agent.sources.cuda_runtime import CudaLibraries, cuda_libraries
from aie_agent.sources.kernel_log import KERNEL_FACILITY, KernelLog
from aie_agent.sources.memory_channels import TABLE, channels, modules
from aie_agent.sources.nvml import presence
from aie_agent.sources.nvml.build import SimulationError, install_simulated
from aie_agent.sources.nvml.devices import Identity, identify
from aie_agent.sources.nvml.door import Absent, Device, Door
from aie_agent.sources.nvml.facts import GpuFacts, cuda_version, read_facts, read_pairs
from aie_agent.sources.nvml.process_join import OTHER_NAMESPACE, in_other_pid_namespace
from aie_agent.sources.nvml.processes import ProcessReader
from aie_agent.sources.nvml.session import Session
from aie_agent.sources.nvml.xid import from_kernel_log
from aie_agent.sources.procfs import Procfs

_NODES: Final = Path("/sys/devices/system/node")
_MAX_PROCESSES: Final = 64
_LOG: Final = "XIDs in the kernel log"
_HANDLE: Final = "nvmlDeviceGetHandleByIndex"


class GpuCheck(NamedTuple):
    """One row: as `gpu_checklist.Check`, and whether the thing can be seen at all (`visible`), and was asked for (`needed`)."""

    what: str
    visible: bool
    needed: bool
    ok: bool
    found: str
    remedy: str = ""


class _Gpu(NamedTuple):
    device: Device
    identity: Identity
    facts: GpuFacts


def check_gpus(config: GpuSection, patience_s: float = 30.0) -> list[GpuCheck]:
    """Every row about GPUs. On a host without any it is one, and the memory of the host.

    A driver that hangs is a row as well: the thread that asked is left behind, and ends with the process.
    """
    rows: list[GpuCheck] = []
    thread = threading.Thread(target=lambda: rows.extend(_rows(config)), daemon=True)
    thread.start()
    thread.join(patience_s)
    if thread.is_alive():
        return [*rows, GpuCheck("GPUs: driver", False, True, True, f"NVML hangs since {patience_s:.0f} s", "see the kernel log")]
    return rows


def _rows(config: GpuSection) -> Iterator[GpuCheck]:
    yield from _channels()
    if not config.enabled:
        yield GpuCheck("GPUs", True, False, True, "switched off: gpu.enabled")
        return
    needed = config.expected > 0 or config.simulate is not None
    try:
        if config.simulate is not None:
            install_simulated(config.simulate)
    except SimulationError as error:
        yield GpuCheck("GPUs", False, True, True, str(error))
        return
    if config.simulate is None and not needed and not presence.is_expected():
        yield GpuCheck("GPUs", False, False, True, "no NVIDIA driver is loaded")
        return
    session = Session(lambda: None)
    session.open()
    if session.error is not None or session.door is None:
        yield GpuCheck("GPUs", False, needed, True, session.error or "NVML is closed")
        return
    try:
        yield from _host(session, config, session.door)
    finally:
        session.close()


def _host(session: Session, config: GpuSection, door: Door) -> Iterator[GpuCheck]:
    count = len(session.gpus)
    cuda = cuda_version(door)
    shown = f"{count} simulated" if session.is_simulated else f"{count}"
    text = f"{shown}, driver {session.driver}" + (f", CUDA {cuda[0]}.{cuda[1]}" if cuda else "")
    expected = max(config.expected, 1)
    yield GpuCheck("GPUs", count >= expected, config.expected > 0, True, text, f"{expected} are expected: see the kernel log")
    yield from _kernel_log()
    found: list[_Gpu] = []
    for index in range(count):
        handle = door.query(_HANDLE, None, index)
        device = Device(index, None if isinstance(handle, Absent) else handle)
        identity = handle if isinstance(handle, Absent) else identify(door, device)
        if isinstance(identity, Absent):
            yield GpuCheck(
                f"GPU {index}", False, True, True, f"does not answer: {identity.reason}", "see the kernel log; reset it, or reboot"
            )
            continue
        gpu = _Gpu(device, identity, read_facts(door, device, identity))
        found.append(gpu)
        yield from _one(gpu, session.is_simulated)
    for check in checklist.check_topology(read_pairs(door, [gpu.device for gpu in found])):
        yield _row(check)
    yield from _processes(door, found, session.driver, cuda)


def _one(gpu: _Gpu, is_simulated: bool) -> Iterator[GpuCheck]:
    name = gpu.identity.name + (" (simulated)" if is_simulated else "")
    yield GpuCheck(f"GPU {gpu.device.index}", True, False, True, f"{name}, {gpu.identity.pci_bus_id}")
    for check in checklist.check_gpu(gpu.facts, numa_nodes()):
        yield _row(check, f"GPU {gpu.device.index}: ")


def _row(check: Check, prefix: str = "") -> GpuCheck:
    return GpuCheck(prefix + check.what, True, False, check.ok, check.found, "" if check.ok else check.remedy)


def _channels() -> Iterator[GpuCheck]:
    """Of the host's memory, where the firmware tells: root, and no virtual machine."""
    try:
        check = checklist.check_memory_channels(channels(modules(TABLE.read_bytes())))
    except OSError:
        return
    if check is not None:
        yield _row(check)


def _kernel_log() -> Iterator[GpuCheck]:
    """Whether XIDs can be read, and those that stand in the log."""
    log = KernelLog()
    try:
        records = log.read()
    except OSError as error:
        remedy = "run as root, or with CAP_SYSLOG and /dev/kmsg mounted; XIDs that the driver does not send as events are missed"
        yield GpuCheck(_LOG, False, False, True, f"{error.filename or '/dev/kmsg'}: {error.strerror}", remedy)
        return
    finally:
        log.close()
    since_boot_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    reports = [
        report
        for record in records
        if record.facility == KERNEL_FACILITY and (report := from_kernel_log(record, record.time_us / 1e6)) is not None
    ]
    yield GpuCheck(_LOG, True, False, True, f"/dev/kmsg, {len(reports)} XIDs in it")
    for check in checklist.check_xids([(report.bus, report.xid, since_boot_s - report.time_s) for report in reports]):
        yield _row(check)


def _processes(door: Door, gpus: Sequence[_Gpu], driver: str, cuda: tuple[int, int] | None) -> Iterator[GpuCheck]:
    """What runs on the GPUs: its CUDA, and the CPUs that it may use."""
    if in_other_pid_namespace():
        yield GpuCheck("processes on GPUs", False, False, True, OTHER_NAMESPACE)
        return
    procfs = Procfs()
    checked: set[int] = set()
    for gpu in gpus:
        contexts = ProcessReader(door, gpu.device, lambda pid: procfs.start_ticks(pid) is not None).read(None, time.time())
        for context in () if isinstance(contexts, Absent) else contexts[:_MAX_PROCESSES]:
            if context.pid not in checked:
                checked.add(context.pid)
                yield from _process(procfs, context.pid, gpu.facts.cpus, driver, cuda)


def _process(
    procfs: Procfs, pid: int, near: frozenset[int] | None, driver: str, cuda: tuple[int, int] | None
) -> Iterator[GpuCheck]:
    try:
        command = procfs.command(pid)
    except (OSError, ValueError):
        command = ""
    name = f"process {pid}"
    if not command:
        yield GpuCheck(
            name,
            True,
            False,
            False,
            "holds a context on a GPU, and is not in /proc",
            "it ended and the driver hangs on to it: reset the GPU",
        )
        return
    try:
        libraries = cuda_libraries(procfs.read(f"{pid}/maps") or b"")
    except OSError:
        libraries = CudaLibraries()
        yield GpuCheck(
            f"{name}: CUDA", False, False, True, f"{command}: its libraries cannot be seen", "run as root, or as its user"
        )
    for check in checklist.check_process(name, libraries, driver, cuda, allowed_cpus(procfs, pid), near):
        row = _row(check)
        yield row._replace(found=f"{command}: {row.found}")


def allowed_cpus(procfs: Procfs, pid: int) -> frozenset[int] | None:
    """The CPUs that a process may run on; None where that cannot be read."""
    content = procfs.read(f"{pid}/status") or b""
    for line in content.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"Cpus_allowed_list":
            return parse_cpus(value.decode("ascii", "replace"))
    return None


def parse_cpus(text: str) -> frozenset[int] | None:
    """ "0-3,8" as a set. None for what is none."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if not low.isdecimal() or not (high or low).isdecimal():
            return None
        cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def numa_nodes(root: Path = _NODES) -> int:
    """NUMA nodes of the host; 1 where the kernel does not tell."""
    return max(sum(path.name[4:].isdecimal() for path in root.glob("node*")), 1)
