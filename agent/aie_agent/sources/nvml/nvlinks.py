"""The NVLinks of a GPU, and what they lead to: read once, for `aie-agent check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from aie_agent.sources.nvml.bus_id import bus_id
from aie_agent.sources.nvml.door import Absent, Device, Door, number
from aie_agent.sources.nvml.fields import FieldReader
from aie_agent.sources.nvml.rows import FIELDS, ROWS

LINK_COUNT_FIELD: Final = (91, 0)
_MAX_LINKS: Final = 64
_SWITCH: Final = 2  # nvmlIntNvLinkDeviceType_t
# Fields that count the errors of all links at once, by the kind of error.
_ERROR_FIELDS: Final = {
    row.labels[0]: (row.args[0], row.args[1])
    for row in ROWS
    if row.metric == "aie_gpu_nvlink_errors_total" and row.call == FIELDS and row.args[1] == 0
}


class NvLinks(NamedTuple):
    """Links by state; the active ones by the bus id of the GPU that they lead to, or how many lead into a switch, through which
    every other GPU with links into it is reached. `errors` are of all links since the driver was loaded, by kind."""

    active: int
    inactive: int
    to: Mapping[str, int]
    to_switch: int
    errors: Mapping[str, int]


def read_nvlinks(door: Door, device: Device) -> NvLinks | None:
    """Asks for each link. None where the GPU has none, or does not tell."""
    count = FieldReader(door, device, [LINK_COUNT_FIELD]).read()[0]
    links = min(int(count), _MAX_LINKS) if not isinstance(count, Absent) else 0
    states = {link: _plain(door.query("nvmlDeviceGetNvLinkState", device, link)) for link in range(links)}
    active = [link for link, state in states.items() if state == 1]
    inactive = sum(state == 0 for state in states.values())
    if not active and not inactive:
        return None
    to: Counter[str] = Counter()
    to_switch = 0
    for link in active:
        if _plain(door.query("nvmlDeviceGetNvLinkRemoteDeviceType", device, link)) == _SWITCH:
            to_switch += 1
            continue
        remote = door.query("nvmlDeviceGetNvLinkRemotePciInfo", device, link)
        bus = None if isinstance(remote, Absent) else bus_id(str(remote.busId))
        if bus is not None:
            to[bus] += 1
    return NvLinks(len(active), inactive, to, to_switch, _errors(door, device))


def joining(one: NvLinks | None, other: NvLinks | None, other_bus: str | None) -> int | None:
    """How many active links two GPUs have to each other, as nvidia-smi counts them (NV#): direct ones, or those that the one with
    fewer has into the switch. None where one of them does not tell."""
    if one is None or other is None:
        return None
    direct = one.to.get(other_bus, 0) if other_bus is not None else 0
    return direct or min(one.to_switch, other.to_switch)


def _errors(door: Door, device: Device) -> dict[str, int]:
    counts = FieldReader(door, device, list(_ERROR_FIELDS.values())).read()
    told = ((kind, _plain(count)) for kind, count in zip(_ERROR_FIELDS, counts, strict=True))
    return {kind: count for kind, count in told if count}


def _plain(value: object) -> int | None:
    found = number(value)
    return None if isinstance(found, Absent) else int(found)
