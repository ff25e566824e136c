"""`aie-engine`: the command line."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from aie_engine.config import ConfigError, EngineConfig
from aie_engine.log_limits import Rarely
from aie_telemetry.durations import ACCEPTED, parse_duration

_CANNOT_START = 2
_COLLECTOR_COMPLAINTS_S = 300.0  # while a collector is gone the SDK says so at every batch, every few seconds

_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in dataclasses.fields(EngineConfig) if field.default is not dataclasses.MISSING
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, not the usage text before it: the line is what the user needs."""
        self.exit(_CANNOT_START, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 stopped, 1 died while serving, 2 could not start."""
    parsed = vars(_parser().parse_args(arguments))
    if parsed.pop("command") is None:
        _parser().error("a command is needed: aie-engine serve --model smollm2")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s aie-engine %(levelname)s %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(Rarely("opentelemetry", _COLLECTOR_COMPLAINTS_S))
    # Here, because torch takes seconds to import and neither --version nor a mistyped option needs it.
    from aie_engine.errors import ModelError
    from aie_engine.model_thread import StartError
    from aie_engine.serve import serve

    try:
        return serve(EngineConfig(**parsed))
    except (ConfigError, ModelError, StartError) as error:
        print(f"aie-engine: {error}", file=sys.stderr)
        return _CANNOT_START


def _duration(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds == 0:  # every one of our durations is a limit, and nothing is done within no time
        raise argparse.ArgumentTypeError(f"expected {ACCEPTED}, and longer than {text!r}")
    return seconds


# Flag, field, type, help. Defaults stand in EngineConfig.
_OPTIONS: tuple[tuple[str, str, Any, str], ...] = (
    ("--host", "host", str, "address to listen on"),
    ("--port", "port", int, "port to listen on; 0 takes any free one"),
    ("--name", "name", str, "the engine's name in metrics"),
    ("--device", "device", str, "where to compute: cpu, cuda, cuda:1"),
    ("--threads", "threads", int, "CPU threads for the model (default: cores - 1)"),
    ("--kv-tokens", "kv_tokens", int, "size of the KV cache in tokens, allocated at start"),
    ("--max-running", "max_running", int, "requests computed at once, at most"),
    ("--max-waiting", "max_waiting", int, "requests in the queue, at most; more are answered with 429"),
    ("--max-step-tokens", "max_step_tokens", int, "tokens computed in one step, at most"),
    ("--max-tokens-default", "max_tokens_default", int, "length of a chat answer whose client sets none"),
    ("--max-body-bytes", "max_body_bytes", int, "size of a request's body, at most; more is answered with 413"),
    (
        "--response-cache-bytes",
        "response_cache_bytes",
        int,
        "memory for answers to greedy requests, given again to equal ones; 0: off",
    ),
    ("--deadline", "deadline_s", _duration, "time for a request from arrival to end; then 504"),
    ("--body-timeout", "body_timeout_s", _duration, "time for a request's body to arrive; then 408"),
    ("--grace", "grace_s", _duration, "time for running requests after SIGTERM"),
    ("--stall", "stall_s", _duration, "not ready when requests run and no token has come for so long"),
    ("--write-timeout", "write_timeout_s", _duration, "time a client may leave its stream unread"),
    ("--statsd", "statsd", str, "where the hooks send: unix:///path, udp://host:port or off (default: this user's agent)"),
    (
        "--otlp-endpoint",
        "otlp_endpoint",
        str,
        "OpenTelemetry collector that takes spans by OTLP over HTTP, such as http://localhost:4318 (default: OTEL_* variables)",
    ),
    ("--trace-rate", "trace_rate", float, "share of the requests without a traceparent that become spans"),
    (
        "--memory-probe",
        "memory_probe_s",
        _duration,
        "when the agent suspects a leak, give back memory that is only retained, at most once in this time: 10m (default: off)",
    ),
    (
        "--sample-outputs",
        "sample_outputs",
        float,
        "share of the answers whose entropy, surprisal and length the hooks send, for drift",
    ),
    (
        "--canary-every",
        "canary_every_s",
        _duration,
        "computes one fixed prompt so often, by which a changed model is seen (default: never)",
    ),
    (
        "--degrade-file",
        "degrade_file",
        Path,
        "file in which an agent (drift.on_alarm) says that answers are not to be trusted; they are marked, and not kept",
    ),
)


def _parser() -> _Parser:
    parser = _Parser(prog="aie-engine", description="The reference inference engine: OpenAI-compatible, and observable.")
    parser.add_argument("--version", action="version", version=f"aie-engine {version('aie-observability')}")
    commands = parser.add_subparsers(dest="command", parser_class=_Parser)
    serve = commands.add_parser("serve", help="load a model and serve it", description="Loads a model and serves it over HTTP.")
    serve.add_argument("--model", required=True, help="smollm2, a .gguf file, or a Hugging Face folder")
    for flag, field, kind, text in _OPTIONS:
        default = _DEFAULTS[field]
        shown = "" if default is None else f" (default: {default:g} s)" if kind is _duration else f" (default: {default})"
        serve.add_argument(flag, dest=field, type=kind, default=default, metavar=_metavar(kind), help=text + shown)
    return parser


def _metavar(kind: Any) -> str:
    return {int: "N", float: "X", _duration: "TIME", Path: "PATH"}.get(kind, "TEXT")


if __name__ == "__main__":
    sys.exit(main())
