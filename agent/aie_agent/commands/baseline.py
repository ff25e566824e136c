"""`aie-agent baseline`: makes drift references, shows them, and puts one in another's place. Nothing else ever changes one."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aie_agent.analysis.drift import span
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.offline import RULE
from aie_agent.analysis.drift.reference import About, Aim, Header, Reference, UnfitReferenceError
from aie_agent.analysis.drift.reference_file import load, replace, save
from aie_agent.commands.drift import BAD_INPUT, add_aim
from aie_agent.commands.drift_csv import TableError, read_table
from aie_agent.commands.terminal import complain, printable

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_TEXTS = {
    "revision": "of the model",
    "quantisation": "of its weights",
    "sampling": "temperature, top-p and the like",
    "traffic-class": "whose requests these are (default: default)",
    "recorded-from": "when the recording began",
    "recorded-to": "when it ended",
}


def add_parser(commands: Subparsers) -> None:
    """The command's arguments."""
    parser = commands.add_parser("baseline", help="make, show and replace the references that drift is told by")
    acts = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    build_ = acts.add_parser("build", help="make a reference of recorded statistics; takes some seconds")
    build_.add_argument("recording", type=Path, metavar="FILE.csv", help="the statistics of each request, in order")
    build_.add_argument("--output", required=True, type=Path, metavar="FILE", help="the reference; must not exist yet")
    build_.add_argument("--model", help="the model's name, as the engine calls it; not needed where a column `model` says it")
    for option, meaning in _TEXTS.items():
        build_.add_argument(f"--{option}", default="", metavar="TEXT", help=meaning)
    add_aim(build_)
    show = acts.add_parser("show", help="what a reference was made of, and what the rule does on it")
    show.add_argument("reference", type=Path, metavar="FILE")
    replace_ = acts.add_parser("replace", help="put a new reference in the place of an old one, which is kept beside it")
    replace_.add_argument("old", type=Path, metavar="OLD")
    replace_.add_argument("new", type=Path, metavar="NEW")
    for act in (build_, show, replace_):
        act.add_argument("--json", action="store_true", help="as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Does it, and shows the reference. Returns 0; 2 for input that cannot be used."""
    try:
        reference = _ACTS[arguments.act](arguments)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror or error}")
    except ValueError as error:
        return _complain(str(error))
    if arguments.json:
        print(msgspec.json.encode(reference.header).decode())
    else:
        print("\n".join(map(printable, lines(reference))))
    return 0


def _build(arguments: argparse.Namespace) -> Reference:
    table = read_table(arguments.recording)
    model = arguments.model or table.model
    if not model:
        raise TableError(f"{arguments.recording}: of which model? Give --model")
    if table.model and table.model != model:
        raise TableError(f"{arguments.recording}: recorded of the model {table.model!r}, not of {model!r}")
    hours = arguments.hours or table.hours
    about = About(
        model=model,
        revision=arguments.revision,
        quantisation=arguments.quantisation,
        sampling=arguments.sampling,
        traffic_class=arguments.traffic_class or "default",
        recorded_from=arguments.recorded_from,
        recorded_to=arguments.recorded_to,
        hours=msgspec.UNSET if hours is None else hours,
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        reference = build(table.columns, about, Aim(days=arguments.days, requests_per_second=arguments.rate))
    except UnfitReferenceError as error:
        raise UnfitReferenceError(f"{arguments.recording}: {error}") from error
    save(reference, arguments.output)
    return reference


def _load(path: Path) -> Reference:
    try:
        return load(path)
    except OSError as error:  # of a file that fails in the middle Python gives no name
        raise UnfitReferenceError(f"{path}: {error.strerror or error}") from error
    except UnfitReferenceError as error:
        raise UnfitReferenceError(f"{path}: {error}") from error


def _replace(arguments: argparse.Namespace) -> Reference:
    """The old one is kept under its name and the beginning of its hash. Another model's never takes a reference's place."""
    old, new = _load(arguments.old), _load(arguments.new)
    for what in ("model", "traffic_class"):
        before, after = getattr(old.header.about, what), getattr(new.header.about, what)
        if before != after:
            said = what.replace("_", " ")
            raise UnfitReferenceError(f"{arguments.new}: a reference for the {said} {after!r}, not {before!r}: a file of its own")
    kept = arguments.old.with_name(f"{arguments.old.name}.{old.header.sha256[:12]}")
    if not kept.exists():
        os.link(arguments.old, kept)
    replace(new, arguments.old)
    return new


_ACTS = {"build": _build, "show": lambda arguments: _load(arguments.reference), "replace": _replace}


def lines(reference: Reference) -> Iterator[str]:
    """A reference for people."""
    header = reference.header
    about = msgspec.to_builtins(header.about)
    yield f"reference {header.sha256[:12]}: {header.requests} requests"
    for what, text in about.items():
        if text:
            yield f"  {what.replace('_', ' ')}: {text}"
    for each in header.columns:
        if each.untested:
            yield f"  {each.name}: not compared: {each.untested}"
            continue
        delays = ", ".join(f"+{shift} sd {_delay(delay)}" for shift, delay in each.delay_requests.items())
        p01 = each.critical_p01 / each.critical * each.threshold
        yield f"  {each.name}: sd {each.deviation:.4g}, 1 to 99 % {each.low:.4g} to {each.high:.4g}"
        yield f"    a window counts from {each.threshold:.3f} on (p < 0.01: {p01:.3f})"
        yield f"    {each.dependence:.1f} values tell as much as one that depends on no other"
        yield f"    a shift is found on average after so many requests: {delays}"
    yield f"rule: {RULE}"
    if not all(each.untested for each in header.columns):
        yield _run_length(header)
    for warning in filter(None, (*header.warnings, span.warning(header.about.span_hours))):
        yield f"warning: {warning}"


def _run_length(header: Header) -> str:
    return (
        f"false alarms: one in {header.run_length_requests:.2g} requests at least, all statistics together; asked for one in"
        f" {header.aim.days:g} days at {header.aim.requests_per_second:g} a second; {header.replayed_requests} requests replayed;"
        f" {span.qualified(header.about.span_hours)}"
    )


def _delay(requests: float | None) -> str:
    return "never" if requests is None else f"{requests:.0f}"


def _complain(text: str) -> int:
    complain(text, "aie-agent baseline")
    return BAD_INPUT
