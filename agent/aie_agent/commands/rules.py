"""`aie-agent rules`: the alert rules for Prometheus, Alertmanager's configuration, and the runbooks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import aie_alerts
from aie_agent.commands import export
from aie_agent.commands.terminal import complain

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(commands: Subparsers) -> None:
    """The command's arguments."""
    parser = commands.add_parser("rules", help="copy the alert rules for Prometheus, and the runbooks of the alerts")
    export.add_arguments(parser)
    parser.add_argument(
        "--runbooks",
        metavar="URL",
        help="where the pages are served, as URL/NAME.md (default: by the agent that an alert is about)",
    )
    parser.add_argument(
        "--time-scale", type=float, default=1.0, metavar="N", help="divide every duration by N, for a rehearsal with faults"
    )


def run(arguments: argparse.Namespace) -> int:
    """Copies them. Returns 0; 2 where something is there that differs, or cannot be written, or the time scale is none."""
    try:
        files = aie_alerts.files(arguments.runbooks, arguments.time_scale)
    except ValueError as error:
        complain(str(error), "aie-agent rules")
        return export.REFUSED
    return export.run("rules", files, arguments, _next(arguments.export))


def _next(directory: Path) -> str:
    return (
        f"next: in prometheus.yml, rule_files: ['{directory.resolve() / aie_alerts.RULES}/*.yaml'], and reload Prometheus (2.42 or"
        f" newer).\nRoutes and inhibition rules for Alertmanager are in {directory / aie_alerts.ALERTMANAGER}."
    )
