"""One section of `gpu_check.py`, in a process of its own: `gpu_section.py MODULE:FUNCTION DESCRIPTOR OPTIONS`.

What libraries print goes to stderr; what the section finds goes to the descriptor.
"""

from __future__ import annotations

import argparse
import importlib
import os
import traceback
from pathlib import Path
from typing import Final

from gpu_report import Context, NoCudaError, NotRunError, Report

# What the agent's source of GPUs needs.
_INSTALLED_TOGETHER: Final = ("nvidia-ml-py", "msgspec")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("function")
    parser.add_argument("descriptor", type=int)
    parser.add_argument("--device", required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--provoke-xid", action="store_true")
    options = parser.parse_args()
    os.dup2(2, 1)
    report = Report(options.descriptor)
    report.tell(run(options.function, Context(report, options.device, options.small, options.model, options.provoke_xid)))


def run(function: str, context: Context) -> dict[str, str]:
    """How the section ended: a state, with a reason unless it is `done`."""
    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(module), name)(context)
    except NotRunError as reason:
        return {"state": "not_run", "reason": str(reason)}
    except NoCudaError as reason:
        return {"state": "no_cuda", "reason": " ".join(str(reason).split())}
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(("aie_", "gpu_")):  # ours, so it is no package that is not installed
            return _failed(error)
        return {"state": "not_run", "reason": _lacking(error.name or "?")}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and the other sections go on
        return _failed(error)
    return {"state": "done"}


def _lacking(module: str) -> str:
    """What to install, all of it: the next that is missing would be told only at the next run."""
    packages = _INSTALLED_TOGETHER if module in ("pynvml", "msgspec") else (module,)
    return f"needs the Python package of {module}: pip install {' '.join(packages)}"


def _failed(error: Exception) -> dict[str, str]:
    traceback.print_exc()
    where = traceback.extract_tb(error.__traceback__)[-1]
    return {"state": "failed", "reason": f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"}


if __name__ == "__main__":
    main()
