"""What an engine answered that was asked to give back what memory it only retains (aie_telemetry.memory_probe), and what that says
of each line: half of its rise given back, and it was retained; less, and it was kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from aie_telemetry.api import Event
from aie_telemetry.memory_probe import EVENT_KIND, LEFT_OUT, NUMBERS, STEPS

STEP_WORDS: Final = {"gc_collect": "gc.collect", "empty_cache": "empty_cache", "malloc_trim": "malloc_trim"}
"""As their callers know them."""

_CPU: Final = "cpu"


class Given(NamedTuple):
    """Bytes that came back, of physical, allocated and reserved memory; less than nothing where it grew, None where it is not
    told."""

    physical: float | None = None
    allocated: float | None = None
    reserved: float | None = None

    def plus(self, other: Given) -> Given:
        """Of several processes or steps."""
        return Given(*(_sum(ours, theirs) for ours, theirs in zip(self, other, strict=True)))

    def of_line(self, line: str, device: str) -> float | None:
        """What of a line on a device came back, None where these numbers do not tell. What tensors gave back and an allocator keeps
        is retained as well, so of the wholes that counts; physical memory is this process's on the CPU, and nothing of a GPU's."""
        held = max((each for each in (self.reserved, self.allocated) if each is not None), default=None)
        physical = self.physical if device == _CPU else None
        values = {
            "allocated": self.allocated,
            "reserved": held,
            "cached": _less(self.reserved, self.allocated),
            "physical": held if physical is None else physical,
            "outside": None if physical is None else physical - (self.reserved or 0.0),
        }
        return values.get(line)


class Step(NamedTuple):
    """A step that was done: how long it took at most, over the engine's processes, and what it gave back."""

    name: str
    seconds: float
    given: Given


class Answer(NamedTuple):
    """What one process answered to a request, or all of an engine's together; `device` is whose allocator told, "" where none did.
    `left_out` are steps that were not done, and why."""

    id: str
    processes: tuple[str, ...]
    time_s: float
    device: str
    steps: tuple[Step, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    def given(self, line: str, device: str) -> float | None:
        """What all steps together gave back of a line."""
        total = Given()
        for step in self.steps:
            total = total.plus(step.given)
        return self._seen_on(device, total).of_line(line, device)

    def best_step(self, line: str, device: str) -> tuple[Step, float] | None:
        """Of a line the step that gave back most, and how much."""
        found = [(step, self._seen_on(device, step.given).of_line(line, device) or 0.0) for step in self.steps]
        return max(found, key=lambda each: each[1], default=None)

    def _seen_on(self, device: str, given: Given) -> Given:
        """The allocator's numbers are those of its device."""
        return given if device == self.device else Given(given.physical)

    def joined(self, other: Answer) -> Answer:
        """With what another process answered to the same request."""
        by_name = {step.name: step for step in self.steps}
        for step in other.steps:
            ours = by_name.get(step.name)
            by_name[step.name] = (
                step if ours is None else Step(step.name, max(step.seconds, ours.seconds), step.given.plus(ours.given))
            )
        steps = tuple(by_name[name] for name in STEPS if name in by_name)
        left_out = tuple(sorted({*self.left_out, *other.left_out}))
        processes = (*self.processes, *other.processes)
        return Answer(self.id, processes, max(self.time_s, other.time_s), self.device or other.device, steps, left_out)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that answered, by their own word; -1 for one that tells none."""
        found = (each.partition(".")[0] for each in self.processes)
        return tuple(int(each) if each.isascii() and each.isdigit() else -1 for each in found)

    @property
    def done(self) -> str:
        """The steps that were done, in words: "gc.collect and malloc_trim"."""
        return " and ".join(STEP_WORDS[step.name] for step in self.steps)

    def dump(self) -> list[Any]:
        """As plain values."""
        return [self.id, list(self.processes), self.time_s, self.device, [list(each) for each in self.steps], list(self.left_out)]

    @classmethod
    def restored(cls, values: Sequence[Any]) -> Answer:
        """What `dump` gave. Raises ValueError or TypeError for anything else."""
        id_, processes, time_s, device, steps, left_out = values
        done = tuple(Step(str(name), float(seconds), Given(*map(_number, given))) for name, seconds, given in steps)
        if any(step.name not in STEP_WORDS for step in done):
            raise ValueError("no step of a memory probe")
        reasons = tuple((str(name), str(reason)) for name, reason in left_out)
        return cls(str(id_), tuple(map(str, processes)), float(time_s), str(device), done, reasons)


def answers(events: Iterable[Event], engine: str) -> list[Answer]:
    """What processes of an engine answered, the oldest first. Events that say nothing one can use are passed over."""
    found = (_answer(event) for event in events if event.kind == EVENT_KIND and event.engine == engine)
    return [each for each in found if each is not None][::-1]


def _answer(event: Event) -> Answer | None:
    details = event.details
    if not (isinstance(details.get("id"), str) and isinstance(details.get("process"), str)):
        return None
    steps, left_out = [], []
    before = _numbers(details, "")
    for name in STEPS:
        reason = details.get(name)
        if isinstance(reason, str):
            if reason in LEFT_OUT and reason != "absent":
                left_out.append((name, reason))
        elif (seconds := _number(details.get(f"{name}_seconds"))) is not None:
            after = _numbers(details, f"{name}_")
            steps.append(Step(name, seconds, Given(*(_less(was, now) for was, now in zip(before, after, strict=True)))))
            before = after
    device = details.get("device", "")
    if not steps or not isinstance(device, str):
        return None
    return Answer(str(details["id"]), (str(details["process"]),), event.time_s, device, tuple(steps), tuple(left_out))


def _numbers(details: dict[str, float | str], prefix: str) -> tuple[float | None, ...]:
    return tuple(_number(details.get(f"{prefix}{name}_bytes")) for name in NUMBERS)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _sum(first: float | None, second: float | None) -> float | None:
    return second if first is None else first if second is None else first + second


def _less(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else whole - part
