"""Memory modules as the firmware lists them (SMBIOS type 17), and channels that are empty. Readable by root, where there is a BIOS.

Engines that run on CPUs, and copies to GPUs, are as fast as the host's memory: every empty channel takes its share away.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

TABLE: Final = Path("/sys/firmware/dmi/tables/DMI")

_MODULE: Final = 17
_END: Final = 127
_SIZE_AT, _LOCATOR_AT, _BANK_AT = 0x0C, 0x10, 0x11
# "P0 CHANNEL A", "CPU1_DIMM_B2", "DIMM C1", "NODE 1 CHANNEL 3": processor, then channel.
_PROCESSOR: Final = re.compile(r"(?:CPU|PROC|NODE|P)[ _]?(\d+)", re.IGNORECASE)
# The surest first; a letter and a digit alone only where that is all there is.
_CHANNELS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"CHANNEL[ _]?([A-Z]\b|[A-Z](?=-)|\d+)", r"DIMM[ _]?([A-Z])\d?\b", r"^\s*([A-Z])\d\s*$")
)


class Module(NamedTuple):
    """A slot for a memory module: its name and bank as the firmware writes them, and whether there is one in it."""

    locator: str
    bank: str
    is_filled: bool


class Channels(NamedTuple):
    """Slots that are filled, of all, and the channels without any module; `channels` is 0 where names do not tell channels."""

    filled: int
    slots: int
    channels: int
    empty: tuple[str, ...]


def modules(table: bytes) -> list[Module]:
    """The memory modules of an SMBIOS table. A table that is cut short gives what stands before the cut."""
    found = []
    position = 0
    while position + 4 <= len(table):
        kind, length = table[position], table[position + 1]
        if length < 4 or kind == _END:
            break
        end = table.find(b"\0\0", position + length)
        if end < 0:
            break
        strings = [text.decode("latin-1") for text in table[position + length : end].split(b"\0")]
        structure = table[position : position + length]
        if kind == _MODULE and length > _BANK_AT:
            size = int.from_bytes(structure[_SIZE_AT : _SIZE_AT + 2], "little")
            locator, bank = (_string(strings, structure[place]) for place in (_LOCATOR_AT, _BANK_AT))
            found.append(Module(locator, bank, size != 0))
        position = end + 2
    return found


def channels(all_modules: list[Module]) -> Channels:
    """What the names of the slots say of channels."""
    filled: dict[str, bool] = {}
    for module in all_modules:
        channel = _channel(module)
        if channel is not None:
            filled[channel] = filled.get(channel, False) or module.is_filled
    empty = tuple(sorted(channel for channel, is_filled in filled.items() if not is_filled))
    return Channels(sum(module.is_filled for module in all_modules), len(all_modules), len(filled), empty)


def _channel(module: Module) -> str | None:
    text = f"{module.bank} {module.locator}"
    match = next((found for pattern in _CHANNELS if (found := pattern.search(text))), None)
    if match is None:
        return None
    processor = _PROCESSOR.search(text)
    return f"CPU {processor[1]} channel {match[1].upper()}" if processor else f"channel {match[1].upper()}"


def _string(strings: list[str], number: int) -> str:
    return strings[number - 1].strip() if 0 < number <= len(strings) else ""
