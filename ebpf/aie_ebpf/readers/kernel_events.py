"""What happens seldom and is told at once: OOM kills and XIDs, from ring buffers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from aie_ebpf.hostile import printable
from aie_ebpf.messages import OomKill, Xid

_OOM: Final = struct.Struct("3Q2I16s")
_XID: Final = struct.Struct("I20s104s")
_KIB: Final = 1024


def oom_kill(record: bytes, proc: Path = Path("/proc")) -> OomKill:
    """A record of programs/oom.bpf.c. Where the tracepoint has no name, /proc may still have it: the process is only just dying."""
    anon, file, shmem, tgid, has_sizes, command = _OOM.unpack_from(record)
    if not has_sizes:
        return OomKill(tgid=tgid, command=_command(tgid, proc))
    return OomKill(tgid=tgid, command=_text(command), anon_bytes=anon * _KIB, file_bytes=file * _KIB, shmem_bytes=shmem * _KIB)


def xid(record: bytes) -> Xid:
    """A record of programs/xid.bpf.c."""
    code, device, text = _XID.unpack_from(record)
    return Xid(device=_text(device), code=code, text=_text(text))


def _text(field: bytes) -> str:
    return printable(field.split(b"\0", 1)[0].decode(errors="replace"))


def _command(tgid: int, proc: Path) -> str:
    try:
        return printable((proc / str(tgid) / "comm").read_text(errors="replace").strip())
    except OSError:
        return "?"
