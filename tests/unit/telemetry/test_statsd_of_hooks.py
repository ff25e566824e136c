"""What hooks send in Telegraf's dialect is made of nothing but what Telegraf's vectors say that it reads."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Final

from test_statsd_vectors import RUN, VECTORS

from aie_hooks import Emitter

# Any number is one number; timings and histograms are one kind of thing to Telegraf, as row 5 says.
_NUMBER: Final = re.compile(r"\d+(\.\d+)?([eE][+-]?\d+)?")
REFUSED: Final = {"-#|h"}
"""Telegraf refuses observations below 0: a row of the differences."""


def parts(line: str) -> list[str]:
    """What stands between the colons of a line behind its name, with # for each number."""
    return [_NUMBER.sub("#", part).replace("|ms", "|h") for part in line.strip().split(":")[1:]]


def _read() -> list[list[str]]:
    """The parts of each line that Telegraf's vectors read."""
    settings = {id_: VECTORS[id_].settings for id_ in RUN}
    of_telegraf = [id_ for id_, said in settings.items() if "telegraf" in said or "default" in said]
    return [parts(line) for id_ in of_telegraf for line in VECTORS[id_].packet.decode().split("\n")]


def test_each_part_of_a_line_is_one_that_a_vector_reads(tmp_path: Path) -> None:
    found = {part for line in sent(tmp_path) for part in parts(line)}
    assert found >= {"#|c", "#|g", "-#|g", "#|h", "#|h|@#", "-#|h"}  # everything was sent
    assert found - {part for line in _read() for part in line} == REFUSED


def test_of_the_types_that_share_a_line_a_vector_does_so_too(tmp_path: Path) -> None:
    together = {part.split("|")[1] for line in sent(tmp_path) if len(parts(line)) > 1 for part in parts(line)}
    assert together == {"g", "h"}
    assert together <= {part.split("|")[1] for line in _read() if len(line) > 1 for part in line}


def sent(tmp_path: Path) -> list[str]:
    """Every kind of handle, with values that print differently."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "s"))
        receiver.setblocking(False)
        emitter = Emitter("chat", f"unix://{tmp_path}/s", packets_per_second=float("inf"), flush_interval_s=float("inf"))
        counter, gauge, observed = emitter.counter("c"), emitter.gauge("g", model="m"), emitter.histogram("h")
        sampled, signed = emitter.histogram("r", 0.01), emitter.histogram("aie_engine_first_token_logsumexp_nats", model="m")
        for value in (0.0, 7.0, 0.25, 1e-7, 2.5e15):
            counter.add(value)
            for handle in (observed, sampled):
                handle.record(value, 2)
            for level in (value, -value):
                gauge.set(level)
                emitter.flush()
            signed.record(-1.5)
        emitter.close()
        lines: list[str] = []
        while True:
            try:
                lines += receiver.recv(65536).decode().split("\n")
            except BlockingIOError:
                return lines
