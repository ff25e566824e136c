"""The source as the configuration wants it, or none."""

from __future__ import annotations

from aie_agent.config import GpuSection
from aie_agent.config_values import SimulatedGpus
from aie_agent.identity import Engines
from aie_agent.sources import procfs_text as text
from aie_agent.sources.nvml import presence
from aie_agent.sources.nvml.memory import Memory
from aie_agent.sources.nvml.process_join import GpuProcesses
from aie_agent.sources.nvml.source import NvmlSource
from aie_agent.sources.nvml.xids import Xids
from aie_agent.sources.procfs import Procfs


class SimulationError(Exception):
    """There can be no simulated GPUs: one line that says why."""


def build(config: GpuSection, procfs: Procfs, engines: Engines) -> NvmlSource | None:
    """The source of this host's GPUs; None where it is switched off, or nothing speaks for a GPU.

    Raises SimulationError.
    """
    if not config.enabled:
        return None
    if config.simulate is not None:
        install_simulated(config.simulate)
    elif config.expected == 0 and not presence.is_expected():
        return None
    xids = Xids(engine_of=lambda tgid: _engine_of(engines, tgid))
    return NvmlSource(config, lambda: host_memory(procfs), xids, GpuProcesses(engines, procfs))


def _engine_of(engines: Engines, tgid: int) -> str | None:
    return next((name for name in engines.names() if any(tgid == known.tgid for known in engines.processes(name))), None)


def install_simulated(gpus: SimulatedGpus) -> None:
    """Puts simulated GPUs into this process. Raises SimulationError."""
    # Only here: nobody else needs it.
    from aie_agent import simulate

    try:
        simulate.install(gpus.number, gpus.profile)
    except (RuntimeError, ValueError) as error:  # no compiler, another library in this process; no such product
        raise SimulationError(str(error)) from error


def host_memory(procfs: Procfs) -> Memory | None:
    """The host's memory, for GPUs that share it."""
    content = procfs.read("meminfo")
    found = {} if content is None else text.meminfo(content, ("MemTotal", "MemAvailable"))
    if len(found) < 2:
        return None
    total, free = int(found["MemTotal"]), int(found["MemAvailable"])
    return Memory(total, total - free, free)
