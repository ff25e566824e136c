"""`aie-agent drift`: whether a recorded stream of requests still looks like its reference."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.offline import StatisticVerdict, Verdict, judge
from aie_agent.analysis.drift.reference import About, Aim, Reference, UnfitReferenceError
from aie_agent.analysis.drift.reference_file import is_reference, load
from aie_agent.analysis.drift.span import qualified
from aie_agent.commands.drift_csv import TableError, read_table
from aie_agent.commands.terminal import complain, printable

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

BAD_INPUT = 2


def add_parser(commands: Subparsers) -> None:
    """The command's arguments."""
    parser = commands.add_parser("drift", help="whether a recorded stream of requests still looks like its reference")
    parser.add_argument(
        "--reference", required=True, type=Path, metavar="R", help="a CSV file, or one made by `aie-agent baseline`"
    )
    parser.add_argument("--stream", required=True, type=Path, metavar="S.csv", help="the statistics of each request, in order")
    parser.add_argument("--model", metavar="NAME", help="of the stream; a reference for another model is refused")
    add_aim(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def add_aim(parser: argparse.ArgumentParser) -> None:
    """How rare false alarms shall be, for references made from CSV."""
    parser.add_argument(
        "--rate", type=_positive, default=1.0, metavar="R", help="requests a second that are looked at (default: 1)"
    )
    parser.add_argument(
        "--hours",
        type=_positive,
        metavar="H",
        help="how long the reference was recorded; not needed where a column `time_s` says it",
    )
    parser.add_argument(
        "--days", type=_positive, default=30.0, metavar="D", help="days between false alarms, at least (default: 30)"
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError("expected a number above 0, at most 1000000")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Prints the verdict. Returns 0 where nothing is wrong, 1 with an alarm or where a statistic is unsteady, 2 for input that
    cannot be used."""
    try:
        reference = _reference(arguments)
        verdict = _judge(arguments, reference)
    except ValueError as error:
        complain(str(error), "aie-agent drift")
        return BAD_INPUT
    if arguments.json:
        print(msgspec.json.encode(verdict).decode())
    else:
        print("\n".join(map(printable, lines(verdict))))
    return 1 if verdict.alarm or verdict.unsteady else 0


def _reference(arguments: argparse.Namespace) -> Reference:
    """Raises ValueError with the file's name."""
    path = arguments.reference
    try:
        if is_reference(path):
            return load(path)
        table = read_table(path)
        hours = arguments.hours or table.hours
        about = About(model=table.model or arguments.model or "", hours=msgspec.UNSET if hours is None else hours)
        return build(table.columns, about, Aim(days=arguments.days, requests_per_second=arguments.rate))
    except OSError as error:  # of a file that fails in the middle Python gives no name
        raise UnfitReferenceError(f"{path}: {error.strerror or error}") from error
    except UnfitReferenceError as error:
        raise UnfitReferenceError(f"{path}: {error}") from error


def _judge(arguments: argparse.Namespace, reference: Reference) -> Verdict:
    table = read_table(arguments.stream)
    for model in (arguments.model, table.model):
        if model and reference.model and model != reference.model:
            raise TableError(f"{arguments.reference}: a reference for the model {reference.model!r}, the stream is of {model!r}")
    try:
        verdict = judge(reference, table.columns, table.hours)
    except ValueError as error:
        raise TableError(f"{arguments.stream}: {error}") from error
    if not reference.model or arguments.model or table.model:
        return verdict
    unsaid = f"the reference is for the model {reference.model!r}; of which the stream is, nothing says: give --model"
    return msgspec.structs.replace(verdict, warnings=(*verdict.warnings, unsaid))


def _unseen(verdict: Verdict) -> str:
    """What "no drift" does not say: of which statistics, and of which shifts that take longer to be found than the stream is."""
    untested = [name for name, each in verdict.per_statistic.items() if each.untested]
    too_few = [f"{name} by {sd} sd" for name, each in verdict.per_statistic.items() if (sd := _too_small(each, verdict.requests))]
    said = (("not compared", untested), ("too few requests to find a shift of", too_few))
    return "".join(f" ({what}: {', '.join(names)})" for what, names in said if names)


def _too_small(each: StatisticVerdict, requests: int) -> str:
    """The largest shift of the reference's table that takes more requests than there are, on average; empty where none does."""
    slow = [shift for shift, delay in each.delay_requests.items() if delay is None or delay > requests]
    return max(slow, key=float, default="")


def _rate(verdict: Verdict) -> str:
    whose = "stream's rate" if verdict.rate_is_of_stream else "rate it was made for"
    return f"{whose}, {verdict.requests_per_second:.2g}/s"


def lines(verdict: Verdict) -> Iterator[str]:
    """The verdict for people."""
    if verdict.alarm:
        yield f"drift: {verdict.statistic} from request {verdict.first_alarm_request} on ({_CHECKS[str(verdict.check)]})"
    elif verdict.unsteady:
        names = ", ".join(verdict.unsteady)
        yield f"unsteady: {names}: no alarm by the rule, but more windows or values beyond the reference than chance gives"
    elif verdict.state == "ok":
        yield f"no drift in {verdict.requests} requests{_unseen(verdict)}"
    elif all(each.untested for each in verdict.per_statistic.values()):
        yield "not enough data: none of the reference's statistics can be compared"
    else:
        yield f"not enough data: {verdict.requests} requests, {verdict.rule} are needed for an alarm"
    for name, each in verdict.per_statistic.items():
        yield f"  {name}: {_statistic(each)}"
    yield f"rule: {verdict.rule}; a reference of {verdict.reference_requests} requests, {verdict.reference_sha256[:12]}"
    if verdict.run_length_requests is not None:
        yield (
            f"false alarms: one in {verdict.run_length_requests:.2g} requests at least, all statistics together"
            f" ({verdict.run_length_days or 0.0:.2g} days at the {_rate(verdict)}), {qualified(verdict.reference_hours)}"
        )
    for warning in verdict.warnings:
        yield f"warning: {warning}"


_CHECKS: dict[str, str] = {
    "ks": "five windows in a row are further from the reference than chance allows",
    "out_of_range": "five windows in a row hold too many values that the reference hardly had",
    "constant": "one value again and again",
    "stability": "its values scatter far less than the reference's",
    "nonfinite": "no number: NaN or infinite",
}


def _statistic(each: StatisticVerdict) -> str:
    if each.untested:
        said = f"not compared: {each.untested}; looked at is whether it leaves {each.usual_low:.4g} to {each.usual_high:.4g}"
    elif each.distance_largest is None:
        said = "no window is complete"
    else:
        said = (
            f"{each.windows_beyond} of {each.windows} windows beyond {each.threshold:.3f}, the largest {each.distance_largest:.3f}"
        )
    if each.alarm:
        said += f"; alarm at request {each.first_alarm_request} ({each.check})"
    if each.output_stability is not None:
        said += f"; scatters {each.output_stability:.2f} times as much as the reference"
    if each.delay_requests:
        said += "; a shift is found on average after " + ", ".join(
            f"{'a million or more' if delay is None else f'{delay:.0f}'} (+{shift} sd)"
            for shift, delay in each.delay_requests.items()
        )
    return said
