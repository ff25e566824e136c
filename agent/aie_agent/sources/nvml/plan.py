"""Which calls the table makes of one GPU: rows that it does not support cost nothing, and rows of one call share it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from aie_agent.samples import Tags
from aie_agent.sources.nvml.door import Device
from aie_agent.sources.nvml.rows import FIELDS, Pace, Row
from aie_telemetry.catalogue import CATALOGUE, Kind


class Output(NamedTuple):
    """A row with the series that its number goes to."""

    row: Row
    kind: Kind
    tags: Tags


class Query(NamedTuple):
    """One call (one for each NVLink, where `each_link`) and what is taken out of its answer."""

    call: str
    args: tuple[int, ...]
    each_link: bool
    outputs: tuple[Output, ...]


class Part(NamedTuple):
    """What is asked together. `fields` are of the one call for field values."""

    fields: tuple[Output, ...]
    queries: tuple[Query, ...]


Plan = dict[Pace, Part]
Number = tuple[str, tuple[str, ...]]
"""A metric and the values of its labels behind `gpu`."""


def plan(rows: Sequence[Row], device: Device, without: Collection[Number] = ()) -> Plan:
    """The calls for these rows: of every number the best way that this GPU is not known to lack.

    `without` are numbers that come in another way.
    """
    best: dict[Number, Row] = {}
    for row in rows:
        number = (row.metric, row.labels)
        if number not in without and not is_unsupported(device, row):
            best.setdefault(number, row)
    outputs = [_output(row, str(device.index)) for row in best.values()]
    return {pace: _part([output for output in outputs if output.row.pace is pace]) for pace in Pace}


def is_unsupported(device: Device, row: Row) -> bool:
    """Whether this GPU is known to lack what the row asks for: with its arguments, or the whole function."""
    return (row.call, row.args) in device.unsupported or (row.call, ()) in device.unsupported


def _part(outputs: list[Output]) -> Part:
    grouped: dict[tuple[str, tuple[int, ...], bool], list[Output]] = {}
    for output in outputs:
        row = output.row
        if row.call != FIELDS:
            grouped.setdefault((row.call, row.args, row.each_link), []).append(output)
    return Part(
        tuple(output for output in outputs if output.row.call == FIELDS),
        tuple(Query(*asked, tuple(members)) for asked, members in grouped.items()),
    )


def _output(row: Row, gpu: str) -> Output:
    metric = CATALOGUE[row.metric]
    tags = tuple(sorted(zip(metric.labels, (gpu, *row.labels), strict=True)))
    return Output(row, metric.kind, tags)
