"""The table of results, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tests.faultlab.judge import Result, Said, Totals, totals

_HEAD = ("fault", "what", "named as", "top", "seconds", "true as well", "others", "false alarms before")


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One a fault, as text."""
    return [_row(each) for each in results]


def _row(result: Result) -> tuple[str, ...]:
    alarms = in_words(result.false_alarms) or "-"
    verdict = result.verdict
    if verdict is None:
        return result.fault, result.what, f"not run: {result.skipped}", "-", "-", "-", "-", alarms
    nothing = "nothing" if result.expected is None else "not named"
    return (
        result.fault,
        result.what,
        nothing if verdict.named_as is None else str(verdict.named_as),
        "right" if verdict.top_right else "wrong" + "".join(f"; {each}" for each in verdict.amiss),
        "-" if verdict.seconds is None else f"{verdict.seconds:.1f}",
        in_words(verdict.beside) or "-",
        in_words(verdict.others) or "-",
        alarms,
    )


def in_words(said: Sequence[Said]) -> str:
    """What was said, one after the other; of the engine where it names nobody."""
    return ", ".join(map(str, said))


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
        f"{total.false_alarms} false alarms in {total.healthy_s / 60:.1f} healthy minutes, {total.others} beside faults: "
        + ("targets reached" if total.reached else "below the targets")
    )


class _File(msgspec.Struct):
    """What the lab writes: `totals` follow from the results."""

    results: list[Result]


def from_json(text: bytes) -> list[Result]:
    """What `as_json` gave. Raises ValueError for anything else."""
    try:
        return msgspec.json.decode(text, type=_File).results
    except msgspec.DecodeError as error:
        raise ValueError(f"no results of the fault lab: {error}") from error


def together(runs: Sequence[Sequence[Result]]) -> list[Result]:
    """The results of several runs: of a fault that was run in several, the last."""
    return list({each.fault: each for run in runs for each in run}.values())


def as_json(results: Sequence[Result]) -> bytes:
    """The same for programs, with subject and severity of all that was said."""
    return msgspec.json.format(msgspec.json.encode({"results": results, "totals": totals(results)._asdict()}))
