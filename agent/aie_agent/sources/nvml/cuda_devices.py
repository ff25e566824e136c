"""Which GPU a process calls cuda0: what hooks report by torch's index, NVML knows by its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aie_agent.sources.nvml.device_files import DeviceFiles

_EVERYTHING = ("", "all")
_NOTHING = ("none", "void")
_MAX_DIGITS = 4
_UNSEEN = "which GPUs its container was given cannot be seen, so all of the host's are assumed"
_ONLY_OPEN = "its container shows no device files, so the GPUs that it has open are assumed to be all"
_CONTRADICTION = "NVIDIA_VISIBLE_DEVICES names other GPUs than its container has device files of, which are believed"


class GpuName(NamedTuple):
    """A GPU as the driver has it: NVML's index (which follows the PCI bus), UUID, model, number of its file in /dev."""

    number: int
    uuid: str
    model: str = ""
    minor: int | None = None


class Numbering(NamedTuple):
    """NVML's indices in the order in which a process counts them, as far as it is known. `doubt` is why it may be another."""

    order: tuple[int, ...]
    doubt: str | None = None

    def name(self, index: int) -> str | None:
        """What the process calls the GPU with this index of NVML: "cuda0". None when it does not see it."""
        return f"cuda{self.order.index(index)}" if index in self.order else None


def parse_environ(content: bytes) -> dict[str, str]:
    """/proc/PID/environ. Later entries of a name do not count, as in the C library."""
    found: dict[str, str] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(name.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
    return found


def numbering(
    environ: Mapping[str, str] | None,
    gpus: Sequence[GpuName],
    *,
    in_container: bool = False,
    files: DeviceFiles | None = None,
) -> Numbering:
    """How a process with this environment numbers GPUs; None when its environment may not be read.

    The rules are CUDA's: CUDA_VISIBLE_DEVICES lists indices or beginnings of UUIDs and ends at the first that is none;
    CUDA_DEVICE_ORDER is by speed unless it says PCI_BUS_ID, which is the same where all GPUs are. A container sees the GPUs that it
    has device `files` of, and counts from 0 again; where those are not known, what NVIDIA_VISIBLE_DEVICES lists. What a process
    sets after its start cannot be seen.
    """
    everything = sorted(gpus, key=lambda gpu: gpu.number)
    if environ is None:
        return Numbering(tuple(gpu.number for gpu in everything), "its environment may not be read, so PCI order is assumed")
    doubt = None
    if in_container:
        everything, doubt = _given(environ.get("NVIDIA_VISIBLE_DEVICES", "").strip(), everything, files)
    by_speed = environ.get("CUDA_DEVICE_ORDER", "") != "PCI_BUS_ID"
    if by_speed and len({gpu.model for gpu in everything}) > 1:
        doubt = "CUDA counts unlike GPUs by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID, so PCI order is assumed"
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return Numbering(tuple(gpu.number for gpu in everything), doubt)
    return Numbering(tuple(_chosen(visible, everything)), doubt)


def _given(listed: str, gpus: list[GpuName], files: DeviceFiles | None) -> tuple[list[GpuName], str | None]:
    """The GPUs of a container, and why it may be others. Its variable says nothing where devices are given in another way (a device
    plugin's CDI or volume mounts, GKE), and images bring it along; its device files are what CUDA opens."""
    words = () if listed in (*_EVERYTHING, *_NOTHING) else _chosen(listed, gpus)
    named = [gpu for gpu in gpus if gpu.number in words]
    seen = [] if files is None else [gpu for gpu in gpus if gpu.minor in files.minors]
    if not seen:
        return named or gpus, None if named or len(gpus) < 2 else _UNSEEN
    if files is not None and files.only_open:
        return seen, None if len(seen) == len(gpus) else _ONLY_OPEN
    return seen, _CONTRADICTION if named and named != seen else None


def _chosen(text: str, gpus: Sequence[GpuName]) -> list[int]:
    """NVML's indices that a list of indices and UUIDs names, up to the first word that names none."""
    chosen: list[int] = []
    for word in text.split(","):
        found = _one(word.strip(), gpus)
        if found is None or found in chosen:
            break
        chosen.append(found)
    return chosen


def _one(word: str, gpus: Sequence[GpuName]) -> int | None:
    if word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS:
        position = int(word)
        return gpus[position].number if position < len(gpus) else None
    if not word.startswith("GPU-"):
        return None
    matches = [gpu.number for gpu in gpus if gpu.uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else None
