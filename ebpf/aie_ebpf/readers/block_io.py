"""How long block devices took: the maps of block_io."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

from aie_ebpf.door import Module
from aie_ebpf.messages import BlockIo
from aie_ebpf.readers.histograms import FIELDS, gained

_OPS: Final = {ord("R"): "read", ord("W"): "write"}
_MINOR_BITS: Final = 20  # of the kernel's own dev_t


class BlockIoReader:
    """Reads the module that holds block_io."""

    def __init__(self, module: Module, sys_dev: Path = Path("/sys/dev/block")) -> None:
        """Raises BpfError."""
        self._devices = module.table("devices", "II", f"{FIELDS + 1}Q")
        self._sys_dev = sys_dev
        self._names: dict[int, str] = {}
        self._last: dict[tuple[str, str], list[int]] = {}

    def read(self) -> tuple[BlockIo, ...]:
        """What each device completed since the reading before. Raises BpfError."""
        totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * (FIELDS + 1))
        for (device, letter), values in self._devices.items():
            total = totals[self._name(device), _OPS.get(letter, "other")]
            for index, value in enumerate(values):
                total[index] += value
        rows = []
        for (device_name, op), total in totals.items():
            before = self._last.get((device_name, op), [0] * (FIELDS + 1))
            seconds = gained(total, before)
            if seconds is not None:
                rows.append(BlockIo(device=device_name, op=op, seconds=seconds, bytes=total[FIELDS] - before[FIELDS]))
        self._last = dict(totals)
        return tuple(rows)

    def _name(self, device: int) -> str:
        """As in /dev, "vda"; "254:0" where /sys does not have it."""
        if device not in self._names:
            number = f"{device >> _MINOR_BITS}:{device & ((1 << _MINOR_BITS) - 1)}"
            try:
                self._names[device] = (self._sys_dev / number).resolve(strict=True).name
            except OSError:
                self._names[device] = number
        return self._names[device]
