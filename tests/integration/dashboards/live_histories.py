"""Histories of replicas and of the hosts that tell of them, and which share of time each engine had one, by an oracle in Python.

In half minutes, so that no look falls on the edge of a window in which a host may be silent. What is told holds for that moment;
of a host that is silent for two minutes, all that it had in the hour before is down, however long it is silent. Of a target that
has been gone for five minutes, what lived is down until an hour after it last did; unless Prometheus itself was away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

Told = Sequence[int | None]

_STEPS: Final = 2 * 366
_SILENT_STEPS: Final = 4
"""Two minutes."""
_HOUR_STEPS: Final = 120
_GONE_STEPS: Final = 10
"""Five minutes."""


class Host(NamedTuple):
    """Whether it answers, a sample each half minute, and what it tells of its engines. None is a target that Prometheus has not."""

    name: str
    up: Told
    engines: dict[str, Told]
    job: str = "aie"


def _until(left_min: int, value: int = 1) -> list[int | None]:
    """So many minutes before the end it ends."""
    steps = _STEPS - 2 * left_min - 1
    return [value] * steps + [None] * (_STEPS - steps)


def _silent_for(left_min: int) -> list[int | None]:
    """A host that fails half a minute after what it told."""
    steps = _STEPS - 2 * left_min
    return [1] * steps + [0] * (_STEPS - steps)


_WELL: Final[list[int | None]] = [1] * _STEPS


def _ends(left_min: int, value: int = 1, begins_min: int = _STEPS // 2) -> list[int | None]:
    """As of a pod: told from so many minutes before the end until so many before it, and half a minute less."""
    begins, ends = _STEPS - 2 * begins_min, _STEPS - 2 * left_min
    return [None] * begins + [value] * (ends - begins) + [None] * (_STEPS - ends)


def _gone(left_min: int, **engines: Told) -> Host:
    """A pod that was evicted, with the agent beside its engine."""
    return Host(f"gone for {left_min}", _ends(left_min), {f"evicted {left_min} ago": _ends(left_min), **engines})


def _away(told: Told, begins_min: int, ends_min: int) -> Told:
    """The same where Prometheus was away between so many minutes before the end."""
    away = range(_STEPS - 2 * begins_min, _STEPS - 2 * ends_min)
    return [None if step in away else each for step, each in enumerate(told)]


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
    (
        # A pod that was evicted, with what had ended before; what lived elsewhere, too, or came back there soon, or late.
        Host("h", _WELL, {"replica": _WELL, "soon": _ends(0, begins_min=48)}),
        _gone(50, ended=_ends(50, 0), replica=_ends(50), soon=_ends(50)),
    ),
    (
        Host("h", _WELL, {"late": _ends(0, begins_min=30)}),
        _gone(150, late=_ends(150)),
        _gone(4),
    ),
    # The only target of its job: that Prometheus was there, another tells.
    (Host("h", _WELL, {}, "another"), _gone(50)),
    (
        # Prometheus was away for ten minutes: nobody is down for that. But whose pod was evicted then is, once others are read.
        Host("h", _away(_WELL, 40, 30), {"e": _away(_WELL, 40, 30)}),
        _gone(40),
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
        f'aie_engine_up{{job="{host.job}", instance="{host.name}", engine="{engine}"}}': written(values)
        for host in hosts
        for engine, values in host.engines.items()
    }
    of_another_job = {'aie_engine_up{job="b", instance="h", engine="e"}': written([0] * _STEPS)}
    return {**told, **of_another_job, **{f'up{{job="{host.job}", instance="{host.name}"}}': written(host.up) for host in hosts}}


AT_S: Final = 30 * (_STEPS - 1)
"""When it is asked: half a minute after the last whole one."""


def share(hosts: Sequence[Host], window_min: int) -> dict[str, float]:
    """Of the whole minutes within the window of which something is known."""
    last = AT_S // 60
    found = {}
    for engine in dict.fromkeys(engine for host in hosts for engine in host.engines):
        told = [host for host in hosts if engine in host.engines]
        looks = ([_of_host(host, engine, 2 * minute, hosts) for host in told] for minute in range(last - window_min + 1, last + 1))
        known = [max(each for each in look if each is not None) for look in looks if set(look) != {None}]
        if known:
            found[engine] = sum(known) / len(known)
    return found


def _of_host(host: Host, engine: str, step: int, hosts: Sequence[Host]) -> int | None:
    """Whether it has a live one; None where nothing is known of it. Of all hosts, whether any was read."""
    told = host.engines[engine]
    answers = _before(host.up, step + 1, _SILENT_STEPS)
    if told[step] is not None or any(answers):
        return told[step]
    if set(answers) == {None}:
        return _of_gone(host, told, step, hosts)
    answered = max(each for each in range(step) if host.up[each])
    return None if set(_before(told, answered, _HOUR_STEPS)) == {None} else 0


def _of_gone(host: Host, told: Told, step: int, hosts: Sequence[Host]) -> int | None:
    """As `_of_host`, of a target that Prometheus has not asked for two minutes."""
    asked = set(_before(host.up, step + 1, _GONE_STEPS)) != {None}
    others_read = any(each is not None for other in hosts for each in _before(other.up, step - _GONE_STEPS + 3, 2))
    last = next((each for each in reversed(_before(told, step + 1, _HOUR_STEPS)) if each is not None), None)
    return 0 if last == 1 and others_read and not asked else None


def _before(values: Told, end: int, steps: int) -> Told:
    """So many before that one."""
    return values[max(end - steps, 0) : max(end, 0)]


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
_POD: Final = range(_LOOKS - 3000, _LOOKS - 2000)
"""In which a pod lived, with the agent beside its engine."""
_GUARD_S: Final = 270
"""So long before a look another job is read, which tells that Prometheus was there."""


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
    ("pod", "evicted"): (Spell(_POD, 1),),
    ("unread", "evicted unread"): (Spell(range(_POD.start - 100, _POD.stop - 100), 1),),
}
_DOWN: Final = {"known": len(_SILENT) - 1, "lost": len(_DEAD), "evicted": 3600 // LOOK_S - 1}
"""In so many looks, for a host that does not answer: but in the one less than two minutes after an answer; and for a pod that is
gone, until an hour after its last sample, which is a minute older than its look."""


_ANSWERED: Final = ((_SILENT.start - 5, 60), (_SILENT.start + 2, 90), (_SILENT.start + 5, 200))
"""When the silent host did answer, and how long before that look. By the last one it is silent for two minutes again."""


def _series_of_month() -> dict[str, tuple[Spell, ...]]:
    told = {f'aie_engine_up{{job="aie", instance="{host}", engine="{name}"}}': spells for (host, name), spells in _TOLD.items()}
    of_pods = {'up{job="aie", instance="pod"}': (Spell(_POD, 1),)}
    return {**told, _UP: (Spell(_SILENT, 0),), _UP_OF_DEAD: (Spell(_LIVED, 1), Spell(_DEAD, 0)), **of_pods}


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
    samples += [('up{job="another", instance="h"}', look * LOOK_S - _GUARD_S, 1) for look in range(_POD.stop, _POD.stop + 20)]
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
