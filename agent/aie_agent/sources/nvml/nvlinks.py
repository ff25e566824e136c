"""The NVLinks of a GPU, and what they lead to: read once, for `aie-agent check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aie_agent.sources.nvml.bus_id import bus_id
from aie_agent.sources.nvml.door import Absent, Device, Door, number
from aie_agent.sources.nvml.fields import FieldReader, RowFields
from aie_agent.sources.nvml.rows import FIELDS, ROWS, Row

_LINK_COUNT_FIELD: Final = (91, 0)
_MAX_LINKS: Final = 64
_SWITCH: Final = 2  # nvmlIntNvLinkDeviceType_t
_ERROR_ROWS: Final = tuple(row for row in ROWS if row.metric == "aie_gpu_nvlink_errors_total")
_FIELD_ROWS: Final = tuple(row for row in _ERROR_ROWS if row.call == FIELDS)
_CALL_ROWS: Final = tuple(row for row in _ERROR_ROWS if row.call != FIELDS)


class NvLinks(NamedTuple):
    """Links by state; the active ones by the bus id of the GPU that they lead to, or how many lead into a switch, through which
    every other GPU with links into it is reached. `errors` are of all links since the driver was loaded, by kind."""

    active: int
    inactive: int
    to: Mapping[str, int]
    to_switch: int
    errors: Mapping[str, int]


def link_count(door: Door, device: Device) -> int | Absent:
    """How many NVLinks the GPU has: 0 where it does not know of any, `Absent` where it does not say now."""
    count = FieldReader(door, device, [_LINK_COUNT_FIELD]).read()[0]
    plain = count if isinstance(count, Absent) else number(count)
    if isinstance(plain, Absent):
        return 0 if plain.is_for_good else plain
    return min(int(plain), _MAX_LINKS)


def read_nvlinks(door: Door, device: Device) -> NvLinks | None:
    """Asks for each link. None where the GPU has none, or does not tell."""
    count = link_count(door, device)
    links = 0 if isinstance(count, Absent) else count
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
    return NvLinks(len(active), inactive, to, to_switch, _errors(door, device, links))


def joining(one: NvLinks | None, other: NvLinks | None, other_bus: str | None) -> int | None:
    """How many active links two GPUs have to each other, as nvidia-smi counts them (NV#): direct ones, or those that the one with
    fewer has into the switch. None where one of them does not tell."""
    if one is None or other is None:
        return None
    direct = one.to.get(other_bus, 0) if other_bus is not None else 0
    return direct or min(one.to_switch, other.to_switch)


def _errors(door: Door, device: Device, links: int) -> dict[str, int]:
    """By the rows that the source reads, of each kind by the first way that answers: which there are hangs on the links' generation
    and on the driver."""
    found: dict[str, int] = {}
    answers = RowFields(door, device, _FIELD_ROWS, links).read()
    told = [(row.labels[0], _plain(answer)) for row, answer in zip(_FIELD_ROWS, answers, strict=True)]
    told += [(row.labels[0], _over_links(door, device, row, links)) for row in _missing(told)]
    for kind, count in told:
        if count is not None:
            found.setdefault(kind, count)
    return {kind: count for kind, count in found.items() if count}


def _missing(told: Sequence[tuple[str, int | None]]) -> list[Row]:
    """The calls of old for what no field tells."""
    kinds = {kind for kind, count in told if count is not None}
    return [row for row in _CALL_ROWS if row.labels[0] not in kinds]


def _over_links(door: Door, device: Device, row: Row, links: int) -> int | None:
    counts = [_plain(door.query(row.call, device, link, *row.args)) for link in range(links)]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _plain(value: object) -> int | None:
    found = number(value)
    return None if isinstance(found, Absent) else int(found)
