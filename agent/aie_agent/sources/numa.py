"""Which CPUs belong to which NUMA node of the host. It never changes while the host runs, so it is read once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from aie_agent.sources.procfs_text import cpu_list

log = logging.getLogger(__name__)

NODES: Final = Path("/sys/devices/system/node")


def numa_nodes(root: Path = NODES) -> dict[int, frozenset[int]]:
    """CPUs by node, of nodes that have any. Empty where the kernel does not tell."""
    found = {}
    for directory in sorted(root.glob("node[0-9]*")):
        try:
            cpus = cpu_list((directory / "cpulist").read_bytes())
        except (OSError, ValueError) as error:
            log.warning("the CPUs of %s are not known: %s", directory.name, error)
            continue
        if cpus:
            found[int(directory.name.removeprefix("node"))] = cpus
    return found
