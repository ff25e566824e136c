"""A real model asked in other languages, for programs, and with emoji, beside what its reference was recorded of: which statistic
finds it, after how many requests, and after how many in the mean of many such streams. And other prompts of the same kind, which
must not be found.

    python bench/drift_languages.py [--fortunes DIRECTORY]            prompts are the first 8 tokens
    python bench/drift_languages.py --whole 40 100 [--chat]            prompts are whole texts of so many tokens

English and programs come with Python; with Debian's packages fortunes-min, fortunes, fortunes-de, -es, -it, -ru (optional) fortunes
take the place of the manual's sentences, and other languages are asked in.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch

from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.ks import distance, ks_integer, rank
from aie_agent.analysis.drift.offline import Verdict, judge
from aie_agent.analysis.drift.reference import About, Reference
from aie_agent.analysis.drift.rule import CONSECUTIVE, WINDOW
from aie_engine.loading import default_threads, load_model
from drift_prompts import FORTUNES, Prompts, code, encoded, english, first_tokens, fortunes, statistics, with_faces

RESAMPLED = 2000
"""Windows, of a stream's own values, that tell what share of windows is beyond."""

MOST_REQUESTS = 1_000_000
"""What takes longer is not found."""

LANGUAGES = {"de": "German", "es": "Spanish", "it": "Italian", "ru": "Russian"}


def main(arguments: argparse.Namespace) -> None:
    """Prints a table."""
    torch.set_num_threads(default_threads())
    loaded = load_model("smollm2")
    rng = random.Random(1)
    how = first_tokens(arguments.prompt_tokens) if arguments.whole is None else Prompts(*arguments.whole)
    how = how._replace(chat=arguments.chat)
    texts = fortunes("", arguments.fortunes) or english()
    rng.shuffle(texts)
    own = encoded(loaded, texts, how)
    needed = arguments.reference + arguments.requests
    if len(own) < needed:
        raise SystemExit(f"{len(own)} English texts, {needed} are needed: choose a smaller --reference")

    def ask(name: str, prompts: Sequence[list[int]]) -> dict[str, list[float]]:
        return statistics(
            loaded, prompts, answer_tokens=arguments.answer_tokens, asked=lambda count: _progress(name, count, len(prompts))
        )

    print(
        f"reference: {arguments.reference} English prompts of {_described(how)}, at most {arguments.answer_tokens} answered",
        flush=True,
    )
    reference = build(ask("reference", own[: arguments.reference]), About(model="smollm2", traffic_class="English"))
    tested = [column for column in reference.header.columns if not column.untested]
    print("a window is beyond from a distance of " + ", ".join(f"{each.threshold:.3f} ({each.name})" for each in tested))
    print(
        "\n| asked | requests | found after | in the mean | by | windows beyond: "
        + ", ".join(reference.values)
        + " | distance of all: "
        + ", ".join(each.name for each in tested)
        + " |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    others = {"the same with emoji": with_faces(texts, rng), "programs": code()}
    others |= {name: fortunes(code_, arguments.fortunes) for code_, name in LANGUAGES.items()}
    chosen = {name: some for name, some in others.items() if arguments.only is None or name in arguments.only}
    streams = chain(
        [("other English prompts", own[arguments.reference : needed])],
        ((name, encoded(loaded, some, how)) for name, some in chosen.items()),  # each when its turn comes: it takes a while
    )
    for name, prompts in streams:
        if len(prompts) < arguments.requests:
            print(f"{name}: {len(prompts)} texts of such a length, {arguments.requests} are needed", file=sys.stderr)
        else:
            values = ask(name, rng.sample(prompts, arguments.requests))
            apart = [distance(reference.values[each.name], values[each.name]) for each in tested]
            print(row(name, judge(reference, values), mean_delay(reference, values, rng), apart), flush=True)


def _progress(name: str, count: int, of: int) -> None:
    """A run takes many minutes, most of them before the first row."""
    print(f"\r{name}: {count} of {of} asked", end="" if count < of else "\n", file=sys.stderr, flush=True)


def _described(how: Prompts) -> str:
    length = f"{how.most} tokens" if how.cut else f"{how.least} to {how.most} tokens"
    return length + (", in the chat template" if how.chat else "")


def mean_delay(reference: Reference, values: dict[str, list[float]], rng: random.Random) -> float:
    """Requests until the rule finds such a stream, in the mean, by the statistic that finds it soonest: windows are drawn from its
    values, with replacement. `MOST_REQUESTS` and more is never."""
    return min(
        mean_requests(share_beyond(reference.values[column.name], column.critical, values[column.name], rng))
        for column in reference.header.columns
        if not column.untested
    )


def share_beyond(reference: Sequence[float], critical: int, values: Sequence[float], rng: random.Random) -> float:
    """Of windows drawn from `values`, the share that is beyond the threshold of an ascending reference."""
    ranks = [rank(reference, value) for value in values]
    drawn = (ks_integer(rng.choices(ranks, k=WINDOW), len(reference)) for _ in range(RESAMPLED))
    return sum(statistic >= critical for statistic in drawn) / RESAMPLED


def mean_requests(share: float) -> float:
    """Until so many windows in a row are beyond as are an alarm, where each is with probability `share`: the mean wait for a run of
    successes, (1 - p^k) / ((1 - p) p^k) (Feller, An Introduction to Probability Theory, XIII.7)."""
    return float(WINDOW) * (math.fsum(share**-each for each in range(1, CONSECUTIVE + 1)) if share else math.inf)


def row(name: str, verdict: Verdict, mean: float, apart: Sequence[float]) -> str:
    """Of the table; `apart` is how far all requests together are from the reference."""
    beyond = ", ".join(f"{each.windows_beyond} of {each.windows}" for each in verdict.per_statistic.values())
    found = verdict.first_alarm_request or "not"
    soon = f"{mean:,.0f}" if mean < MOST_REQUESTS else "-"
    far = ", ".join(f"{each:.3f}" for each in apart)
    return f"| {name} | {verdict.requests} | {found} | {soon} | {verdict.statistic or ''} | {beyond} | {far} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fortunes", type=Path, default=FORTUNES, metavar="DIRECTORY")
    parser.add_argument("--reference", type=int, default=1000, metavar="N")
    parser.add_argument("--requests", type=int, default=600, metavar="N")
    parser.add_argument("--prompt-tokens", type=int, default=8, metavar="N")
    parser.add_argument("--whole", type=int, nargs=2, metavar=("LEAST", "MOST"))
    parser.add_argument("--chat", action="store_true", help="prompts in the model's chat template")
    parser.add_argument("--only", nargs="+", metavar="ASKED", help='of the table: "German" "Spanish" ...')
    parser.add_argument("--answer-tokens", type=int, default=3, metavar="N")
    main(parser.parse_args())
