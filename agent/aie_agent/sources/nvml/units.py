"""What NVML's numbers are in, and which of them cannot be true."""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_agent.sources.nvml.door import Absent, number

_MIB = 1024.0 * 1024.0
_ANY = float("inf")


class Unit(NamedTuple):
    """How a number becomes the metric's base unit, and between which values (in base units) it may lie.

    Up to `slack` above `high` a value counts as `high`: a duty cycle of 101 % is rounding, one of 37100 % is garbage. `per_second`
    is the fastest that a counter can rise, and the most that a rate made of one can be.
    """

    scale: float
    low: float = 0.0
    high: float = _ANY
    slack: float = 0.0
    per_second: float = _ANY


PERCENT: Final = Unit(0.01, 0.0, 1.0, slack=0.05)
FAN_PERCENT: Final = Unit(0.01, 0.0, 2.0)  # the target may lie above 100 %
MILLIWATTS: Final = Unit(1e-3, 0.0, 20e3)
MILLIJOULES: Final = Unit(1e-3, per_second=20e3)
MEGAHERTZ: Final = Unit(1e6, 0.0, 20e9)
CELSIUS: Final = Unit(1.0, -60.0, 300.0)
NANOSECONDS: Final = Unit(1e-9, per_second=4.0)  # one reason may be the sum of several
# Counters have no highest value: NVLink 5 moves a petabyte within minutes.
BYTES: Final = Unit(1.0, per_second=2.0**44)
KIBIBYTES: Final = Unit(1024.0, per_second=2.0**44)
KILOBYTES_PER_SECOND: Final = Unit(1e3, 0.0, 2.0**44)
MIBIBYTES_PER_SECOND: Final = Unit(_MIB, 0.0, 2.0**44)
LANES: Final = Unit(1.0, 0.0, 64.0)
GENERATION: Final = Unit(1.0, 0.0, 15.0)
STATE: Final = Unit(1.0, 0.0, 15.0)
FLAG: Final = Unit(1.0, 0.0, 1.0)
COUNT: Final = Unit(1.0, 0.0, 2.0**53)


def convert(value: object, unit: Unit) -> float | Absent | None:
    """In base units; `Absent` where the value stands for none, None where it cannot be true."""
    if value is True or value is False:
        return float(value)
    plain = number(value)
    if isinstance(plain, Absent):
        return plain
    based = plain * unit.scale
    if unit.low <= based <= unit.high:
        return based
    return unit.high if unit.high < based <= unit.high + unit.slack else None
