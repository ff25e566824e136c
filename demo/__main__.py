"""Starts the engine, the agent and the traffic, shows `aie-top`, and stops everything again."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from aie_agent.config_values import SimulatedGpus
from demo.gpus import BuildError, Gpus, simulated
from demo.traffic import SHARE_OF_CAPACITY, Traffic

ENGINE_NAME = "smollm2"
HEADLESS_SECONDS = 30.0
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 15.0
BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Mode:
    """How the demo is watched: what `aie-top` is told, and how much traffic goes before it."""

    top_arguments: tuple[str, ...] = ()
    traffic_seconds: float = 0.0


def mode_of(picture: str | None) -> Mode:
    """A picture where one is asked for; else live on a terminal, and a report without one or with HEADLESS=1."""
    if picture is not None:
        # Longer than the window and the histories, so that both are full.
        return Mode(("--export-svg", picture, "--size", "110x30"), 65.0)
    if os.environ.get("HEADLESS", "") not in ("", "0") or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Mode(("--once",), HEADLESS_SECONDS)
    return Mode()


class DemoError(Exception):
    """Something did not start: one line that says what."""


def say(text: str) -> None:
    """A line about what happens now."""
    print(f"demo: {text}", flush=True)


@contextlib.contextmanager
def program(name: str, *arguments: str, log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program of ours in the background, stopped at the end. In a session of its own, so that Ctrl-C reaches only the demo."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [BIN / name, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def url_announced(name: str, process: subprocess.Popen[bytes], log: Path) -> str:
    """The URL that a program prints when it is ready. Raises DemoError when it ends or takes too long."""
    for _ in range(int(START_TIMEOUT_S * 10)):
        match = re.search(r"http://[^\s,]+:\d+", text_of(log))
        if match is not None:
            return match[0]
        if process.poll() is not None:
            raise DemoError(f"{name} ended:\n{text_of(log)}")
        await asyncio.sleep(0.1)
    raise DemoError(f"{name} was not ready within {START_TIMEOUT_S:.0f} s:\n{text_of(log)}")


async def ready(engine_url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the engine has loaded its model. Raises DemoError when it ends or takes too long."""
    async with aiohttp.ClientSession() as client:
        for _ in range(int(START_TIMEOUT_S * 10)):
            with contextlib.suppress(aiohttp.ClientError):  # it may have ended, which the next line tells
                async with client.get(f"{engine_url}/health/ready") as answer:
                    if answer.status == 200:
                        return
            if process.poll() is not None:
                raise DemoError(f"aie-engine ended:\n{text_of(log)}")
            await asyncio.sleep(0.1)
    raise DemoError(f"aie-engine was not ready within {START_TIMEOUT_S:.0f} s:\n{text_of(log)}")


def text_of(log: Path) -> str:
    """What a program has printed so far."""
    return log.read_text(errors="replace").strip()


@contextlib.asynccontextmanager
async def engine_of(directory: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    """The engine with its model loaded; gives its process and its URL."""
    log = directory / "engine.log"
    # Every answer is looked at, where a tenth is usual, so that drift has something to say within minutes: 1.5 % of a step.
    drift = ("--sample-outputs", "1", "--canary-every", "10s")
    arguments = ("serve", "--model", "smollm2", "--name", ENGINE_NAME, "--port", "0", *drift)
    with program("aie-engine", *arguments, log=log, environment={"AIE_STATSD": f"unix://{directory}/statsd.sock"}) as engine:
        say("loading SmolLM2-135M-Instruct")
        engine_url = await url_announced("aie-engine", engine, log)
        await ready(engine_url, engine, log)
        yield engine, engine_url


@contextlib.asynccontextmanager
async def agent_beside(engine_url: str, directory: Path, gpus: Gpus | None) -> AsyncIterator[tuple[str, list[str]]]:
    """The agent; gives its URL, and the command that checks what it sees."""
    config, log = directory / "agent.toml", directory / "agent.log"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n\n[statsd]\nunix = "{directory}/statsd.sock"\nudp = "off"\n\n'
        + (f"[gpu]\nexpected = {gpus.number}\n\n" if gpus is not None else "")
        + '[drift]\nreferences = ["demo"]\n\n'
        + f'[[engines]]\nname = "{ENGINE_NAME}"\nmetrics_url = "{engine_url}/metrics"\n'
    )
    seen = gpus.environment if gpus is not None else {}
    with program("aie-agent", "run", "--config", str(config), log=log, environment=seen) as agent:
        agent_url = await url_announced("aie-agent", agent, log)
        say(f"engine at {engine_url}, agent at {agent_url}")
        command = check_command(config, agent_url, seen)
        await engine_seen(agent_url)
        report_what_is_not_visible(command)
        yield agent_url, command


def check_command(config: Path, agent_url: str, environment: dict[str, str]) -> list[str]:
    """`aie-agent check`, of which advice speaks, for the agent of the demo: where it listens is not in its configuration."""
    variables = ["env", *(f"{name}={value}" for name, value in environment.items())] if environment else []
    return [*variables, str(BIN / "aie-agent"), "check", "--config", str(config), "--listen", agent_url.removeprefix("http://")]


async def engine_seen(agent_url: str) -> None:
    """Waits until the agent has read the engine's page, and all else has had its first look. Where not, for half a minute, the
    check says so."""
    async with aiohttp.ClientSession() as client:
        for _ in range(300):
            async with client.get(f"{agent_url}/api/v1/snapshot") as answer:
                if answer.status == 200 and is_seen(await answer.json()):  # before its first look it has none
                    return
            await asyncio.sleep(0.1)


def is_seen(snapshot: dict[str, Any]) -> bool:
    """Whether the engine's page is read, and probes are on its processes where there are any."""
    states = {source["name"]: source["state"] for source in snapshot["sources"]}
    return "waiting" not in states.values() and any(
        engine["state"] == "up"
        and engine["metrics_from"]
        and (states.get("bpf") != "up" or any(each["state"] == "on" for each in engine["coverage"]))
        for engine in snapshot["engines"]
        if engine["name"] == ENGINE_NAME
    )


def not_seen(lines: list[str]) -> list[str]:
    """The lines that say "not seen", each with the advice below it; advice on anything else stays out."""
    kept: list[str] = []
    belongs = False
    for line in lines:
        if not line.lstrip().startswith("->"):
            belongs = line.startswith("not seen")
        if belongs:
            kept.append(line)
    return kept


def report_what_is_not_visible(command: list[str]) -> None:
    """The lines of `aie-agent check` that say "not seen"."""
    check = subprocess.run(command, capture_output=True, text=True, check=False)
    hidden = not_seen(check.stdout.splitlines())
    if hidden:
        print("\n".join(["demo: not visible here, which the demo does without:", *(f"  {line}" for line in hidden)]), flush=True)


async def show(agent_url: str, mode: Mode, gpus: Gpus | None) -> int:
    """`aie-top`, after some traffic where nobody watches. Simulated GPUs begin their minute with it."""
    headless = "--once" in mode.top_arguments
    walk = asyncio.create_task(gpus.walk(say if headless else _untold)) if gpus is not None else None
    try:
        status = await watch(agent_url, mode)
        if gpus is not None and headless and status == 0:
            await all_answer(agent_url, gpus.number)
        return status
    finally:
        if walk is not None:
            walk.cancel()


def _untold(_step: str) -> None:
    """The screen belongs to aie-top, which shows it."""


async def all_answer(agent_url: str, number: int) -> None:
    """Waits until the agent says that the lost GPU answers again. Raises DemoError when it does not within a minute."""
    async with aiohttp.ClientSession() as client:
        for _ in range(60):
            async with client.get(f"{agent_url}/api/v1/snapshot") as answer:
                up = [gpu["up"] for gpu in (await answer.json())["gpus"]]
            if up == [True] * number:
                say(f"the agent says that {number} of {number} simulated GPUs answer")
                return
            await asyncio.sleep(1.0)
    raise DemoError(f"{up.count(True)} of {number} simulated GPUs answer, a minute after the report")


async def watch(agent_url: str, mode: Mode) -> int:
    """`aie-top`, after some traffic where nobody watches."""
    if mode.traffic_seconds:
        say(f"{mode.traffic_seconds:.0f} s of traffic")
        await asyncio.sleep(mode.traffic_seconds)
    process = await asyncio.create_subprocess_exec(str(BIN / "aie-top"), "--connect", agent_url, *mode.top_arguments)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def demo(directory: Path, mode: Mode, gpus: Gpus | None) -> int:
    """The whole demo; returns the exit status.

    The agent comes after the measurement: its rush would stand in every figure of the first minute.
    """
    async with engine_of(directory) as (engine, engine_url), Traffic(engine_url, ENGINE_NAME) as traffic:
        say("measuring what the engine takes on this machine, for about half a minute")
        capacity = await traffic.measure_capacity()
        rate = SHARE_OF_CAPACITY * capacity
        measured = traffic.outcomes["200"]
        async with agent_beside(engine_url, directory, gpus) as (agent_url, check):
            say(f"it takes {capacity:.2f} requests/s of the mix; sending {rate:.2f}/s (85 % short, 12 % middle, 3 % long prompts)")
            say(f"while it runs, this says what the agent sees and does not see: {shlex.join(check)}")
            sending = asyncio.create_task(traffic.run(rate))
            status = await show(agent_url, mode, gpus)
            sending.cancel()
        failed = {outcome: count for outcome, count in traffic.outcomes.items() if outcome != "200"}
        answered = traffic.outcomes["200"] - measured
        say(f"{answered} requests answered after the measurement" + (f", others: {failed}" if failed else ""))
        if engine.poll() is not None:
            say(f"the engine ended by itself, with status {engine.returncode}")
        return 1 if failed or not answered else status


@contextlib.contextmanager
def simulated_gpus(wanted: str | None, directory: Path) -> Iterator[Gpus | None]:
    """As many as asked for, or none. Raises DemoError when there can be none."""
    if not wanted or wanted == "0":
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            gpus = stack.enter_context(simulated(SimulatedGpus.parse(wanted), directory))
        except (BuildError, ValueError) as error:
            raise DemoError(f"GPUS={wanted}: {error}") from error
        say(f"{gpus.number} simulated GPUs: every number about them is made up; the engine runs on the CPU")
        yield gpus


def main() -> int:
    """Exit status 0 when all went well, 1 when something did not work, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--picture", metavar="FILE", help="write a picture (SVG) of aie-top after a minute of traffic, and end")
    about_gpus = "GPUS=... of `make demo`: simulate so many GPUs (needs a C compiler), such as 8 or 8:H100; 0: none"
    parser.add_argument("--gpus", metavar="N[:PRODUCT]", help=about_gpus)
    arguments = parser.parse_args()
    mode = mode_of(arguments.picture)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    directory = Path(tempfile.mkdtemp(prefix="aie-demo-"))
    started = False
    try:
        with simulated_gpus(arguments.gpus, directory) as gpus:
            started = True
            return asyncio.run(demo(directory, mode, gpus))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if started:
            say("everything that it started is stopped")


if __name__ == "__main__":
    sys.exit(main())
