"""Is the engine right on this GPU, and how fast is it: one script of under three minutes, with transformers beside it.

    python bench/gpu_check.py [--device cuda:N] [--model FOLDER]
    python bench/gpu_check.py --device cpu --small      # tries the script itself, on a tiny model

Without --model it makes a random model of 1.2 billion bf16 parameters. Where the package is not installed, set
PYTHONPATH=engine:telemetry.
Exits with 0 when every check holds, 1 when one does not, and 2 with one line where it cannot run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

_FAILED, _CANNOT_RUN = 1, 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu to try the script itself (default: cuda:0)")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder of a Llama or Qwen2 model (default: a random one)")
    parser.add_argument("--small", action="store_true", help="a tiny random model and little work")
    options = parser.parse_args()
    try:  # here, because a machine that lacks one of them is told so in one line
        import torch

        from aie_engine.errors import ModelError
        from gpu_measure import run
    except ImportError as error:
        _cannot_run(f"{error}; it needs aie-observability[engine], transformers and a torch with CUDA")
    if options.device != "cpu" and not torch.cuda.is_available():
        _cannot_run(f"torch {torch.__version__} sees no CUDA device here")
    try:
        report = run(options.device, options.model, small=options.small)
    except ModelError as error:
        _cannot_run(str(error))
    print(f"{report.machine}\n")
    for figure in report.figures:
        print(f"{figure.name:32} {figure.text}")
    print()
    for check in report.checks:
        print(f"{'ok    ' if check.holds else 'FAILED'} {check.name:40} {check.text}")
    return 0 if all(check.holds for check in report.checks) else _FAILED


def _cannot_run(reason: str) -> NoReturn:
    print(f"gpu_check: {' '.join(reason.split())}", file=sys.stderr)
    raise SystemExit(_CANNOT_RUN)


if __name__ == "__main__":
    sys.exit(main())
