"""The sets of uprobes: compiled when the first process needs them, attached process by process."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Final, NamedTuple

import msgspec

from aie_ebpf import attaching, lock_stacks
from aie_ebpf.attaching import Attached, Noted
from aie_ebpf.budget import Mix, mix_of
from aie_ebpf.compilation import Compilation
from aie_ebpf.cuda_libraries import CudaLibraries, cuda_libraries
from aie_ebpf.cuda_probes import CUDA_TEXT, LAUNCH_TEXT
from aie_ebpf.door import Bcc, BpfError, Module
from aie_ebpf.elf_cache import ElfCache
from aie_ebpf.lock_stacks import LockStacks
from aie_ebpf.mappings import GONE, AddressSpace, address_space
from aie_ebpf.messages import Coverage, Cuda, Histogram, LockStack, SetState, Target
from aie_ebpf.probes import SETS, UPROBES, When
from aie_ebpf.readers.cuda import CudaReader
from aie_ebpf.readers.gc import GcReader
from aie_ebpf.readers.launches import LaunchReader
from aie_ebpf.readers.lost import LostReader
from aie_ebpf.targets import AttachPoint, attach_points
from aie_ebpf.uprobe_links import Way
from aie_ebpf.usdt import gc_points

LOCK_STACKS: Final = "lock_stacks"
"""No uprobes, but compiled and attached as they are: when it is asked for, to processes."""

UPROBE_SETS: Final = tuple(each.name for each in SETS if each.when is not When.ALWAYS)
_COOKIES: Final = ("COOKIES",)
_BASE: Final = ("common.h", "watched.h", "watched_there.h")


class _Group(NamedTuple):
    """Sets whose programs share maps, and so are one module, compiled when the first of them is attached."""

    sets: tuple[str, ...]
    programs: tuple[str, ...]


_GROUPS: Final = (
    _Group(("cuda_memory", "cuda_sync", "cuda_copy"), CUDA_TEXT),
    _Group(("cuda_launch",), LAUNCH_TEXT),
    _Group(("gc",), ("gc",)),
    _Group((LOCK_STACKS,), ("lock_stacks",)),
)
_CUDA, _LAUNCHES, _GC, _STACKS = _GROUPS


class UprobeSets:
    """Modules, readers, and the attaching of their programs."""

    def __init__(self, bcc: Bcc, without: frozenset[str], way: Way) -> None:
        """Compiles nothing yet."""
        self._bcc = bcc
        self._way = way
        self._without = without
        self.elfs = ElfCache()
        """What was found in files, for all who ask."""
        self._modules: dict[_Group, Module] = {}
        self._failed: dict[_Group, str] = {}
        self._compilations: dict[_Group, Compilation] = {}
        self._cuda: CudaReader | None = None
        self._launches: LaunchReader | None = None
        self._gc: GcReader | None = None
        self._stacks: LockStacks | None = None
        self._has_stacks = False
        self._lost: list[LostReader] = []
        self._spaces: dict[int, AddressSpace] = {}
        self._earlier: dict[tuple[int, str], str] = {}
        self._kinds: dict[str, dict[tuple[str, int, bool], str]] = defaultdict(dict)
        self.mixes: dict[str, Mix] = {}
        """Which kinds the hits of a set are made of, of those that were attached so far."""

    def states(self) -> tuple[SetState, ...]:
        """Every set of uprobes: whether it can be used, as far as is known before the first process that needs it."""
        return tuple(SetState(set=name, loaded=not self._refusal(name), reason=self._refusal(name)) for name in UPROBE_SETS)

    def libraries(self, tgid: int) -> CudaLibraries:
        """CUDA's libraries in a process, as they are now: to be given to `attach` and `outlook`."""
        return cuda_libraries(tgid, cache=self.elfs)

    def outlook(self, name: str, target: Target, libraries: CudaLibraries) -> Coverage:
        """What a window of this set would see of a process; attaches nothing."""
        if name == LOCK_STACKS:
            coverage = self._plan_stacks(target)
            return coverage if coverage.state == "off" else msgspec.structs.replace(coverage, state="window")
        points, coverage = self._plan(name, target, libraries)
        return msgspec.structs.replace(coverage, state="window") if points else coverage

    def attach(self, name: str, target: Target, libraries: CudaLibraries, attached: Attached) -> Generator[None, None, Coverage]:
        """Attaches a set to a process, or to what it has loaded since; a step at a time, no further once `attached` is released.
        Returns what can be seen by it."""
        points, coverage = self._plan(name, target, libraries)
        errors = []
        fresh = [point for point in points if point not in attached.points]
        if fresh:
            is_first = not attached.probes
            try:
                module = yield from self._module(name)
                note = self._noter(name)
                errors = yield from attaching.attach_points(module, self._way, fresh, target.tgid, attached, note)
                if is_first and attached.probes and self._cuda is not None and name in _CUDA.sets:
                    self._note_start(name, target.tgid, self._cuda.watch(target.tgid, name))
            except BpfError as error:  # the set's programs cannot be had at all
                errors = [str(error)]
        if name == "cuda_memory" and (space := address_space(target.tgid)).files:  # should it end before its callers are asked for
            self._spaces[target.tgid] = space
        if (earlier := self._earlier.get((target.tgid, name))) is not None:
            coverage = msgspec.structs.replace(coverage, state="part", missing=(*coverage.missing, earlier))
        if errors and not attached.probes:
            coverage = msgspec.structs.replace(coverage, state="off", reason=errors[0])
        elif errors:
            coverage = msgspec.structs.replace(coverage, state="part", missing=(*coverage.missing, *errors))
        return msgspec.structs.replace(coverage, probes=attaching.count_of(attached.points))

    def attach_stacks(
        self, target: Target, locks: Collection[tuple[int, int]], attached: Attached
    ) -> Generator[None, None, Coverage]:
        """Begins to look at the stacks of a process's threads that wait: at these locks (tgid, address), or at all. As `attach`."""
        coverage = self._plan_stacks(target)
        if coverage.state == "off":
            return coverage
        try:
            yield from self._module(LOCK_STACKS)
            if self._stacks is not None and not attached.released:
                attached.shared.append(self._stacks.begin(target, locks))
        except BpfError as error:
            return msgspec.structs.replace(coverage, state="off", reason=lock_stacks.explained(error))
        return msgspec.structs.replace(coverage, probes=1)

    def forget(self, tgid: int) -> None:
        """A process ended or is released: what maps hold of it is dropped."""
        self._spaces.pop(tgid, None)
        for key in [key for key in self._earlier if key[0] == tgid]:
            del self._earlier[key]
        for reader in (self._cuda, self._launches, self._gc, self._stacks):
            if reader is not None:
                reader.forget(tgid)

    def leave(self, name: str, tgid: int) -> None:
        """A set watches a process no more: what it knew of it grows old."""
        self._earlier.pop((tgid, name), None)
        if self._cuda is not None and name in _CUDA.sets:
            self._cuda.leave(tgid, name)

    def read_cuda(self, now_ns: int) -> dict[int, Cuda]:
        """What processes did with CUDA since the reading before. Raises BpfError."""
        found = self._cuda.read(now_ns, self._module_at) if self._cuda is not None else {}
        for tgid, launches in (self._launches.read() if self._launches is not None else {}).items():
            found[tgid] = msgspec.structs.replace(found.get(tgid, Cuda()), launches=launches)
        return found

    def read_gc(self) -> dict[int, Histogram]:
        """Collections of Python's garbage collector. Raises BpfError."""
        return self._gc.read() if self._gc is not None else {}

    def read_lock_stacks(self) -> tuple[LockStack, ...]:
        """Stacks of threads that began to wait since the reading before."""
        return self._stacks.read() if self._stacks is not None else ()

    def read_lost(self, now_ns: int) -> Iterable[dict[str, int]]:
        """What could not be noted, by module; `now_ns` is the monotonic clock. Raises BpfError."""
        return [reader.read(now_ns) for reader in self._lost]

    def _module_at(self, tgid: int, address: int) -> str:
        """The file that an address of a process is in. Its mappings are read again when an address is in none of those known."""
        space = self._spaces.get(tgid)
        if space is None or space.module_at(address) == GONE:
            now = address_space(tgid)
            if space is None or now.files:  # of a process that has ended what was known is all there is
                space = self._spaces[tgid] = now
        return space.module_at(address)

    def _note_start(self, name: str, tgid: int, sees_all: bool) -> None:
        """A set was attached to a process just now; where that had memory before, it says from when on it knows."""
        if not sees_all:
            self._earlier[tgid, name] = f"what it took before {time.strftime('%H:%M:%S')} is not known"

    def _refusal(self, name: str) -> str:
        return "left out by configuration" if name in self._without else self._failed.get(_group_of(name), "")

    def _plan(self, name: str, target: Target, libraries: CudaLibraries) -> tuple[list[AttachPoint], Coverage]:
        """Where a set is to be attached in a process, and what can be seen so."""

        def off(reason: str) -> Coverage:
            return Coverage(engine=target.engine, tgid=target.tgid, set=name, state="off", reason=reason)

        missing: tuple[str, ...] = ()
        notes: tuple[str, ...] = ()
        refusal = self._refusal(name)
        if refusal:
            return [], off(refusal)
        if name in _GC.sets:
            points, reason = gc_points(target.tgid, cache=self.elfs, files=libraries.files)
        else:
            if libraries.driver is None:
                return [], msgspec.structs.replace(off(libraries.sentences()[0]), state="none")
            points, unseen = attach_points(libraries.files, [row for row in UPROBES if row.set == name], cache=self.elfs)
            missing = tuple(dict.fromkeys(each.reason for each in unseen))
            notes = libraries.sentences()
            reason = missing[0] if missing else "nothing of it is in the driver's library"
        if not points:
            return [], off(reason)
        state = "part" if missing else "on"
        return points, Coverage(engine=target.engine, tgid=target.tgid, set=name, state=state, missing=missing, notes=notes)

    def _plan_stacks(self, target: Target) -> Coverage:
        """Whether this kernel can do it; the process does not matter."""
        # A kernel does not lose it, and to ask costs: tracefs is read under a lock that is held while anybody attaches.
        lacking = "" if self._has_stacks else lock_stacks.refusal()
        self._has_stacks = not lacking
        reason = self._refusal(LOCK_STACKS) or lacking
        coverage = Coverage(engine=target.engine, tgid=target.tgid, set=LOCK_STACKS, state="on")
        return msgspec.structs.replace(coverage, state="off", reason=reason) if reason else coverage

    def _noter(self, name: str) -> Callable[[Noted], None]:
        def note(noted: Noted) -> None:
            self._kinds[name][noted[:3]] = noted.kind
            self.mixes[name] = mix_of(self._kinds[name].values())

        return note

    def _module(self, name: str) -> Generator[None, None, Module]:
        """Raises BpfError, at every call after one that failed."""
        group = _group_of(name)
        if group in self._failed:
            raise BpfError(self._failed[group])
        if group not in self._modules:
            compilation = self._compilations.setdefault(
                group, Compilation(self._bcc, (*_BASE, *group.programs), _COOKIES if self._way is Way.LINKS else ())
            )
            yield from compilation.wait()
            if group in self._modules:  # another waited for it, too
                return self._modules[group]
            try:
                module = compilation.result()
                self._read_from(group, module)
            except BpfError as error:
                self._failed[group] = str(error)
                raise
            self._modules[group] = module
            self._bcc.trim()
        return self._modules[group]

    def _read_from(self, group: _Group, module: Module) -> None:
        if group is _CUDA:
            self._cuda = CudaReader(module)
        elif group is _LAUNCHES:
            self._launches = LaunchReader(module)
        elif group is _GC:
            self._gc = GcReader(module)
        else:
            self._stacks = LockStacks(module)
        self._lost.append(LostReader(module))


def _group_of(name: str) -> _Group:
    return next(group for group in _GROUPS if name in group.sets)
