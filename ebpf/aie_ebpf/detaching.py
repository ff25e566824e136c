"""Sets that took too much of a process come off it: at once where they are links, and where they are events, in the order that ends
a flood soonest.

Events come off one by one, 0.1 s each, and a set may have 90 of them. But a flood is of few functions: those that are called most
are rid of their probes first, one after the other, by what the process entered last each time that somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import NamedTuple

from aie_ebpf.attaching import Attached, Places
from aie_ebpf.closer import Closer
from aie_ebpf.door import Probe
from aie_ebpf.mappings import address_space


class _Going(NamedTuple):
    """Probes that a process is to be rid of."""

    tgid: int
    places: Places
    detached: Event


class Detaching:
    """What is under way. One thread."""

    def __init__(self, closer: Closer, entered: Callable[[int], int]) -> None:
        """`entered` tells where the function begins that a process has entered last, of those with probes; 0 where that is not
        known."""
        self._closer = closer
        self._entered = entered
        self._going: list[_Going] = []

    def __bool__(self) -> bool:
        return bool(self._going)

    def begin(self, tgid: int, attached: Attached) -> None:
        """Releases all of a set, in haste: the engine pays for it until it is gone."""
        first = self._of_the_last(tgid, attached.places)
        probes = sorted(attached.release(), key=lambda probe: probe not in first)
        self._going.append(_Going(tgid, attached.places, self._closer.close(probes, haste=True)))

    def look(self) -> None:
        """Puts forward what is called most now."""
        self._going = [each for each in self._going if not each.detached.is_set()]
        for each in self._going:
            self._closer.put_forward(self._of_the_last(each.tgid, each.places))

    def _of_the_last(self, tgid: int, places: Places) -> list[Probe]:
        """The probes of the function that a process has entered last: in a flood, most likely of the one that it enters most."""
        address = self._entered(tgid)
        file = address_space(tgid).file_at(address) if address else None
        if file is None:
            return []
        return places.get((file.device, file.inode, address - file.start + file.offset), [])
