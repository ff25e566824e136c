"""An engine whose CPUs belong to another NUMA node than its GPU: each copy and each launch crosses the link between the sockets.

Exact: it holds while none of the CPUs that a process on the GPU may use is of the GPU's node. One that may run anywhere is not
judged, wherever it runs at the moment. False alarms: none by the rule itself; a host whose firmware claims the wrong node for a
slot, and one whose nearest CPUs are all kept for others on purpose.
"""

from __future__ import annotations

from typing import Final

from aie_agent.analysis.findings import View
from aie_agent.analysis.gpu_causes.naming import title
from aie_telemetry.api import Evidence, Finding, Gpu

_MEMORY: Final = "on which node its memory lies (`numastat -p PID` tells), and threads that are bound to CPUs of their own"


def numa_misplaced(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `numa_misplaced` of an engine at `now_s`, or None."""
    if len(view.nodes) < 2 or view.state(engine) == "down":
        return None
    allowed = {each.tgid: each.cpus_allowed for each in view.processes(engine)}
    for gpu in view.gpus():
        near = view.nodes.get(-1 if gpu.numa_node is None else gpu.numa_node)
        for process in gpu.processes if near else ():
            cpus = allowed.get(process.tgid) if process.engine == engine else None
            if near and cpus and not cpus & near:
                return _finding(engine, gpu, process.tgid, cpus, view, now_s)
    return None


def _finding(engine: str, gpu: Gpu, tgid: int, cpus: frozenset[int], view: View, now_s: float) -> Finding:
    nodes = sorted(node for node, of_node in view.nodes.items() if of_node & cpus)
    where = f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
    text = (
        f"process {tgid} may use {len(cpus)} CPUs, all of {where}; {title(gpu)} is on node {gpu.numa_node} (limit: one CPU of it)"
    )
    bound = f"`numactl --cpunodebind={gpu.numa_node} --membind={gpu.numa_node}`"
    return Finding(
        cause="numa_misplaced",
        subject=engine,
        severity="warning",
        since_s=now_s,
        summary=f"engine {engine} runs on CPUs far from {title(gpu)}: another NUMA node",
        evidence=(Evidence(text=text, metric="aie_gpu_numa_node"),),
        advice=(
            f"Bind it to the GPU's node: {bound}, vLLM --numa-bind; in Kubernetes the topology manager's policy single-numa-node."
        ),
        not_visible=(_MEMORY,),
        runbook="docs/runbooks/numa_misplaced.md",
    )
