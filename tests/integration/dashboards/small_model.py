"""A model that answers a hundred times a second on any machine: random weights, and a reference of what it says undamaged."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any, Final

import torch

from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.reference import About
from aie_agent.analysis.drift.reference_file import save
from aie_engine.loading import load_model
from aie_hooks import token_stats
from tests.faultlab.clients import brief_chat, repeated_chat
from tests.unit.engine.tiny_models import tiny_llama, write_folder

NAME: Final = "small"
LAYERS: Final = 2
SPREAD: Final = 0.05
"""Of its weights: with so little, what one layer adds is seen in what comes out."""
_ANSWERS: Final = 600
_REPEATED: Final = 0.1


def small_chat(rng: random.Random) -> dict[str, Any]:
    """The lab's brief questions, for one token; one in ten is one of a dozen with only one answer, for the response cache."""
    body = repeated_chat(rng) if rng.random() < _REPEATED else brief_chat(rng)
    return body | {"model": NAME, "max_tokens": 1}


def write(directory: Path) -> tuple[Path, Path]:
    """The model's folder, and its reference."""
    model = tiny_llama(num_hidden_layers=LAYERS, max_position_embeddings=512, initializer_range=SPREAD)
    folder = write_folder(directory / NAME, model)
    loaded, rng = load_model(folder), random.Random(1)
    assert loaded.chat_template is not None
    texts = [loaded.chat_template.render(small_chat(rng)["messages"]) for _ in range(_ANSWERS)]
    prompts = [loaded.tokenizer.encode(text, allow_special=True) for text in texts]
    rows = [(0.0, 0.0)] * _ANSWERS  # in the order of the questions: a reference is of answers that do not depend on each other
    for _, numbers in itertools.groupby(sorted(range(_ANSWERS), key=lambda at: len(prompts[at])), key=lambda at: len(prompts[at])):
        alike = list(numbers)
        with torch.inference_mode():
            logits = model(torch.tensor([prompts[at] for at in alike])).logits[:, -1]
            for at, (_, entropy, logsumexp) in zip(alike, token_stats(logits, logits.argmax(-1)).tolist(), strict=True):
                rows[at] = entropy, logsumexp
    columns = {"entropy": [row[0] for row in rows], "first_token_logsumexp": [row[1] for row in rows]}
    reference = directory / f"{NAME}.aieref"
    save(build(columns, About(model=NAME)), reference)
    return folder, reference
