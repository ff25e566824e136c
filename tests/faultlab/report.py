"""The table of results, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.faultlab.judge import Result, Totals, Verdict, totals

_HEAD = ("fault", "what", "named as", "top", "seconds", "true as well", "others", "false alarms before")


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One a fault, as text."""
    return [_row(each) for each in results]


def _row(result: Result) -> tuple[str, ...]:
    alarms = ", ".join(result.false_alarms) or "-"
    verdict = result.verdict
    if verdict is None:
        return result.fault, result.what, f"not run: {result.skipped}", "-", "-", "-", "-", alarms
    seconds = "-" if verdict.seconds is None else f"{verdict.seconds:.1f}"
    named = verdict.named_as or ("nothing" if not result.expected else "not named")
    right = "right" if verdict.top_right else "wrong"
    return (
        result.fault,
        result.what,
        named,
        right,
        seconds,
        ", ".join(verdict.beside) or "-",
        ", ".join(verdict.others) or "-",
        alarms,
    )


def markdown(results: Sequence[Result]) -> str:
    """The table and its totals."""
    lines = ["| " + " | ".join(line) + " |" for line in (_HEAD, tuple("---" for _ in _HEAD), *rows(results))]
    return "\n".join([*lines, "", summary(totals(results))])


def summary(total: Totals) -> str:
    """One line that says how many, how fast, and whether that is enough."""
    left_out = f" and {total.skipped} not run" if total.skipped else ""
    median = "none" if total.median_s is None else f"{total.median_s:.1f} s"
    return (
        f"{total.ran} faults{left_out}: {total.named} named, top cause right in {total.top_right}, "
        f"median of the fast ones {median}; "
        f"{total.false_alarms} false alarms in {total.healthy_s / 60:.1f} healthy minutes: "
        + ("targets reached" if total.reached else "below the targets")
    )


def from_json(text: bytes) -> list[Result]:
    """What `as_json` gave. Raises ValueError for anything else."""
    try:
        return [_result(row) for row in msgspec.json.decode(text)["results"]]
    except (KeyError, TypeError, msgspec.DecodeError) as error:
        raise ValueError(f"no results of the fault lab: {error}") from error


def together(runs: Sequence[Sequence[Result]]) -> list[Result]:
    """The results of several runs: of a fault that was run in several, the last."""
    return list({each.fault: each for run in runs for each in run}.values())


def _result(row: dict[str, Any]) -> Result:
    verdict = None if row["verdict"] is None else Verdict(**_tuples(row["verdict"]))
    return Result(**_tuples(row) | {"verdict": verdict})


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def as_json(results: Sequence[Result]) -> bytes:
    """The same for programs."""
    table = {"results": [each._asdict() | _verdict(each) for each in results], "totals": totals(results)._asdict()}
    return msgspec.json.format(msgspec.json.encode(table))


def _verdict(result: Result) -> dict[str, object]:
    return {"verdict": None if result.verdict is None else result.verdict._asdict()}
