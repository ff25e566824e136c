"""The three layouts of `aie_engine.linear` beside each other: all products of one decode step of SmolLM2, by rows of the step.

    python bench/layouts.py [--threads N]

Prints milliseconds, the median of interleaved runs: what one step's products take, layers and head, when nothing else runs.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from aie_engine.linear import Layout, Linear
from aie_engine.loading import default_threads

LAYERS, HIDDEN, FFN, QKV, VOCAB = 30, 576, 1536, 960, 49_152
SHAPES = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN))
ROWS = (1, 2, 4, 8, 16, 32, 64, 256)
RUNS = 7


def products(layout: Layout) -> list[Linear]:
    """Products of the right shapes in one layout; what the weights are does not change what they cost."""
    made = []
    for _ in range(LAYERS):
        made += [_linear(layout, width_out, width_in) for width_out, width_in in SHAPES]
    return [*made, _linear(layout, VOCAB, HIDDEN)]


def _linear(layout: Layout, width_out: int, width_in: int) -> Linear:
    return Linear(torch.randn(width_out, width_in) * 0.02, layout=layout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=default_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        made = {layout: products(layout) for layout in Layout}
        print(f"{options.threads} threads, ms a step\n{'rows':>6}" + "".join(f"{layout.value:>12}" for layout in Layout))
        for rows in ROWS:
            inputs = {width: torch.randn(rows, width) for width in (HIDDEN, FFN)}
            times: dict[Layout, list[float]] = {layout: [] for layout in Layout}
            for run in range(RUNS + 1):
                for layout, linears in made.items():
                    began = time.perf_counter()
                    for linear in linears:
                        linear(inputs[linear.width_in])
                    if run:  # the first builds what is built on first use
                        times[layout].append((time.perf_counter() - began) * 1e3)
            print(f"{rows:>6}" + "".join(f"{statistics.median(values):>12.1f}" for values in times.values()))


if __name__ == "__main__":
    main()
