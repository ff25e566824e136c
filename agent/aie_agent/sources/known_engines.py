"""How the processes of known engines are told by their command line. A new engine is a row of `KNOWN`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple


class Known(NamedTuple):
    """One kind of engine, by what its processes are called and by where its metrics page is by default.

    `programs` and `modules` are of the process that is started: a program, and the word that has to follow it ("" for any).
    `titles` are how its other processes call themselves. Flags that set the port of the page come the most telling first;
    `page_apart` where the page has a port of its own, and `page_flag` is the one without which there is no page.
    """

    kind: str
    programs: tuple[tuple[str, str], ...]
    modules: tuple[tuple[str, str], ...] = ()
    titles: tuple[str, ...] = ()
    port: int = 8000
    port_flags: tuple[str, ...] = ("--port",)
    path: str = "/metrics"
    page_apart: bool = False
    page_flag: str = ""
    name_flag: str = ""


KNOWN: Final = (
    Known(
        "vllm",
        programs=(("vllm", "serve"),),
        modules=(
            ("vllm.entrypoints.openai.api_server", ""),
            ("vllm.entrypoints.api_server", ""),
            ("vllm.entrypoints.cli.main", "serve"),
        ),
        titles=("VLLM::",),
    ),
    Known(
        "sglang",
        programs=(("sglang", "serve"),),
        modules=(("sglang.launch_server", ""),),
        titles=("sglang::",),
        port=30000,
        page_flag="--enable-metrics",
    ),
    Known(
        "tgi",
        programs=(("text-generation-launcher", ""), ("text-generation-router", ""), ("text-generation-server", "serve")),
        port=3000,
        port_flags=("--port", "-p"),
    ),
    Known("triton", programs=(("tritonserver", ""),), port=8002, port_flags=("--metrics-port",), page_apart=True),
    Known("tensorrt-llm", programs=(("trtllm-serve", ""),), path="/prometheus/metrics"),
    Known("llama.cpp", programs=(("llama-server", ""),), port=8080, page_flag="--metrics"),
    Known("aie-engine", programs=(("aie-engine", "serve"),), modules=(("aie_engine.cli", "serve"),), name_flag="--name"),
)

# `server -m x.gguf` was llama.cpp's program until 2024; the name alone could be anybody's.
_OLD_LLAMA: Final = "server"
_MODEL_FLAGS: Final = ("-m", "--model")

_WITH_VALUE: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})


class Command(NamedTuple):
    """What a command line runs: a program by its base name or a Python module, and its arguments."""

    program: str
    module: str
    arguments: tuple[str, ...]


def read_command(argv: Sequence[str]) -> Command:
    """A command line without the interpreter that runs it. Wrappers (sh, uv, docker) are programs of their own: what they start is
    a process, too."""
    if not argv:
        return Command("", "", ())
    program = PurePosixPath(argv[0]).name
    if not program.startswith(("python", "pypy")):
        return Command(program, "", tuple(argv[1:]))
    at = 1
    while at < len(argv):
        word = argv[at]
        if word == "-m" and at + 1 < len(argv):
            return Command("", argv[at + 1], tuple(argv[at + 2 :]))
        if not word.startswith("-"):
            return Command(PurePosixPath(word).name, "", tuple(argv[at + 1 :]))
        if word == "-c":
            break
        at += 2 if word in _WITH_VALUE else 1
    return Command("", "", ())


def engine_of(argv: Sequence[str]) -> Known | None:
    """The engine that a command line starts, or that a process title belongs to; None for everything else."""
    if not argv:
        return None
    command = read_command(argv)
    for known in KNOWN:
        if is_title(argv, known) or _runs(command, known):
            return known
    if command.program == _OLD_LLAMA and (flag_value(command.arguments, _MODEL_FLAGS) or "").endswith(".gguf"):
        return next(known for known in KNOWN if known.kind == "llama.cpp")
    return None


def is_title(argv: Sequence[str], known: Known) -> bool:
    """Whether this is no command line, but what a process of such an engine calls itself."""
    return bool(known.titles) and argv[0].startswith(known.titles)


def _runs(command: Command, known: Known) -> bool:
    wanted = [follow for name, follow in known.programs if name == command.program]
    wanted += [follow for name, follow in known.modules if name == command.module]
    return any(not follow or follow in command.arguments[:1] for follow in wanted)


def flag_value(arguments: Sequence[str], flags: Sequence[str]) -> str | None:
    """What stands behind the first of `flags` that is given, as `--flag value` or `--flag=value`; the last if it is repeated."""
    for flag in flags:
        found = None
        for at, word in enumerate(arguments):
            if word == flag and at + 1 < len(arguments):
                found = arguments[at + 1]
            elif word.startswith(f"{flag}=") and flag.startswith("--"):
                found = word.partition("=")[2]
        if found is not None:
            return found
    return None


def port_of(argv: Sequence[str], known: Known) -> int:
    """The port that the command line asks for, or the kind's own."""
    text = flag_value(read_command(argv).arguments, known.port_flags) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536 else known.port
