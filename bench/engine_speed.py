"""The engine beside transformers `generate` in one run: same weights, threads and prompts; llama.cpp too where it is installed.

    python bench/engine_speed.py [--threads N] [--rounds N] [--only WORDS]

Prints medians of paired rounds with their quartiles, ratios of the pairs, and how far the engine is from what the host can do.
Exits with 1 when a ratio is below its target. The order within a pair alternates, so that a host that slows down favours nobody.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from aie_engine.loading import LoadedModel, default_threads, load_model
from engine_peers import Engine, Job, LlamaCpp, Peer, Transformers
from host_ceilings import Ceilings, measure

DECODE_TOKENS = 48
PROMPT_TOKENS = 64


class Scenario(NamedTuple):
    """One kind of work: how it is measured, in what unit of time, and by which factor the engine has to be faster."""

    name: str
    run: Callable[[Peer], float | None]
    unit: str
    target: float | None = None


def scenarios(vocab: int) -> list[Scenario]:
    """Prompts are random tokens: what they say does not change what they cost."""
    rng = random.Random(7)

    def prompt(tokens: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(tokens)]

    single, eight, long = [prompt(PROMPT_TOKENS)], [prompt(PROMPT_TOKENS) for _ in range(8)], prompt(256)
    jobs = [Job(prompt(rng.choice((12, 24, 48, 96, 192))), rng.choice((8, 16, 32, 64, 128))) for _ in range(32)]
    return [
        Scenario("decode, batch 1", lambda peer: peer.decode_step_s(single, DECODE_TOKENS), "ms a step", 1.2),
        Scenario("decode, batch 8", lambda peer: peer.decode_step_s(eight, DECODE_TOKENS), "ms a step", 1.7),
        Scenario("first token, prompt of 256", lambda peer: peer.first_token_s(long), "ms"),
        Scenario("32 requests of mixed length", lambda peer: peer.workload_s(jobs), "ms", 2.0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=default_threads(), help="of torch, for all (default: what the engine takes)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="scenarios whose names have this in them")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded = load_model("smollm2")
    ceilings = measure()
    peers: list[Peer] = [Engine(loaded), Transformers(loaded)]
    try:
        peers.append(LlamaCpp(loaded, options.threads))
    except ImportError:
        print("llama_cpp is not installed: pip install llama-cpp-python prints llama.cpp's figures beside these")
    print(f"SmolLM2-135M-Instruct, {options.threads} threads, {options.rounds} rounds: median [quartiles]\n")
    missed = 0
    for scenario in scenarios(loaded.config.vocab):
        if options.only not in scenario.name:
            continue
        times = _rounds(scenario, peers, options.rounds)
        missed += _report(scenario, times)
        if scenario.name.startswith("decode"):
            batch = 1 if scenario.name.endswith("1") else 8
            _report_limits(loaded, ceilings, batch, statistics.median(times["aie-engine"]))
    return 1 if missed else 0


def _rounds(scenario: Scenario, peers: Sequence[Peer], rounds: int) -> dict[str, list[float]]:
    for peer in peers:  # what is built on first use is nobody's speed
        scenario.run(peer)
    times: dict[str, list[float]] = {}
    for index in range(rounds):
        for peer in peers if index % 2 == 0 else peers[::-1]:
            seconds = scenario.run(peer)
            if seconds is not None and seconds == seconds:  # NaN where a peer cannot do it
                times.setdefault(peer.name, []).append(seconds)
    return times


def _report(scenario: Scenario, times: dict[str, list[float]]) -> bool:
    """Prints the scenario's table; True when the engine missed its target."""
    print(f"{scenario.name} ({scenario.unit})")
    for name, seconds in times.items():
        print(f"  {name:14} {_spread([value * 1e3 for value in seconds], '.1f')}")
    pairs = [theirs / ours for ours, theirs in zip(times["aie-engine"], times["transformers"], strict=True)]
    ratio = statistics.median(pairs)
    target = f", target {scenario.target}" if scenario.target else ""
    missed = scenario.target is not None and ratio < scenario.target
    print(f"  faster by      {_spread(pairs, '.2f')}{target}{'  MISSED' if missed else ''}")
    return missed


def _report_limits(loaded: LoadedModel, ceilings: Ceilings, batch: int, step_s: float) -> None:
    config, decoder = loaded.config, loaded.decoder
    context = PROMPT_TOKENS + DECODE_TOKENS // 2
    kv_bytes = batch * context * config.layers * 2 * config.kv_width * torch.float32.itemsize
    weights = decoder.head.n_bytes + sum(layer.n_bytes for layer in decoder.layers)
    gigabytes = (weights + kv_bytes) / step_s / 1e9
    # Two operations a weight and row; in attention, a product with each key and each value.
    widths = config.hidden * (2 * config.q_width + 2 * config.kv_width + 3 * config.ffn)
    multiplied = config.layers * widths + config.vocab * config.hidden
    gigaflops = 2 * batch * (multiplied + config.layers * 2 * config.q_width * context) / step_s / 1e9
    reads, computes = gigabytes / ceilings.gigabytes_per_s, gigaflops / ceilings.gigaflops_per_s
    print(
        f"  of the host    reads {gigabytes:.1f} of {ceilings.gigabytes_per_s:.1f} GB/s ({reads:.0%}), "
        f"computes {gigaflops:.1f} of {ceilings.gigaflops_per_s:.0f} GFLOP/s ({computes:.0%})"
    )


def _spread(values: Sequence[float], form: str) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return f"{middle:{form}} [{low:{form}} to {high:{form}}]"


if __name__ == "__main__":
    sys.exit(main())
