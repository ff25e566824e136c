"""Histories of replicas and of the hosts that tell of them, and which share of time each engine had one, by an oracle in Python.

In half minutes, so that no look falls on the edge of a window in which a host may be silent. What is told holds for that moment;
of a host that is silent for two minutes, all that it had in the hour before is down, however long it is silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

Told = Sequence[int | None]

_STEPS: Final = 2 * 366
_SILENT_STEPS: Final = 4
"""Two minutes."""
_HOUR_STEPS: Final = 120


class Host(NamedTuple):
    """Whether it answers, a sample each half minute, and what it tells of its engines."""

    name: str
    up: Told
    engines: dict[str, Told]


def _until(left_min: int, value: int = 1) -> list[int | None]:
    """So many minutes before the end it ends."""
    steps = _STEPS - 2 * left_min - 1
    return [value] * steps + [None] * (_STEPS - steps)


def _silent_for(left_min: int) -> list[int | None]:
    """A host that fails half a minute after what it told."""
    steps = _STEPS - 2 * left_min
    return [1] * steps + [0] * (_STEPS - steps)


_WELL: Final[list[int | None]] = [1] * _STEPS


def _silent(left_min: int, **engines: Told) -> Host:
    """A host that is silent for so long, and what was there on it until then."""
    return Host(f"silent for {left_min}", _silent_for(left_min), {f"of {left_min}": _until(left_min), **engines})


WORLDS: Final = (
    (
        # Two replicas, of which now the one and now the other is there, now both and now none. And one that is no more on a host
        # that answers: whether it should be nobody knows.
        Host("h", _WELL, {"e": [int(step // 2 % 7 not in (1, 2)) for step in range(_STEPS)], "left": _until(90)}),
        Host("i", _WELL, {"e": [int(step // 2 % 5 in (0, 2)) for step in range(_STEPS)]}),
        _silent(350),
    ),
    (
        Host("h", _WELL, {"moved": [None] * (_STEPS - 40) + [1] * 40}),
        _silent(30, moved=_until(30)),
        _silent(4),
    ),
    (
        # Of hosts that are silent for half an hour: one that was removed a long time before, one a short time before; and one that
        # came there only afterwards.
        _silent(30, removed=_until(150), lately=_until(60)),
        Host(
            "back",
            [0 if 180 <= _STEPS - step < 240 else 1 for step in range(_STEPS)],
            {"new": [None] * (_STEPS - 100) + [1] * 100, "old": [1] * (_STEPS - 480) + [None] * 480},
        ),
    ),
)
"""Each by itself: promtool looks at no more than so many samples at once."""


def written(values: Told) -> str:
    """As promtool takes it."""
    pairs = zip((None, *values), values, strict=False)
    return " ".join(str(value) if value is not None else "_" if before is None else "stale" for before, value in pairs)


def series(hosts: Sequence[Host]) -> dict[str, str]:
    """All of them, by name."""
    told = {
        f'aie_engine_up{{job="aie", instance="{host.name}", engine="{engine}"}}': written(values)
        for host in hosts
        for engine, values in host.engines.items()
    }
    of_another_job = {'aie_engine_up{job="b", instance="h", engine="e"}': written([0] * _STEPS)}
    return {**told, **of_another_job, **{f'up{{job="aie", instance="{host.name}"}}': written(host.up) for host in hosts}}


AT_S: Final = 30 * (_STEPS - 1)
"""When it is asked: half a minute after the last whole one."""


def share(hosts: Sequence[Host], window_min: int) -> dict[str, float]:
    """Of the whole minutes within the window of which something is known."""
    last = AT_S // 60
    found = {}
    for engine in dict.fromkeys(engine for host in hosts for engine in host.engines):
        told = [host for host in hosts if engine in host.engines]
        looks = ([_of_host(host, engine, 2 * minute) for host in told] for minute in range(last - window_min + 1, last + 1))
        known = [max(each for each in look if each is not None) for look in looks if set(look) != {None}]
        if known:
            found[engine] = sum(known) / len(known)
    return found


def _of_host(host: Host, engine: str, step: int) -> int | None:
    """Whether it has a live one; None where nothing is known of it."""
    told = host.engines[engine]
    if told[step] is not None or any(host.up[max(step - _SILENT_STEPS + 1, 0) : step + 1]):
        return told[step]
    answered = max(each for each in range(step) if host.up[each])
    return None if set(told[max(answered - _HOUR_STEPS, 0) : step]) == {None} else 0


LOOK_S: Final = 300
"""So often Prometheus looks in thirty days, and so often there are samples of the month."""
_LOOKS: Final = 31 * 86400 // LOOK_S
MONTH_S: Final = _LOOKS * LOOK_S
"""A day more than is looked at."""
_WITHIN: Final = _LOOKS - 30 * 86400 // LOOK_S
_UP: Final = 'up{job="aie", instance="silent"}'
_UP_OF_DEAD: Final = 'up{job="aie", instance="dead"}'
_SILENT: Final = range(_LOOKS - 10, _LOOKS + 1)
_LIVED: Final = range(_WITHIN + 11, _WITHIN + 32)
_DEAD: Final = range(_LIVED.stop, _LOOKS + 1)
"""For 29.8 days."""


class Spell(NamedTuple):
    """A time in which something was told, and what."""

    looks: range
    value: int


_TOLD: Final[dict[tuple[str, str], tuple[Spell, ...]]] = {
    # On a host that answers: there for as long at the edge of the thirty days, within and without, and down at their end.
    ("h", "moving"): (Spell(range(_WITHIN - 39, _WITHIN + 12), 1), Spell(range(_LOOKS - 800, _LOOKS - 771), 0)),
    ("i", "moving"): (Spell(range(_WITHIN + 1, _WITHIN + 6), 1), Spell(range(_WITHIN + 6, _WITHIN + 10), 0)),  # never alone
    ("silent", "known"): (Spell(_LIVED, 1), Spell(range(_SILENT.start - 9, _SILENT.start - 3), 1)),
    ("silent", "forgotten"): (Spell(_LIVED, 1),),
    ("dead", "lost"): (Spell(_LIVED, 1),),
}
_DOWN: Final = {"known": len(_SILENT) - 1, "lost": len(_DEAD)}
"""In so many looks, for a host that does not answer: but in the one less than two minutes after an answer."""


_ANSWERED: Final = ((_SILENT.start - 5, 60), (_SILENT.start + 2, 90), (_SILENT.start + 5, 200))
"""When the silent host did answer, and how long before that look. By the last one it is silent for two minutes again."""


def _series_of_month() -> dict[str, tuple[Spell, ...]]:
    told = {f'aie_engine_up{{job="aie", instance="{host}", engine="{name}"}}': spells for (host, name), spells in _TOLD.items()}
    return {**told, _UP: (Spell(_SILENT, 0),), _UP_OF_DEAD: (Spell(_LIVED, 1), Spell(_DEAD, 0))}


def month() -> Iterator[tuple[str, str]]:
    """The host that has been dead for most of it, as promtool takes it."""
    for name, spells in _series_of_month().items():
        if 'instance="dead"' not in name:
            continue
        values, at = [], 0
        for looks, value in spells:
            values += [f"_x{looks.start - at}", f"{value}x{len(looks) - 1}"]
            at = looks.stop
        yield name, " ".join(values)


def open_metrics(end_s: int) -> str:
    """The same as a text of OpenMetrics whose last look is at `end_s`; each sample is a minute older, and lasts for one look."""
    samples = [
        (name, look * LOOK_S - 60, value)
        for name, spells in _series_of_month().items()
        for looks, value in spells
        for look in looks
    ]
    samples += [(_UP, look * LOOK_S - before_s, 1) for look, before_s in _ANSWERED]
    lines = [f"{name.replace(', ', ',')} {value} {end_s - MONTH_S + at_s}" for name, at_s, value in sorted(samples)]
    first_up = next(number for number, line in enumerate(lines) if line.startswith("up{"))
    return "\n".join(("# TYPE aie_engine_up gauge", *lines[:first_up], "# TYPE up gauge", *lines[first_up:], "# EOF", ""))


def share_of_month() -> dict[str, float]:
    """Of the looks within thirty days of which something is known: of whom a silent host had in that time, that it was down."""
    found = {}
    for engine in dict.fromkeys(engine for _, engine in _TOLD):
        live: dict[int, int] = {}
        for host in (host for host, each in _TOLD if each == engine):
            for looks, value in _TOLD[host, engine]:
                live |= {look: max(value, live.get(look, 0)) for look in looks if look > _WITHIN}
        if live:
            found[engine] = sum(live.values()) / (len(live) + _DOWN.get(engine, 0))
    return found
