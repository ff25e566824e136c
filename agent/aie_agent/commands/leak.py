"""`aie-agent leak`: the verdict of the leak analysis about a recording made anywhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from aie_agent.analysis.leaks.recording import COLUMNS, RecordingError, Seen, read
from aie_agent.analysis.leaks.sentences import mb_per_hour
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.whole import WholeVerdict, as_words, judge
from aie_agent.commands.terminal import complain

_NO_FINDING = ("none", "not_enough_data")
_SCALES = (1e-3, 1e6)
"""Beyond, a day is years, or less than a tenth of a second."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's arguments."""
    parser = commands.add_parser("leak", help="whether memory leaks in a recording (CSV): one verdict about the whole file")
    parser.add_argument("file", type=Path, metavar="FILE", help=f"columns: {', '.join(COLUMNS)}; the first two are needed")
    parser.add_argument("--capacity", type=_positive, metavar="BYTES", help="what the memory is full at, for the time to full")
    parser.add_argument(
        "--time-scale", type=_scale, default=1.0, metavar="N", help="divides every window, for recordings whose time runs faster"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("expected a number above 0")
    return number


def _scale(text: str) -> float:
    number = _positive(text)
    if not _SCALES[0] <= number <= _SCALES[1]:
        raise argparse.ArgumentTypeError(f"expected {_SCALES[0]:g} to {_SCALES[1]:g}")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Prints the verdict. Returns 0 where nothing is wrong or too little is known, 1 with a finding, 2 for a file that is no
    recording."""
    seen = Seen()
    settings = LeakSettings().scaled(arguments.time_scale)
    try:
        verdict = judge(read(arguments.file, seen, settings.sample_s), seen, settings, arguments.capacity)
    except RecordingError as error:
        complain(str(error))
        return 2
    print(msgspec.json.encode(as_json(verdict)).decode() if arguments.json else _for_people(verdict))
    return 0 if verdict.verdict in _NO_FINDING else 1


def as_json(verdict: WholeVerdict) -> dict[str, Any]:
    """What `--json` prints."""
    rate = verdict.rate_bytes_per_s
    return {
        "verdict": verdict.verdict,
        "class": verdict.leak_class,
        "rate_mb_per_hour": None if rate is None else round(mb_per_hour(rate), 3),
        "since_s": verdict.since_s,
        "confidence": verdict.confidence,
        "time_to_full_s": verdict.time_to_full_s,
        "evidence": list(verdict.evidence),
    }


def _for_people(verdict: WholeVerdict) -> str:
    return "\n".join([as_words(verdict), *(f"  {sentence}" for sentence in verdict.evidence)])
