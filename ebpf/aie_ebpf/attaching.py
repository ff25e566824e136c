"""Attaches one set's programs to one process, a step at a time: in between, the caller looks at what those that are attached take.

A step is one program in one file: at all its places, where links are used, or at one.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aie_ebpf.calibrate import UPROBE, UPROBE_EMULATED, URETPROBE, entry_kind, past_landing_pad
from aie_ebpf.door import BpfError, Module, Probe
from aie_ebpf.readers.watched import EMULATED, STEPPED
from aie_ebpf.targets import AttachPoint
from aie_ebpf.uprobe_links import Spot, Way, attach

_COOKIES: Final = {UPROBE: STEPPED, UPROBE_EMULATED: EMULATED}
# Of a function: enough for a landing pad and the instruction behind it.
_CODE_BYTES: Final = 8


Places = dict[tuple[int, int, int], list[Probe]]
"""Probes that are at one place only, by device and inode of the file and the offset in it."""


@dataclass(slots=True)
class Attached:
    """What a set holds of a process. Once it is released, nothing more is attached for it. `shared` gives back what is no probe of
    this process alone."""

    probes: list[Probe] = field(default_factory=list)
    places: Places = field(default_factory=lambda: defaultdict(list))
    shared: list[Callable[[], None]] = field(default_factory=list)
    points: set[AttachPoint] = field(default_factory=set)
    released: bool = False

    def release(self) -> list[Probe]:
        """Ends it. Returns the probes, which the caller detaches."""
        self.released = True
        shared, self.shared = self.shared, []
        for give_back in shared:
            give_back()
        probes, self.probes = self.probes, []
        self.points.clear()
        return probes


class _Place(NamedTuple):
    """A point, where in its function the probe lies, and which kind of cost it has there."""

    point: AttachPoint
    offset: int
    kind: str

    @property
    def spot(self) -> Spot:
        return Spot(self.offset, self.point.semaphore_offset, _COOKIES[self.kind])


class _Step(NamedTuple):
    """A program, and where in one file it is attached."""

    path: str
    function: str
    on_return: bool
    places: tuple[_Place, ...]


class Noted(NamedTuple):
    """A program is attached to a function: what its hits cost."""

    symbol: str
    offset: int
    on_return: bool
    kind: str


def attach_points(
    module: Module, way: Way, points: Iterable[AttachPoint], tgid: int, attached: Attached, note: Callable[[Noted], None]
) -> Generator[None, None, list[str]]:
    """Attaches all programs of these points to a process, and stops as soon as `attached` is released. `note` is told of each that
    is. Returns what went wrong, a line a point."""
    failed: dict[AttachPoint, str] = {}
    places = _places(points, failed)
    for step in _steps(places, way):
        _attach(module, way, step, tgid, attached, failed, note)
        yield
        if attached.released:
            return []
    attached.points |= {place.point for place in places} - failed.keys()
    return [f"{point.symbol}: {error}" for point, error in failed.items()]


def _places(points: Iterable[AttachPoint], failed: dict[AttachPoint, str]) -> list[_Place]:
    places = []
    for point in points:
        try:
            code = _code_at(point)
        except OSError as error:
            failed[point] = str(error)
            continue
        past = past_landing_pad(code)
        places.append(_Place(point, point.offset + past, entry_kind(code[past:])))
    return places


def _steps(places: Iterable[_Place], way: Way) -> list[_Step]:
    """Programs at returns before those at entries, so that a call that is seen to enter is seen to return."""
    steps: dict[tuple[str, str, bool], list[_Place]] = defaultdict(list)
    for on_return in (True, False):
        for place in places:
            function = place.point.row.on_return if on_return else place.point.row.entry
            if function is not None:
                steps[str(place.point.path), function, on_return].append(place)
    in_order = sorted(steps.items(), key=lambda item: not item[0][2])
    whole = [_Step(*key, tuple(places)) for key, places in in_order]
    return whole if way is Way.LINKS else [step for each in whole for step in _singly(each)]


def _singly(step: _Step) -> list[_Step]:
    return [step._replace(places=(place,)) for place in step.places]


def _attach(
    module: Module,
    way: Way,
    step: _Step,
    tgid: int,
    attached: Attached,
    failed: dict[AttachPoint, str],
    note: Callable[[Noted], None],
) -> None:
    """One step. Where it is refused as a whole, the places that are not to blame are attached one by one."""
    places = tuple(place for place in step.places if place.point not in failed)
    if not places:
        return
    try:
        spots = [place.spot for place in places]
        probe = attach(module, way, step.path, spots, step.function, tgid, on_return=step.on_return)
    except BpfError as error:
        if len(places) == 1:
            failed[places[0].point] = str(error)
        else:
            for single in _singly(step._replace(places=places)):
                _attach(module, way, single, tgid, attached, failed, note)
        return
    attached.probes.append(probe)
    if len(places) == 1:
        (place,) = places
        attached.places[place.point.device, place.point.inode, place.offset].append(probe)
    for place in places:
        note(Noted(place.point.symbol, place.offset, step.on_return, URETPROBE if step.on_return else place.kind))


def count_of(points: Iterable[AttachPoint]) -> int:
    """How many places in code have a program: a link is at many."""
    return sum((point.row.entry is not None) + (point.row.on_return is not None) for point in points)


def _code_at(point: AttachPoint) -> bytes:
    with point.path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), _CODE_BYTES, point.offset)
