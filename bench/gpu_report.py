"""What a section of `gpu_check.py` is given and how it tells what it found, piece by piece, so that a hang loses nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple


class NotRunError(Exception):
    """A section cannot run here: what it needs."""


class NoCudaError(Exception):
    """There is no such CUDA device here: one line that says why."""


class Report:
    """Writes what a section finds to a descriptor, a line of JSON each."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fact(self, name: str, value: Any) -> None:
        """Something measured or read, with its unit in the name: a number, a word, or lists and mappings of them."""
        self.tell({"fact": name, "value": value})

    def check(self, name: str, holds: bool, text: str) -> None:
        """What must hold, whether it does, and the numbers that it was judged by."""
        self.tell({"check": name, "holds": bool(holds), "text": text})

    def tell(self, message: dict[str, Any]) -> None:
        """One line. What JSON has no word for becomes text."""
        os.write(self._descriptor, json.dumps(message, default=str).encode() + b"\n")


class Context(NamedTuple):
    """`device` is cuda:N, or cpu to try the script itself; `small` asks for little work; `model` is a folder or None;
    `provoke_xid` allows what the kernel logs as an error."""

    report: Report
    device: str
    small: bool
    model: Path | None = None
    provoke_xid: bool = False

    @property
    def is_cuda(self) -> bool:
        """Whether the real device is meant."""
        return self.device != "cpu"

    @property
    def device_index(self) -> int:
        """CUDA's index of the device."""
        return int(self.device.partition(":")[2] or 0)

    def need_cuda(self) -> None:
        """Raises NotRunError on the CPU."""
        if not self.is_cuda:
            raise NotRunError("needs a CUDA device")

    def torch_on_cuda(self) -> Any:
        """The module torch, which sees the device. Raises NotRunError, and ImportError without torch."""
        self.need_cuda()
        import torch

        count = torch.cuda.device_count()
        if self.device_index >= count:
            raise NotRunError(f"needs a torch that sees this device; {torch.__version__} sees {count} CUDA devices")
        torch.cuda.set_device(self.device_index)
        return torch
