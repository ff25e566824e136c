"""MIG: the instances that a GPU is cut into. What NVML does not tell of an instance (its duty cycle) is absent; GPM tells more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from aie_agent.samples import Point
from aie_agent.sources.nvml import gpm
from aie_agent.sources.nvml.door import Absent, Device, Door
from aie_agent.sources.nvml.memory import Memory, read_memory
from aie_agent.sources.nvml.processes import Context, ProcessReader, total_of
from aie_telemetry.catalogue import Kind


class Instance(NamedTuple):
    """A compute instance of a GPU instance. `mig` is its label, such as 1/0; `device` what NVML is asked with."""

    device: Device
    mig: str
    gpu_instance: int
    profile: str
    uuid: str


def is_on(door: Door, parent: Device) -> bool | None:
    """Whether the GPU is divided; None where it does not say."""
    modes = door.query("nvmlDeviceGetMigMode", parent)
    if isinstance(modes, Absent):
        return False if modes.is_for_good else None
    return bool(modes[0] == 1)


def instances(door: Door, parent: Device) -> list[Instance]:
    """All that there are now. NVML numbers them with gaps."""
    most = door.query("nvmlDeviceGetMaxMigDeviceCount", parent)
    found = []
    for number in range(0 if isinstance(most, Absent) else most):
        handle = door.query("nvmlDeviceGetMigDeviceHandleByIndex", parent, number)
        if not isinstance(handle, Absent):
            found.append(_instance(door, Device(parent.index, handle)))
    return [instance for instance in found if instance is not None]


def _instance(door: Door, device: Device) -> Instance | None:
    gpu_instance = door.query("nvmlDeviceGetGpuInstanceId", device)
    compute_instance = door.query("nvmlDeviceGetComputeInstanceId", device)
    if isinstance(gpu_instance, Absent) or isinstance(compute_instance, Absent):
        return None
    name, uuid = door.query("nvmlDeviceGetName", device), door.query("nvmlDeviceGetUUID", device)
    profile = "" if isinstance(name, Absent) else name.rpartition(" MIG ")[2]
    return Instance(device, f"{gpu_instance}/{compute_instance}", gpu_instance, profile, "" if isinstance(uuid, Absent) else uuid)


class MigReader:
    """The instances of one GPU: looked for anew by `find`, read by `points` every `period_s`. `exists` is that of
    `ProcessReader`."""

    def __init__(self, door: Door, parent: Device, exists: Callable[[int], bool] | None = None, period_s: float = 1.0) -> None:
        self._period_s = period_s
        self._door = door
        self._parent = parent
        self.has_gpm = False
        self.instances: list[Instance] = []
        self._mode: bool | None = None
        self._exists = exists
        self._gpm: dict[int, gpm.GpmReader] = {}
        self._processes: dict[str, ProcessReader] = {}

    def find(self) -> bool:
        """Looks for the instances; returns whether MIG was switched on or off. What was known of one that is gone is forgotten."""
        before, self._mode = self._mode, is_on(self._door, self._parent)
        self.instances = instances(self._door, self._parent) if self._mode else []
        present = {instance.gpu_instance for instance in self.instances}
        for gone in self._gpm.keys() - present:
            self._gpm.pop(gone).close()
        for name in self._processes.keys() - {instance.uuid for instance in self.instances}:
            del self._processes[name]
        if self.has_gpm:
            for new in present - self._gpm.keys():
                self._gpm[new] = gpm.GpmReader(self._door, self._parent, gpm.MIG_ROWS, new, self._period_s)
        return before is not None and self._mode is not None and before is not self._mode

    def points(self) -> Iterable[Point]:
        """What is known of each instance now."""
        active = {number: reader.read() for number, reader in self._gpm.items()}
        for instance in self.instances:
            memory = read_memory(self._door, instance.device)
            numbers = active.get(instance.gpu_instance)
            yield from _points(str(self._parent.index), instance, memory, numbers)

    def contexts(self, total_bytes: float | None, wall_s: float) -> list[Context] | None:
        """The processes of all instances, by pid; None where no instance tells them. To be asked where the GPU as a whole tells of
        none: it tells only who has the privilege. `total_bytes` is the memory of the GPU."""
        told: list[tuple[Instance, list[Context]]] = []
        for instance in self.instances:
            reader = self._processes.get(instance.uuid)
            if reader is None:
                reader = self._processes[instance.uuid] = ProcessReader(self._door, instance.device, self._exists)
            found = reader.read(total_bytes, wall_s)
            if not isinstance(found, Absent):
                told.append((instance, found))
        return _joined(told) if told else None

    def close(self) -> None:
        """Gives back what GPM holds."""
        for reader in self._gpm.values():
            reader.close()
        self._gpm.clear()
        self._processes.clear()
        self.instances = []


def _joined(told: Sequence[tuple[Instance, list[Context]]]) -> list[Context]:
    """One context a process. Compute instances of one GPU instance share its memory, and may each name a process of all of it."""
    by_pid: dict[int, dict[int, Context]] = {}
    for instance, contexts in told:
        for context in contexts:
            of_pid = by_pid.setdefault(context.pid, {})
            known = of_pid.get(instance.gpu_instance)
            if known is None or (context.memory_bytes or 0) > (known.memory_bytes or 0):
                of_pid[instance.gpu_instance] = context
    joined = []
    for pid, parts in sorted(by_pid.items()):
        kinds = dict.fromkeys(kind for part in parts.values() for kind in part.kind.split("+"))
        joined.append(Context(pid, "+".join(kinds), total_of(part.memory_bytes for part in parts.values()), None))
    return joined


def _points(gpu: str, instance: Instance, memory: Memory | Absent, active: list[float | Absent] | None) -> Iterable[Point]:
    tags = (("gpu", gpu), ("mig", instance.mig))
    described = (*tags, ("profile", instance.profile), ("uuid", instance.uuid))
    yield Point("aie_gpu_mig_info", Kind.GAUGE, described, 1.0)
    if isinstance(memory, Memory):
        yield Point("aie_gpu_mig_memory_total_bytes", Kind.GAUGE, tags, float(memory.total))
        yield Point("aie_gpu_mig_memory_used_bytes", Kind.GAUGE, tags, float(memory.used))
    if active is not None and isinstance(active[0], float):
        yield Point("aie_gpu_mig_sm_active_ratio", Kind.GAUGE, tags, active[0])
