"""`aie-agent parse-statsd`: shows what each StatsD line on standard input becomes, to find out why a metric does not arrive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, TextIO

import msgspec

from aie_agent.commands.terminal import complain, printable
from aie_agent.sources.statsd_listeners import MAX_PACKET_BYTES
from aie_agent.sources.statsd_series import verdict
from aie_telemetry.statsd import Parsed, Parser, Refusal, Sample

_BEYOND_A_PACKET: Final = Parsed([], [Refusal("too_long", f"{MAX_PACKET_BYTES} bytes or more")])


def run(*, datadog: bool, as_json: bool, stdin: BinaryIO | None = None, stdout: TextIO | None = None) -> int:
    """Reads to the end of the input. Returns 0: a line that is refused is an answer, not a failure of this command; 2 where there
    is no input."""
    if stdin is None and sys.stdin is None:
        complain("cannot read standard input: it is closed", "aie-agent parse-statsd")
        return 2
    parser = Parser(datadog=datadog)
    source = stdin or sys.stdin.buffer
    out = stdout or sys.stdout
    for raw in _lines(source):
        line = raw.rstrip(b"\r\n")
        if not line.strip():
            continue
        parsed = parser.line(line) if len(line) < MAX_PACKET_BYTES else _BEYOND_A_PACKET
        out.write((_as_json(line, parsed) if as_json else _as_text(line, parsed)) + "\n")
        out.flush()
    return 0


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """Each line; of one that no packet holds the beginning."""
    while line := source.readline(MAX_PACKET_BYTES):
        yield line
        while len(line) == MAX_PACKET_BYTES and not line.endswith(b"\n"):
            line = source.readline(MAX_PACKET_BYTES)


def _as_json(line: bytes, parsed: Parsed) -> str:
    row: dict[str, Any] = {
        "line": line.decode(errors="replace"),
        "samples": [_sample_row(sample) for sample in parsed.samples],
        "errors": [str(refusal) for refusal in parsed.refusals],
    }
    if parsed.ignored:
        row["ignored"] = parsed.ignored
    if parsed.event is not None:
        row["event"] = msgspec.to_builtins(parsed.event)
    if refused := _refused_by_agent(parsed):
        row["refused"] = refused
    return msgspec.json.encode(row).decode()


def _refused_by_agent(parsed: Parsed) -> list[str]:
    """Why the agent would not take samples that the codec can read: reserved names, foreign labels and the like."""
    verdicts = [(sample, verdict(sample)[1]) for sample in parsed.samples]
    return [f"{sample.name}: {reason.sentence}" for sample, reason in verdicts if reason is not None]


def _sample_row(sample: Sample) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": sample.name,
        "type": sample.type,
        "value": sample.value,
        "tags": dict(sample.tags),
        "rate": sample.rate,
    }
    if sample.delta:
        row["delta"] = True
    return row


def _as_text(line: bytes, parsed: Parsed) -> str:
    rows = [line.decode(errors="backslashreplace")]
    for sample in parsed.samples:
        tags = "".join(f" {key}={value}" for key, value in sample.tags)
        rate = "" if sample.rate == 1.0 else f", each stands for {1 / sample.rate:g}"
        change = "changes by " if sample.delta else ""
        series, reason = verdict(sample)
        stored = "" if reason is not None or series == sample.name else f", stored as {series}"
        rows.append(f"  {sample.type} {sample.name}{tags}: {change}{sample.value}{rate}{stored}")
    if parsed.event is not None:
        rows.append(f"  event {parsed.event.kind} of engine {parsed.event.engine}: {parsed.event.summary}")
    if parsed.ignored:
        rows.append(f"  ignored: aie does not use lines of kind {parsed.ignored}")
    rows += [f"  refused: {refusal}" for refusal in parsed.refusals]
    rows += [f"  refused by the agent: {reason}" for reason in _refused_by_agent(parsed)]
    return "\n".join(map(printable, rows))
