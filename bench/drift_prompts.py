"""What a real model gives for prompts of different kinds: the four statistics of drift, one row a request.

English prose and program text come with Python; other languages from Debian's `fortunes-*` packages, where they are unpacked.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import torch

from aie_engine.loading import LoadedModel
from aie_engine.plan import Chunk, SamplingParams
from aie_engine.runner import Runner
from aie_hooks.logits import token_stats

FORTUNES: Final = Path("/usr/share/games/fortunes")
PROGRAMS: Final = (
    "argparse",
    "asyncio.base_events",
    "dataclasses",
    "decimal",
    "inspect",
    "logging",
    "pathlib",
    "tarfile",
    "typing",
)

HALF_A_CHARACTER: Final = "\ufffd"
"""What is decoded of a text that ends within a character's bytes."""

_FACES: Final = "😀😂🎉🔥🙏💯🚀✨👍🥳😭💔🌈🍕🐱👀"


def english() -> list[str]:
    """Sentences of Python's own manual."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    paragraphs = [re.sub(r"\s+", " ", each).strip() for each in re.split(r"\n\s*\n", text)]
    prose = [each for each in paragraphs if re.fullmatch(r"[A-Z][\w ,.;:'()\"-]{60,}", each)]
    return [sentence for each in prose for sentence in re.split(r"(?<=\.) ", each) if len(sentence) > 30]


def code() -> list[str]:
    """Pieces of Python's standard library, each from the beginning of a line."""
    sources = [Path(str(import_module(name).__file__)).read_text() for name in PROGRAMS]
    return [piece for source in sources for piece in re.split(r"\n(?= {4}def |def |class )", source) if len(piece) > 120]


def with_faces(texts: Sequence[str], rng: random.Random) -> list[str]:
    """The same texts as people write them who like emoji."""
    return [" ".join(word + rng.choice(_FACES) * rng.randint(1, 2) for word in text.split(" ")) for text in texts]


def fortunes(language: str = "", folder: Path = FORTUNES) -> list[str]:
    """Fortunes of a language ("de", "es", ...; empty for English); none where the package is not unpacked. Latin-1 where it is no
    UTF-8."""
    directory = folder / language
    if not directory.is_dir():
        return []
    texts = []
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.suffix not in (".dat", ".u8"):
            content = path.read_bytes()
            try:
                text = content.decode()
            except UnicodeDecodeError:
                text = content.decode("latin-1")
            texts += [re.sub(r"\s+", " ", each).strip() for each in re.split(r"\n%\n", text)]
    return [text for text in texts if len(text) > 60]


class Prompts(NamedTuple):
    """How texts become prompts: whole ones of `least` to `most` tokens, or where `cut` the first `most` of each that has as many;
    in the model's chat template where `chat`."""

    least: int
    most: int
    cut: bool = False
    chat: bool = False


def first_tokens(count: int) -> Prompts:
    """The beginnings of texts."""
    return Prompts(count, count, cut=True)


def encoded(loaded: LoadedModel, texts: Iterable[str], how: Prompts) -> list[list[int]]:
    """Token ids of the prompts, of texts in the order given; those that are too short or too long are passed over."""
    found = []
    for text in texts:
        ids = loaded.tokenizer.encode(text, allow_special=False)
        if len(ids) >= how.least and (how.cut or len(ids) <= how.most):
            cut = ids[: how.most]
            asked = loaded.tokenizer.decode(cut).rstrip(HALF_A_CHARACTER) if how.cut else text
            found.append(_in_template(loaded, asked) if how.chat else cut)
    return found


def _in_template(loaded: LoadedModel, text: str) -> list[int]:
    if loaded.chat_template is None:
        raise ValueError("this model has no chat template")
    return loaded.tokenizer.encode(loaded.chat_template.render([{"role": "user", "content": text}]), allow_special=True)


def statistics(
    loaded: LoadedModel,
    prompts: Sequence[list[int]],
    *,
    answer_tokens: int,
    batch: int = 16,
    seed: int = 0,
    asked: Callable[[int], None] = lambda count: None,
) -> dict[str, list[float]]:
    """Asks the model to answer each prompt, drawing every token from its distribution until it ends the answer. `asked` is told how
    many were, after each batch."""
    longest = max(map(len, prompts))
    extent = longest + answer_tokens
    runner = Runner(loaded, capacity_tokens=batch * extent, max_step_tokens=batch * longest)
    generator = torch.Generator().manual_seed(seed)
    columns: dict[str, list[float]] = {"entropy": [], "surprisal": [], "first_token_logsumexp": [], "log_length": []}
    for start in range(0, len(prompts), batch):
        _ask(runner, prompts[start : start + batch], extent, answer_tokens, loaded.tokenizer.eos_ids, generator, columns)
        asked(len(columns["entropy"]))
    return columns


def _ask(
    runner: Runner,
    prompts: Sequence[list[int]],
    extent: int,
    answer_tokens: int,
    eos: frozenset[int],
    generator: torch.Generator,
    columns: dict[str, list[float]],
) -> None:
    greedy = SamplingParams()
    told: list[list[list[float]]] = [[] for _ in prompts]
    going = {row: (0, list(ids)) for row, ids in enumerate(prompts)}  # how far each is, and what is to be computed next
    while going:
        chunks = [Chunk(row * extent, position, ids, True, greedy) for row, (position, ids) in going.items()]
        logits = runner.logits(chunks)
        chosen = torch.multinomial(torch.softmax(logits.float(), dim=-1), 1, generator=generator).squeeze(-1)
        numbers = token_stats(logits, chosen).tolist()
        after = {}
        came = zip(going.items(), chosen.tolist(), numbers, strict=True)
        for (row, (position, ids)), token, stats in came:
            told[row].append(stats)
            if token not in eos and len(told[row]) < answer_tokens:
                after[row] = (position + len(ids), [token])
        going = after
    for rows in told:
        columns["surprisal"].append(-math.fsum(row[0] for row in rows) / len(rows))
        columns["entropy"].append(math.fsum(row[1] for row in rows) / len(rows))
        columns["first_token_logsumexp"].append(rows[0][2])
        columns["log_length"].append(math.log(len(rows)))
