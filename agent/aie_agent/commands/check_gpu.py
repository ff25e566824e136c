"""The part of `aie-agent check` about GPUs: reads the host, and shows what `analysis/gpu_checklist.py` makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from aie_agent.analysis import gpu_checklist as checklist
from aie_agent.commands.check_gpu_processes import MAX_PROCESSES, ended, held_row, process_rows
from aie_agent.commands.check_gpu_read import Asked, GpuHost
from aie_agent.commands.check_gpu_rows import GpuCheck, gpu_row
from aie_agent.config import GpuSection
from aie_agent.sources.kernel_log import KERNEL_FACILITY, KernelLog
from aie_agent.sources.memory_channels import TABLE, channels, modules
from aie_agent.sources.nvml import presence
from aie_agent.sources.nvml.build import SimulationError, install_simulated
from aie_agent.sources.nvml.facts import GpuFacts
from aie_agent.sources.nvml.process_join import GONE_AFTER_S, OTHER_NAMESPACE, in_other_pid_namespace
from aie_agent.sources.nvml.xid import from_kernel_log
from aie_agent.sources.procfs import Procfs

_NODES: Final = Path("/sys/devices/system/node")
_LOG: Final = "XIDs in the kernel log"


def check_gpus(
    config: GpuSection, patience_s: float = 10.0, second_look_s: float = GONE_AFTER_S, procfs: Procfs | None = None
) -> list[GpuCheck]:
    """Every row about GPUs. On a host without any it is one, and the memory of the host.

    `patience_s` is how long one GPU may take: one that hangs is a row by its name, and the others are checked. A process that ended
    and stands in the driver's list still is looked at again after `second_look_s`.
    """
    rows = list(_channels())
    if not config.enabled:
        return [*rows, GpuCheck("GPUs", True, False, True, "switched off: gpu.enabled")]
    needed = config.expected > 0 or config.simulate is not None
    try:
        if config.simulate is not None:
            install_simulated(config.simulate)
    except SimulationError as error:
        return [*rows, GpuCheck("GPUs", False, True, True, str(error))]
    if config.simulate is None and not needed and not presence.is_expected():
        return [*rows, GpuCheck("GPUs", False, False, True, "no NVIDIA driver is loaded")]
    return [*rows, *asyncio.run(_with_nvml(config, patience_s, second_look_s, procfs or Procfs()))]


async def _with_nvml(config: GpuSection, patience_s: float, second_look_s: float, procfs: Procfs) -> list[GpuCheck]:
    knows_pids = not in_other_pid_namespace() and not procfs.hides_processes()
    host = GpuHost(patience_s, (lambda pid: procfs.start_ticks(pid) is not None) if knows_pids else None)
    problem = await host.open()
    if problem is not None:
        return [GpuCheck("GPUs", False, config.expected > 0 or config.simulate is not None, True, problem)]
    await host.ask()
    rows = [_driver(host, config), *_kernel_log()]
    for asked in host.asked:
        rows += _gpu(asked, [other.facts for other in host.asked if other.facts and other is not asked], host.session.is_simulated)
    rows += map(gpu_row, checklist.check_topology([pair for asked in host.asked for pair in asked.pairs]))
    rows += await _processes(host, procfs, second_look_s)
    await host.close()
    return rows


def _driver(host: GpuHost, config: GpuSection) -> GpuCheck:
    count = len(host.asked)
    shown = f"{count} simulated" if host.session.is_simulated else f"{count}"
    text = f"{shown}, driver {host.session.driver}" + (f", CUDA {host.cuda[0]}.{host.cuda[1]}" if host.cuda else "")
    expected = max(config.expected, 1)
    return GpuCheck("GPUs", count >= expected, config.expected > 0, True, text, f"{expected} are expected: see the kernel log")


def _gpu(asked: Asked, others: Sequence[GpuFacts], is_simulated: bool) -> Iterator[GpuCheck]:
    """The rows of one GPU: also what it told before it hung. `others` are the other GPUs of the host."""
    what = f"GPU {asked.index}"
    identity = asked.identity
    name = "" if identity is None else identity.name + (" (simulated)" if is_simulated else "") + f", {identity.pci_bus_id}"
    if asked.hung_s is not None:
        found = f"the driver does not answer about it, for {asked.hung_s:.0f} s"
        remedy = "see the kernel log for XIDs 119 and 120; often a reboot is needed"
        yield GpuCheck(what, False, True, True, f"{name}: {found}" if name else found, remedy)
    elif asked.refused is not None:
        yield GpuCheck(what, False, True, True, f"does not answer: {asked.refused}", "see the kernel log; reset it, or reboot")
    else:
        yield GpuCheck(what, True, False, True, name)
    if asked.facts is not None:
        for check in checklist.check_gpu(asked.facts, numa_nodes(), others):
            yield gpu_row(check, f"{what}: ")


def _channels() -> Iterator[GpuCheck]:
    """Of the host's memory, where the firmware tells: root, and no virtual machine."""
    try:
        check = checklist.check_memory_channels(channels(modules(TABLE.read_bytes())))
    except OSError:
        return
    if check is not None:
        yield gpu_row(check)


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
        yield gpu_row(check)


async def _processes(host: GpuHost, procfs: Procfs, second_look_s: float) -> list[GpuCheck]:
    """What runs on the GPUs: its CUDA, and the CPUs that it may use; and what does not run any more."""
    if in_other_pid_namespace():
        return [GpuCheck("processes on GPUs", False, False, True, OTHER_NAMESPACE)]
    near: dict[int, frozenset[int] | None] = {}
    for asked in host.asked:
        for context in asked.contexts[:MAX_PROCESSES]:
            near.setdefault(context.pid, asked.facts.cpus if asked.facts is not None else None)
    rows: list[GpuCheck] = []
    suspects = ended(procfs, near)
    for pid in near.keys() - suspects:
        rows += process_rows(procfs, pid, near[pid], host.session.driver, host.cuda)
    if suspects:
        await asyncio.sleep(second_look_s)
        rows += [held_row(procfs, pid) for pid in sorted(ended(procfs, suspects & await host.look_again()))]
    return rows


def numa_nodes(root: Path = _NODES) -> int:
    """NUMA nodes of the host; 1 where the kernel does not tell."""
    return max(sum(path.name[4:].isdecimal() for path in root.glob("node*")), 1)
