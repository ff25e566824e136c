"""``python -m aie_agent.simulate [--gpus 8] [--profile H100] COMMAND ...``: runs a command that finds simulated GPUs at work."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from aie_agent.simulate import PROFILES, BuildError, Controller, environment
from aie_agent.simulate.build import CURRENT_DRIVER
from aie_agent.simulate.lively import enliven


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m aie_agent.simulate", description="Runs a command that finds simulated GPUs.")
    parser.add_argument("--gpus", type=int, default=8, help="how many, 1 to 16 (8)")
    parser.add_argument("--profile", choices=tuple(PROFILES), default="H100", help="which product (H100)")
    parser.add_argument(
        "--driver", type=int, default=CURRENT_DRIVER, help=f"the driver branch whose symbols exist ({CURRENT_DRIVER})"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments, such as nvitop")
    parsed = parser.parse_args(arguments)
    if not parsed.command:
        parser.error("no command to run")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the command's exit code; 127 if it was not found, 2 if there is no stand-in to run it on."""
    parsed = _parse(sys.argv[1:] if arguments is None else arguments)
    try:
        controller = Controller.create(None, parsed.gpus, parsed.profile)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    with controller:
        enliven(controller, parsed.gpus, pids=(os.getpid(),))
        try:
            variables = environment(controller.path, parsed.driver)
            return subprocess.run(parsed.command, env={**os.environ, **variables}, check=False).returncode
        except BuildError as error:
            print(error, file=sys.stderr)
            return 2
        except OSError as error:
            print(f"{parsed.command[0]}: {error.strerror}", file=sys.stderr)
            return 127


if __name__ == "__main__":
    sys.exit(main())
