"""`aie-agent dashboards`: the Grafana boards, and the files by which Grafana finds them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import aie_dashboards
from aie_agent.commands import export

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(commands: Subparsers) -> None:
    """The command's arguments."""
    parser = commands.add_parser("dashboards", help="copy the Grafana boards, and the files by which Grafana finds them")
    export.add_arguments(parser)
    parser.add_argument("--seen-as", metavar="PATH", help="where Grafana sees that directory, if it runs in a container")


def run(arguments: argparse.Namespace) -> int:
    """Copies them. Returns 0; 2 where something is there that differs, or cannot be written."""
    directory: Path = arguments.export
    boards = f"{arguments.seen_as or directory.resolve()}/{aie_dashboards.BOARDS}"
    return export.run("dashboards", aie_dashboards.files(boards), arguments, _next(directory))


def _next(directory: Path) -> str:
    provisioning = directory / aie_dashboards.PROVISIONING
    return (
        f"next: copy {provisioning}/dashboards/*.yaml to Grafana's provisioning/dashboards and restart it; without a data"
        f" source there, {provisioning}/datasources/*.yaml too.\n"
        f"Or import the files of {directory / aie_dashboards.BOARDS} by hand: Dashboards, New, Import."
    )
