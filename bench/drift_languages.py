"""A real model asked in other languages, for programs, and with emoji, beside what its reference was recorded of: which statistic
finds it, after how many requests. And other prompts of the same kind, which must not be found.

    python bench/drift_languages.py [--fortunes DIRECTORY]

English and programs come with Python; with Debian's packages fortunes-min, fortunes, fortunes-de, -es, -it, -ru (optional) fortunes
take the place of the manual's sentences, and other languages are asked in.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import torch

from aie_agent.analysis.drift.offline import Verdict, judge
from aie_agent.analysis.drift.reference import About, build
from aie_engine.loading import default_threads, load_model
from drift_prompts import FORTUNES, code, english, fortunes, statistics, with_faces

LANGUAGES = {"de": "German", "es": "Spanish", "it": "Italian", "ru": "Russian"}


def main(arguments: argparse.Namespace) -> None:
    """Prints a table."""
    torch.set_num_threads(default_threads())
    loaded = load_model("smollm2")
    rng = random.Random(1)
    own = fortunes("", arguments.fortunes) or english()
    rng.shuffle(own)
    needed = arguments.reference + arguments.requests
    if len(own) < needed:
        raise SystemExit(f"{len(own)} English texts, {needed} are needed: choose a smaller --reference")

    def ask(texts: Sequence[str]) -> dict[str, list[float]]:
        return statistics(loaded, texts, prompt_tokens=arguments.prompt_tokens, answer_tokens=arguments.answer_tokens)

    reference = build(ask(own[: arguments.reference]), About(model="smollm2", traffic_class="English"))
    streams = {"other English prompts": own[arguments.reference : needed], "the same with emoji": with_faces(own[:needed], rng)}
    streams["programs"] = code()
    streams |= {name: fortunes(code_, arguments.fortunes) for code_, name in LANGUAGES.items()}
    lengths = f"{arguments.prompt_tokens} tokens, at most {arguments.answer_tokens} answered"
    print(f"reference: {reference.header.requests} English prompts of {lengths}")
    print("\n| asked | requests | found after | by | windows beyond: " + ", ".join(reference.values) + " |\n|---|---|---|---|---|")
    for name, texts in streams.items():
        if len(texts) >= arguments.requests:
            verdict = judge(reference, ask(rng.sample(texts, arguments.requests)))
            print(row(name, verdict), flush=True)


def row(name: str, verdict: Verdict) -> str:
    """Of the table."""
    beyond = ", ".join(f"{each.windows_beyond} of {each.windows}" for each in verdict.per_statistic.values())
    found = verdict.first_alarm_request or "not"
    return f"| {name} | {verdict.requests} | {found} | {verdict.statistic or ''} | {beyond} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fortunes", type=Path, default=FORTUNES, metavar="DIRECTORY")
    parser.add_argument("--reference", type=int, default=1000, metavar="N")
    parser.add_argument("--requests", type=int, default=600, metavar="N")
    parser.add_argument("--prompt-tokens", type=int, default=8, metavar="N")
    parser.add_argument("--answer-tokens", type=int, default=3, metavar="N")
    main(parser.parse_args())
