"""A tree that looks like /proc, in which a test can let processes live, work and end."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

# A whole line of a real /proc/PID/stat behind the name; {} are the fields that tests choose.
_STAT = (
    "{tgid} ({comm}) {state} {parent} 1 1 0 -1 4194560 500 0 {major_faults} 0 {user} {system} 0 0 20 0 {threads} 0 {start} 100000 "
    "{rss} 18446744073709551615 1 1 0 0 0 0 0 16781312 2 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
_STATUS = """Name:\t{comm}
Umask:\t0022
State:\tS (sleeping)
Tgid:\t{tgid}
NSpid:\t{nspid}
Uid:\t{uid}\t{uid}\t{uid}\t{uid}
VmRSS:\t  999999 kB
RssAnon:\t  {anon} kB
RssFile:\t    2048 kB
RssShmem:\t     512 kB
VmSwap:\t      64 kB
Threads:\t{threads}
voluntary_ctxt_switches:\t{voluntary}
nonvoluntary_ctxt_switches:\t{involuntary}
"""

Thread = tuple[int, int, int]
"""Nanoseconds waited for a CPU, voluntary and involuntary context switches."""


class ProcTree:
    """Writes files below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.uptime(1000.0)
        self.process(1, comm="init", start=1)

    def write(self, name: str, content: str) -> None:
        """One file, by its path below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", errors="surrogateescape")

    def uptime(self, seconds: float) -> None:
        """Seconds since boot."""
        self.write("uptime", f"{seconds:.2f} 1.00\n")

    def process(
        self,
        tgid: int,
        *,
        comm: str = "engine",
        state: str = "S",
        start: int = 50_000,
        user: int = 0,
        system: int = 0,
        major_faults: int = 0,
        anon_kib: int = 1024,
        threads: Mapping[int, Thread] | None = None,
        nspid: tuple[int, ...] = (),
        uid: int = 0,
        parent: int = 1,
        cmdline: str = "engine\0--serve\0",
        cgroup: str = "0::/\n",
    ) -> None:
        """A process as it is now; times in clock ticks. Whatever it was before is replaced."""
        tasks = dict(threads) if threads is not None else {tgid: (0, 0, 0)}
        shutil.rmtree(self.root / str(tgid), ignore_errors=True)
        self.write(
            f"{tgid}/stat",
            _STAT.format(
                tgid=tgid,
                comm=comm,
                state=state,
                parent=parent,
                major_faults=major_faults,
                user=user,
                system=system,
                threads=len(tasks),
                start=start,
                rss=(anon_kib + 2048 + 512) // 4,
            ),
        )
        self.write(f"{tgid}/cmdline", cmdline)
        self.write(f"{tgid}/cgroup", cgroup)
        innermost = "\t".join(map(str, nspid or (tgid,)))
        for tid, (waited_ns, voluntary, involuntary) in tasks.items():
            status = _STATUS.format(
                comm="x",
                tgid=tgid,
                nspid=innermost,
                uid=uid,
                anon=anon_kib,
                threads=len(tasks),
                voluntary=voluntary,
                involuntary=involuntary,
            )
            self.write(f"{tgid}/task/{tid}/status", status)
            self.write(f"{tgid}/task/{tid}/schedstat", f"1000000 {waited_ns} {12 + voluntary + involuntary}\n")
            if tid == tgid or not (self.root / f"{tgid}/status").exists():
                self.write(f"{tgid}/status", status)

    def end(self, tgid: int) -> None:
        """The process is gone."""
        shutil.rmtree(self.root / str(tgid))
