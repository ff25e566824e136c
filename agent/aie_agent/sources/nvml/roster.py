"""Which GPUs there are, and which there should be: one that was seen stays, also when it is gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from aie_agent.samples import Point
from aie_agent.sources.nvml.bus_id import bus_id, long_name
from aie_agent.sources.nvml.devices import Identity
from aie_telemetry.catalogue import Kind

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Entry:
    """A GPU as it is shown. `identity` is None for one that never said who it is; `reason` is why it is not up."""

    index: int
    identity: Identity | None
    reason: str | None


class Roster:
    """Remembers GPUs by UUID for as long as the agent runs. No clock, no NVML."""

    def __init__(self, expected: int = 0) -> None:
        self._least = expected
        self._known: dict[str, tuple[int, Identity]] = {}
        self._most = 0
        self._shown: list[Entry] = []

    @property
    def expected(self) -> int:
        """So many were there at once since the agent started, or should be: a board that was put in for another is not one more."""
        return max(self._least, self._most)

    def update(self, present: Iterable[Entry], on_host: Mapping[str, str] = _NONE) -> list[Entry]:
        """All entries to show, from those that NVML has now. `on_host` are models by bus id of GPUs that there are besides, and may
        be the same: one that is nobody else's was lost before the agent came, and is known by its bus id alone.

        One that does not say who it is is the one that was at its index before, unless that is elsewhere now. One that NVML does
        not have any more is lost, and keeps its index, or gets the next that is free when another has it now; it is forgotten when
        as many are there as there should be, for then another was put in for it.
        """
        entries = list(present)
        if not on_host and entries == self._shown and all(entry.identity is not None for entry in entries):
            return self._shown  # nobody came, went or is missing: nothing is found out twice
        named = {entry.identity.uuid for entry in entries if entry.identity is not None}
        before = {index: identity for index, identity in self._known.values() if identity.uuid not in named}
        entries = [entry if entry.identity else replace(entry, identity=before.get(entry.index)) for entry in entries]
        for entry in entries:
            if entry.identity is not None:
                self._known[entry.identity.uuid] = (entry.index, entry.identity)
        unreached = self._unreached(entries, on_host)
        self._most = max(self._most, len(entries) + len(unreached))
        taken = {entry.index for entry in entries}
        named_now = [entry.identity for entry in entries if entry.identity is not None]
        for index, identity in self._lost(named_now, len(entries), len(unreached)):
            free = index if index not in taken else _free(taken)
            taken.add(free)
            entries.append(Entry(free, identity, "lost"))
        for bus, model in unreached.items():
            taken.add(free := _free(taken))
            entries.append(Entry(free, Identity("", model, long_name(bus), None, None), "lost"))
        self._shown = sorted(entries, key=lambda entry: entry.index)
        return self._shown

    def _unreached(self, entries: Collection[Entry], on_host: Mapping[str, str]) -> dict[str, str]:
        """Those on the host that are nobody's. None where one of NVML's does not say who it is: it may be that."""
        known = {bus_id(identity.pci_bus_id) for _, identity in self._known.values()}
        nameless = any(entry.identity is None for entry in entries)
        return {} if nameless else {bus: model for bus, model in sorted(on_host.items()) if bus not in known}

    def _lost(self, there: Collection[Identity], present: int, unreached: int) -> list[tuple[int, Identity]]:
        """Those that NVML does not have any more, by index: no more than are missing, and first those whose place is empty."""
        uuids, places = {identity.uuid for identity in there}, {identity.pci_bus_id for identity in there}
        gone = sorted(
            (known for uuid, known in self._known.items() if uuid not in uuids),
            key=lambda known: (known[1].pci_bus_id in places, known[0]),
        )
        missing = max(self.expected - present - unreached, 0)
        for _, identity in gone[missing:]:
            del self._known[identity.uuid]
        return sorted(gone[:missing], key=lambda known: known[0])

    def down(self, reason: str) -> list[Entry]:
        """All entries while NVML is closed: none is up, for this reason where it had none of its own."""
        return [replace(entry, reason=entry.reason or reason) for entry in self._shown]


def _free(taken: Collection[int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


def points(entries: Iterable[Entry], expected: int, driver: str, simulated: bool) -> list[Point]:
    """The series that say which GPUs there are."""
    found: list[Point] = []
    present = 0
    for entry in entries:
        gpu, identity, reason = str(entry.index), entry.identity, entry.reason
        present += reason is None
        found.append(Point("aie_gpu_up", Kind.GAUGE, (("gpu", gpu), ("reason", reason or "")), float(reason is None)))
        if identity is not None:
            found.append(Point("aie_gpu_info", Kind.GAUGE, _description(gpu, identity, driver, simulated), 1.0))
            if identity.numa_node is not None and reason is None:
                found.append(Point("aie_gpu_numa_node", Kind.GAUGE, (("gpu", gpu),), float(identity.numa_node)))
    found.append(Point("aie_gpu_present", Kind.GAUGE, (), float(present)))
    found.append(Point("aie_gpu_expected", Kind.GAUGE, (), float(expected)))
    return found


def _description(gpu: str, identity: Identity, driver: str, simulated: bool) -> tuple[tuple[str, str], ...]:
    return (
        ("architecture", identity.architecture or ""),
        ("driver", driver),
        ("gpu", gpu),
        ("name", identity.name),
        ("pci_bus_id", identity.pci_bus_id),
        ("simulated", "true" if simulated else "false"),
        ("uuid", identity.uuid),
    )
