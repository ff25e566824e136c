"""The command line of `aie-agent`: parses, loads the configuration, hands over to one of `commands/`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from aie_agent import config as configuration
from aie_agent.commands import baseline, check, dashboards, diagnose, drift, leak, parse_statsd, probe, rules, stacks
from aie_agent.commands.terminal import complain, encode_all, printable
from aie_agent.config import Config, ConfigError

DEFAULT_CONFIG = Path("/etc/aie/agent.toml")


class _Command(Protocol):
    """A module of `commands/` that reads no configuration of the agent's; `run` returns the exit status."""

    def add_parser(self, commands: Any) -> None: ...
    def run(self, arguments: argparse.Namespace) -> int: ...


_COMMANDS: Final[Mapping[str, _Command]] = {
    "diagnose": diagnose,
    "stacks": stacks,
    "probe": probe,
    "leak": leak,
    "drift": drift,
    "baseline": baseline,
    "dashboards": dashboards,
    "rules": rules,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 good, 1 something that is asked for cannot be seen, 2 bad arguments or configuration."""
    encode_all()
    arguments = _parser().parse_args(argv)
    if arguments.command == "parse-statsd":
        return _quietly(lambda: parse_statsd.run(datadog=arguments.datadog, as_json=arguments.json))
    if arguments.command in _COMMANDS:
        return _quietly(lambda: _COMMANDS[arguments.command].run(arguments))
    try:
        config = _config(arguments)
    except ConfigError as error:
        complain(str(error))
        return 2
    if arguments.command == "check":
        return _quietly(lambda: check.run(config, as_json=arguments.json))
    from aie_agent.commands import run  # only the daemon needs the HTTP server: the other commands answer at once

    return run.run(config)


class _Parser(argparse.ArgumentParser):
    """Complains in text that moves no cursor: `leak *` may name any files."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="aie-agent", description="Says what is wrong with the inference engines of this host.")
    parser.add_argument("--version", action="version", version=f"aie-agent {version('aie-observability')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="watch the engines of this host, until stopped")
    check_ = commands.add_parser("check", help="what can be seen on this host, what cannot, why, and what to do")
    check_.add_argument("--json", action="store_true", help="as one JSON array")
    for command in (run, check_):
        command.add_argument("--config", type=Path, metavar="FILE", help=f"TOML file (default: {DEFAULT_CONFIG} where it exists)")
        command.add_argument("--listen", metavar="HOST:PORT", help="overrides api.listen")
        command.add_argument("--insecure", action="store_true", help="listen beyond loopback, without password or TLS")
        command.add_argument(
            "--engine",
            action="append",
            default=[],
            metavar="NAME=URL",
            help="an engine and its metrics page, beside those of the file or in place of the one of that name",
        )
        command.add_argument(
            "--simulate-gpus",
            metavar="N[:PROFILE]",
            help="pretend that the host has so many GPUs (needs a C compiler); whatever shows them says that they are simulated",
        )
        command.add_argument("--dcgm", action="store_true", help="show GPUs under dcgm-exporter's names too, at /metrics/dcgm")
        command.add_argument(
            "--print-findings", action="store_true", help="write what comes and goes to standard output, as lines of JSON"
        )
        command.add_argument("--no-bpf", action="store_true", help="attach no probes to the kernel or to engines")
        command.add_argument("--no-discovery", action="store_true", help="know only engines that are announced or named")
    statsd = commands.add_parser("parse-statsd", help="show what each StatsD line on standard input becomes")
    statsd.add_argument(
        "--datadog", action="store_true", help="read DogStatsD's tags, packed values, events and service checks too"
    )
    statsd.add_argument("--json", action="store_true", help="one JSON object a line")
    for module in _COMMANDS.values():
        module.add_parser(commands)
    return parser


def _config(arguments: argparse.Namespace) -> Config:
    """The file, with what the command line adds, validated as one. Raises ConfigError."""
    path = arguments.config
    if path is None and DEFAULT_CONFIG.exists():
        path = DEFAULT_CONFIG
    table: dict[str, Any] = {} if path is None else configuration.read(path)
    origin = "command line" if path is None else str(path)
    overrides: dict[str, Any] = {"listen": arguments.listen} if arguments.listen is not None else {}
    if arguments.insecure:
        overrides["insecure"] = True
    api, engines, discovery = table.get("api", {}), table.get("engines", []), table.get("discovery", {})
    if isinstance(discovery, dict) and arguments.no_discovery:
        table["discovery"] = discovery | {"enabled": False}
    bpf = table.get("bpf", {})
    if isinstance(bpf, dict) and arguments.no_bpf:
        table["bpf"] = bpf | {"enabled": False}
    findings = table.get("findings", {})
    if isinstance(findings, dict) and arguments.print_findings:
        table["findings"] = findings | {"print": True}
    gpu = table.get("gpu", {})
    if isinstance(gpu, dict) and arguments.simulate_gpus is not None:
        table["gpu"] = gpu | {"enabled": True, "simulate": arguments.simulate_gpus}
    dcgm = table.get("dcgm", {})
    if isinstance(dcgm, dict) and arguments.dcgm:
        table["dcgm"] = dcgm | {"enabled": True}
    if isinstance(api, dict) and overrides:  # anything else is refused below, by its name
        table["api"] = api | overrides
    if isinstance(engines, list) and arguments.engine:
        added = [_engine(item) for item in arguments.engine]
        names = {engine["name"] for engine in added}
        kept = [engine for engine in engines if not (isinstance(engine, dict) and engine.get("name") in names)]
        table["engines"] = kept + added
    return configuration.parse(table, origin)


def _engine(item: str) -> dict[str, str]:
    name, equals, url = item.partition("=")
    if not equals:
        raise ConfigError(f"--engine: expected NAME=URL, got {item!r}")
    return {"name": name, "metrics_url": url}


def _quietly(command: Any) -> int:
    """A reader that goes away (`| head`), output that cannot be written and Ctrl-C end a command without a traceback, and with no
    status that would be a verdict."""
    if sys.stdout is None:
        complain("cannot write to standard output: it is closed")
        return 2
    try:
        status: int = command()
        sys.stdout.flush()
    except BrokenPipeError:
        _write_no_more()
        return 141  # as the shell says of a program that SIGPIPE ended
    except OSError as error:
        _write_no_more()
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def _write_no_more() -> None:
    """Python flushes what is left once more when it ends, and would complain: let it go to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
