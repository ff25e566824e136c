"""Which calls the table makes of one GPU: rows that it does not support cost nothing, and rows of one call share it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from aie_agent.sources.nvml.door import Device
from aie_agent.sources.nvml.meter import Meter
from aie_agent.sources.nvml.plain_calls import FILLED, PlainCall
from aie_agent.sources.nvml.rows import FIELDS, Pace, Row


class Query(NamedTuple):
    """One call (one for each NVLink, where `each_link`) and what is taken out of its answer."""

    call: str
    args: tuple[int, ...]
    each_link: bool
    meters: tuple[Meter, ...]


class Part(NamedTuple):
    """What is asked together. `fields` are of the one call for field values. `plain` are the calls of those queries that have one,
    in the same order."""

    fields: tuple[Meter, ...]
    queries: tuple[Query, ...]
    plain: tuple[PlainCall, ...]


Plan = dict[Pace, Part]
Number = tuple[str, tuple[str, ...]]
"""A metric and the values of its labels behind `gpu`."""


def plan(rows: Sequence[Row], device: Device, meters: dict[Number, Meter], without: Collection[Number] = ()) -> Plan:
    """The calls for these rows: of every number the best way that this GPU is not known to lack.

    `meters` are those of the plan before, and are renewed: a series whose way did not change goes on. `without` are numbers that
    come in another way.
    """
    best: dict[Number, Row] = {}
    for row in rows:
        number = (row.metric, row.labels)
        if number not in without and not is_unsupported(device, row):
            best.setdefault(number, row)
    for number, row in best.items():
        if number not in meters or meters[number].row is not row:
            meters[number] = Meter(row, str(device.index))
    chosen = [meters[number] for number in best]
    return {pace: _part([meter for meter in chosen if meter.row.pace is pace]) for pace in Pace}


def is_unsupported(device: Device, row: Row) -> bool:
    """Whether this GPU is known to lack what the row asks for: with its arguments, or the whole function."""
    return (row.call, row.args) in device.unsupported or (row.call, ()) in device.unsupported


def _part(meters: list[Meter]) -> Part:
    grouped: dict[tuple[str, tuple[int, ...], bool], list[Meter]] = {}
    for meter in meters:
        row = meter.row
        if row.call != FIELDS:
            grouped.setdefault((row.call, row.args, row.each_link), []).append(meter)
    return Part(
        tuple(meter for meter in meters if meter.row.call == FIELDS),
        tuple(Query(*asked, tuple(members)) for asked, members in grouped.items()),
        tuple(PlainCall(call, args) for call, args, _ in grouped if call in FILLED),
    )
