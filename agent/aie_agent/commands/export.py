"""Copies files that come with aie into a directory of the user's, and never over what the user has changed there."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from aie_agent.commands.terminal import complain

REFUSED = 2


class Compared(NamedTuple):
    """Files, relative to the directory: those that are not there, that say the same already, and that say something else."""

    missing: tuple[Path, ...]
    same: tuple[Path, ...]
    different: tuple[Path, ...]


def compare(files: Mapping[Path, str], directory: Path) -> Compared:
    """What is there already. Raises OSError for what cannot be read."""
    found: dict[str, list[Path]] = {"missing": [], "same": [], "different": []}
    for path, text in files.items():
        target = directory / path
        state = "missing" if not target.exists() else "same" if target.read_bytes() == text.encode() else "different"
        found[state].append(path)
    return Compared(*(tuple(found[state]) for state in Compared._fields))


def export(files: Mapping[Path, str], directory: Path, *, force: bool) -> Compared:
    """Writes those that are missing, and with `force` those that differ. Where one differs without it, nothing is written at all.

    Returns what was there before. Raises OSError for what cannot be read or written.
    """
    before = compare(files, directory)
    if before.different and not force:
        return before
    for path in (*before.missing, *before.different):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(files[path].encode())
    return before


def run(command: str, files: Mapping[Path, str], arguments: argparse.Namespace, next_: str) -> int:
    """The end of a command with `add_arguments`: exports, says what was done, and what comes `next_`. Returns the exit status."""
    directory: Path = arguments.export
    who = f"aie-agent {command}"
    try:
        before = export(files, directory, force=arguments.force)
    except OSError as error:
        complain(f"{error.filename}: {error.strerror or error}", who)
        return REFUSED
    if before.different and not arguments.force:
        for path in before.different:
            complain(f"{directory / path} differs from what comes with aie", who)
        complain("nothing was written; --force overwrites, another directory leaves it", who)
        return REFUSED
    replaced = f", {len(before.different)} replaced" if before.different else ""
    print(f"{len(before.missing)} files written to {directory}{replaced}, {len(before.same)} were there already")
    print(next_)
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--export and --force."""
    parser.add_argument("--export", required=True, type=Path, metavar="DIR", help="where to; made where it does not exist")
    parser.add_argument("--force", action="store_true", help="overwrite files there that differ")
