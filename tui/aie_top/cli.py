"""The command line of aie-top."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from aie_telemetry.durations import parse_duration
from aie_top.columns.engines import sort_keys
from aie_top.output import OutputError, give_up
from aie_top.rows import View
from aie_top.targets import DEFAULT, Target, parse_target

OK: Final = 0
NO_AGENT: Final = 1
NOT_WRITTEN: Final = 1
USAGE: Final = 2

Parsed = TypeVar("Parsed")

THEMES: Final = ("dark", "light", "ansi")
NARROWEST: Final = 20
WIDEST: Final = 500

_EPILOG: Final = f"""\
exit status:
  0   it did what was asked
  1   no agent answered (--once, --export-svg), or what was asked for could not be written
  2   the command line is wrong

environment:
  COLUMNS        width of --once; else that of the terminal, and 80 where there is none
  NO_COLOR       no colour, whatever its value
  SSL_CERT_FILE  certificates to trust for https

keys on the screen: q quits, ? shows all others.
columns for --sort: {", ".join(sort_keys())}
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as every message of ours; the usage is a --help away."""
        self.exit(USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    it = _Parser(
        prog="aie-top",
        description="What is wrong with the AI inference engines on a host, live: asks one or more aie-agents.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    about_connect = f"an agent: HOST, HOST:PORT or URL, with USER:PASSWORD@ if it wants them; may be repeated (default {DEFAULT})"
    it.add_argument("--connect", metavar="URL", action="append", type=_checked(parse_target), help=about_connect)
    it.add_argument("--once", action="store_true", help="print a report and exit")
    it.add_argument("--json", action="store_true", help="JSON, one object a line and agent; a stream of them without --once")
    it.add_argument(
        "--interval",
        metavar="TIME",
        type=_checked(parse_interval),
        default=1.0,
        help="between two pictures: 500ms, 2s (default 1s)",
    )
    it.add_argument(
        "--filter", metavar="WORDS", default="", help="show only engines with these words in name, host, model, device or state"
    )
    it.add_argument("--sort", metavar="COLUMN", choices=sort_keys(), default="name", help="sort engines by a column, see below")
    it.add_argument("--reverse", action="store_true", help="turn the order round")
    it.add_argument("--theme", choices=THEMES, default="dark", help="dark, light, or the terminal's own colours (default dark)")
    it.add_argument("--ascii", action="store_true", help="no character beyond ASCII")
    it.add_argument("--export-svg", metavar="FILE", type=Path, help="write a picture of the screen and exit")
    it.add_argument("--size", metavar="COLSxROWS", type=_checked(_size), default=(120, 40), help="of that picture (default 120x40)")
    it.add_argument("--version", action="version", version=f"aie-top {_version()}")
    return it


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    targets: list[Target] = options.connect or [parse_target(DEFAULT)]
    view = View(sort=options.sort, reverse=options.reverse, filter=options.filter)
    try:
        if options.once or options.json:
            return _batch(options, targets, view)
        return _screen(options, targets, view)
    except OutputError as error:
        give_up()
        if error.reader_left:  # it (head, less) has what it wanted
            return OK
        print(f"aie-top: cannot write to standard output: {error}", file=sys.stderr)
        return NOT_WRITTEN


def _batch(options: argparse.Namespace, targets: Sequence[Target], view: View) -> int:
    if sys.stdout is None:
        print("aie-top: cannot write to standard output: it is closed", file=sys.stderr)
        return NOT_WRITTEN
    from aie_top import batch
    from aie_top.report import WIDTH

    if options.json:
        return batch.once_json(targets, sys.stdout) if options.once else batch.stream_json(targets, sys.stdout, options.interval)
    terminal = sys.stdout.isatty()
    width = min(max(shutil.get_terminal_size((WIDTH, 24)).columns, NARROWEST), WIDEST)
    colour = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    ascii_only = options.ascii or not _speaks_unicode()
    return batch.once(targets, view, sys.stdout, width=width, colour=colour, ascii_only=ascii_only)


def _screen(options: argparse.Namespace, targets: Sequence[Target], view: View) -> int:
    if options.export_svg is None and not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        print("aie-top: this is no terminal: use --once for a report or --json for data", file=sys.stderr)
        return USAGE
    from aie_top.app import TopApp
    from aie_top.feed import Feed
    from aie_top.picture import export

    app = TopApp(Feed(targets, options.interval), view, theme=options.theme, ascii_only=options.ascii or not _speaks_unicode())
    if options.export_svg is not None:
        return export(app, options.export_svg, options.size)
    app.run()
    return app.return_code or OK


def _speaks_unicode() -> bool:
    return sys.stdout is not None and "utf" in (sys.stdout.encoding or "").lower()


def _checked(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """argparse shows its own text for a ValueError and ours for this one."""

    def checked(text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error

    return checked


def parse_interval(text: str) -> float:
    """Seconds, from 250 ms to 1 min. Raises ValueError for anything else."""
    seconds = parse_duration(text.strip())
    if not 0.25 <= seconds <= 60.0:
        raise ValueError("is outside 250ms to 1m")
    return seconds


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    if match is None or not (NARROWEST <= int(match[1]) <= WIDEST and 5 <= int(match[2]) <= 200):
        raise ValueError("is no size: give COLSxROWS from 20x5 to 500x200, such as 120x40")
    return int(match[1]), int(match[2])


def _version() -> str:
    from importlib.metadata import version

    return version("aie-observability")
