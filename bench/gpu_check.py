"""Is what we believe of NVIDIA GPUs true on this one: NVML, allocators, probes, hooks and the engine, in five minutes.

    python bench/gpu_check.py [--device cuda:N] [--model FOLDER] [--only SECTION ...]
    python bench/gpu_check.py --device cpu --small      # tries the script itself, on a tiny model and a simulated GPU

Needs this repository, which need not be installed, and torch; a section that needs more says so and is not run. Each section has a
process and a deadline of its own, so that one that hangs or crashes leaves the others. Prints one JSON object; progress goes to
stderr. Without --model the engine runs a random model of 1.2 billion bf16 parameters.
Exits with 0 when everything that ran is right, 1 when something is not, and 2 with one line where there is no CUDA device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

ROOT: Final = Path(__file__).resolve().parents[1]
_PACKAGES: Final = ("bench", "telemetry", "engine", "ebpf", "agent")
_WRONG, _CANNOT_RUN = 1, 2
_SCHEMA: Final = 1
_REAP_S: Final = 2.0
"""How long a killed process may take to go. One that sits in the driver stays, and we go on."""


class Section(NamedTuple):
    """A part of the check: `function` is MODULE:NAME, `limit_s` what it adds to the deadline of itself and those behind it."""

    name: str
    function: str
    limit_s: float


SECTIONS: Final = (
    Section("machine", "gpu_machine:machine", 25),
    Section("nvml_idle", "gpu_idle:idle", 40),
    Section("nvml_memory", "gpu_points:memory", 10),
    Section("nvml_fields", "gpu_points:fields", 20),
    Section("nvml_events", "gpu_points:events", 10),
    Section("nvml_gpm", "gpu_gpm:gpm", 20),
    Section("nvml_cycle", "gpu_cycle:cycle", 25),
    Section("probes", "gpu_probes:probes", 10),
    Section("allocator", "gpu_allocator:allocator", 35),
    Section("hooks", "gpu_hooks:hooks", 30),
    Section("engine", "gpu_measure:engine", 65),
)
"""In this order: a GPU rests only as long as nobody has worked on it. Together under 295 s; what one does not use, those behind it
may."""


def main() -> int:
    options = _options()
    began_s = time.monotonic()
    deadline_s = began_s
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found: dict[str, dict[str, Any]] = {}
    for section in SECTIONS:
        deadline_s += section.limit_s
        if options.only and section.name not in ("machine", *options.only):
            continue
        result = run_section(section, deadline_s, options.arguments)
        if result["state"] == "no_cuda":
            if not found:
                _cannot_run(result["reason"])
            result["state"] = "failed"  # there was one before
        found[section.name] = result
        say(section.name, result)
    wrong = [name for name, result in found.items() if result["state"] not in ("right", "not_run")]
    report = {
        "schema": _SCHEMA,
        "began": began,
        "took_s": round(time.monotonic() - began_s, 1),
        "revision": _revision(),
        "device": options.device,
        "small": options.small,
        "verdict": "wrong" if wrong else "right",
        "wrong": wrong,
        "not_run": [name for name, result in found.items() if result["state"] == "not_run"],
        "sections": found,
    }
    print(json.dumps(report, indent=1))
    return _WRONG if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu to try the script itself (default: cuda:0)")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder of a Llama or Qwen2 model (default: a random one)")
    parser.add_argument("--small", action="store_true", help="a tiny random model and little work")
    parser.add_argument("--only", nargs="+", choices=[section.name for section in SECTIONS], help="these sections")
    parser.add_argument("--provoke-xid", action="store_true", help="cause an XID 31, to see who tells of it")
    options = parser.parse_args()
    if options.model is not None and not (options.model / "config.json").is_file():
        _cannot_run(f"--model {options.model}: no config.json there can be read")
    options.arguments = ["--device", options.device]
    options.arguments += ["--small"] if options.small else []
    options.arguments += ["--provoke-xid"] if options.provoke_xid else []
    options.arguments += [] if options.model is None else ["--model", str(options.model.resolve())]
    return options


def run_section(section: Section, deadline_s: float, arguments: Sequence[str]) -> dict[str, Any]:
    """Runs one in a process until `deadline_s`, by time.monotonic(): its state, what it found, and how long it took.

    States: right, wrong (a check does not hold), not_run (with what it needs), timed_out, failed (it raised, or its process died),
    and no_cuda.
    """
    began_s = time.monotonic()
    reading, writing = os.pipe()
    command = [sys.executable, str(ROOT / "bench/gpu_section.py"), section.function, str(writing), *arguments]
    with open(reading, "rb", buffering=0) as pipe:
        try:
            process = subprocess.Popen(
                command, env=_environment(), stdin=subprocess.DEVNULL, stdout=2, pass_fds=[writing], start_new_session=True
            )
        finally:
            os.close(writing)
        try:
            output, is_complete = _read(pipe, deadline_s)
        finally:
            status = _end(process)
    took_s = round(time.monotonic() - began_s, 2)
    return {**_result(output, is_complete, status), "took_s": took_s}


def _environment() -> dict[str, str]:
    paths = [str(ROOT / name) for name in _PACKAGES]
    return os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])}


def _read(pipe: Any, deadline_s: float) -> tuple[bytes, bool]:
    """What the section wrote, and whether it came to its end before the deadline."""
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left_s := deadline_s - time.monotonic()) > 0:
            if not selector.select(left_s):
                break
            piece = pipe.read(65536)
            if not piece:
                return bytes(output), True
            output += piece
    return bytes(output), False


def _end(process: subprocess.Popen[bytes]) -> int | None:
    """Ends the section's process, with all that it started; its status, or None where it does not even die."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.2)  # one that closed its pipe is about to end by itself
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_REAP_S)
    return None


def _result(output: bytes, is_complete: bool, status: int | None) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    checks: list[dict[str, Any]] = []
    end: dict[str, Any] = {}
    for line in output.splitlines(keepends=True):
        if not line.endswith(b"\n"):  # cut off with its process
            continue
        message = json.loads(line, parse_constant=str)  # what is no number is a word here, as JSON has it
        if "fact" in message:
            facts[message["fact"]] = message["value"]
        elif "check" in message:
            checks.append(message)
        else:
            end = message
    return {**_state(end, checks, is_complete, status), "checks": checks, "facts": facts}


def _state(end: dict[str, Any], checks: list[dict[str, Any]], is_complete: bool, status: int | None) -> dict[str, Any]:
    if end.get("state") == "done":
        return {"state": "right" if all(check["holds"] for check in checks) else "wrong"}
    if end:
        return end
    if is_complete:
        return {"state": "failed", "reason": f"its process ended with status {status} before the section did"}
    suffix = "" if status is not None else "; it sits in the driver, and cannot be killed"
    return {"state": "timed_out", "reason": f"did not end before its deadline{suffix}"}


def say(name: str, result: dict[str, Any]) -> None:
    """A section for people, on stderr."""
    print(f"{name}: {result['state']} after {result['took_s']} s {result.get('reason', '')}".rstrip(), file=sys.stderr)
    for check in result["checks"]:
        print(f"  {'ok    ' if check['holds'] else 'WRONG '} {check['check']}: {check['text']}", file=sys.stderr)


def _revision() -> str | None:
    """Of this repository; None in a copy that has no history."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _cannot_run(reason: str) -> NoReturn:
    print(f"gpu_check: {' '.join(reason.split())}", file=sys.stderr)
    raise SystemExit(_CANNOT_RUN)


if __name__ == "__main__":
    # Whoever ends this script ends its section too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
