"""SmolLM2 through the engine and through transformers: same ids, same logits, same answers, alone and in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from oracle import Oracle

from aie_engine.loading import LoadedModel
from aie_engine.plan import Chunk, SamplingParams
from aie_engine.runner import Runner

pytestmark = pytest.mark.model

TOLERANCE = 1e-3  # absolute, on fp32 logits of about 20
ANSWER_TOKENS = 12
EXTENT = 400
GREEDY = SamplingParams(temperature=0.0)


class RecordingRunner(Runner):
    """A runner that shows the logits its last step sampled from."""

    sampled_from: torch.Tensor

    def logits(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        self.sampled_from = super().logits(chunks)
        return self.sampled_from


class Answer(NamedTuple):
    """A greedy answer, and the engine's logits before each of its tokens, [tokens, vocab]."""

    ids: list[int]
    logits: torch.Tensor


#: An answer and transformers' logits before each of its tokens.
Judged = tuple[Answer, torch.Tensor]


LONG = "The river rose slowly in spring, and the people of the valley moved their animals to the hills. " * 10
CHATS = [
    "The capital of France is",
    "What is 17 + 25?",
    "Write a haiku about rain.",
    "Explain photosynthesis to a child.",
    "List three uses of a paperclip.",
    "Translate to German: Good morning, my friend.",
    "Who wrote Hamlet?",
    "Summarise in one sentence: " + LONG,
]
TEXTS = [
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "SELECT name, COUNT(*) FROM orders WHERE created_at > '2024-01-01' GROUP BY",
    "#include <stdio.h>\nint main(void) {\n\tprintf(",
    '{"name": "aie", "version": "0.1.0", "dependencies": {',
    "Le chat est assis sur",
    "日本の首都は",
    "Москва — столица",
    "¿Cuál es la capital de España?",
    "한국어로 인사하면",
    "🙂👍🏽 emoji say",
    "1 2 3 4 5 6 7 8",
    LONG,
]
ODD_TEXTS = ["", " ", "\n\n\t x", "a" * 300, "1234567890", "don't I'll we've", "\u200b\ufeff\u00a0", "e\u0301 é", "x\x00y"]


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[list[int]]:
    assert loaded.chat_template is not None
    rendered = [loaded.chat_template.render([{"role": "user", "content": text}]) for text in CHATS]
    chats = [loaded.tokenizer.encode(text, allow_special=True) for text in rendered]
    return chats + [loaded.tokenizer.encode(text, allow_special=False) for text in TEXTS]


@pytest.fixture(scope="module")
def runner(loaded: LoadedModel, prompts: list[list[int]]) -> RecordingRunner:
    return RecordingRunner(loaded, capacity_tokens=EXTENT * len(prompts), max_step_tokens=EXTENT)


@pytest.fixture(scope="module")
def judged(loaded: LoadedModel, runner: RecordingRunner, oracle: Oracle, prompts: list[list[int]]) -> list[Judged]:
    """Each prompt's answer, computed alone, and what transformers thinks of it."""
    alone = [answers(runner, loaded, [ids], chunk_tokens=EXTENT)[0] for ids in prompts]
    return [(answer, oracle.next_logits(ids, answer.ids)) for ids, answer in zip(prompts, alone, strict=True)]


def test_token_ids(loaded: LoadedModel, oracle: Oracle) -> None:
    for text in CHATS + TEXTS + ODD_TEXTS:
        expected = oracle.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert loaded.tokenizer.encode(text, allow_special=False) == expected
        assert loaded.tokenizer.decode(expected) == text
    conversation = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "1 <|im_start|>"},
    ]
    assert loaded.chat_template is not None
    rendered = loaded.chat_template.render(conversation)
    assert rendered == oracle.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    expected = oracle.tokenizer(rendered, add_special_tokens=False)["input_ids"]
    assert loaded.tokenizer.encode(rendered, allow_special=True) == expected
    assert not loaded.tokenizer.eos_ids & set(loaded.tokenizer.encode("<|im_end|>", allow_special=False))


def test_greedy_answers_alone(loaded: LoadedModel, runner: RecordingRunner, judged: list[Judged]) -> None:
    for answer, expected in judged:
        assert_agrees(answer, expected)
    assert sum(len(answer.ids) for answer, _ in judged) > 10 * len(judged)  # nearly all of it decode steps
    (answer,) = answers(runner, loaded, [capital(loaded)], chunk_tokens=EXTENT)
    assert "Paris" in loaded.tokenizer.decode(answer.ids)


def test_greedy_answers_in_a_batch(
    loaded: LoadedModel, runner: RecordingRunner, oracle: Oracle, prompts: list[list[int]], judged: list[Judged]
) -> None:
    batched = answers(runner, loaded, prompts, chunk_tokens=37)
    for ids, answer, (alone, expected) in zip(prompts, batched, judged, strict=True):
        assert_agrees(answer, expected if answer.ids == alone.ids else oracle.next_logits(ids, answer.ids))


def test_sixteen_bits_a_weight_change_nothing_that_matters(
    loaded: LoadedModel, oracle_of_the_file: Oracle, prompts: list[list[int]], judged: list[Judged]
) -> None:
    """The file holds a 16-bit scale and four bits a weight; in fp16 each product of the two loses its last bits."""
    divergences, agreed = [], []
    for ids, (answer, _) in zip(prompts, judged, strict=True):
        exact = oracle_of_the_file.next_logits(ids, answer.ids).log_softmax(-1)
        ours = answer.logits.log_softmax(-1)
        divergences.append((exact.exp() * (exact - ours)).sum(-1))
        agreed.append(exact.argmax(-1) == ours.argmax(-1))
    assert torch.cat(divergences).max() < 1e-4  # nats
    assert torch.cat(agreed).float().mean() > 0.99


def capital(loaded: LoadedModel) -> list[int]:
    assert loaded.chat_template is not None
    question = [{"role": "user", "content": "What is the capital of France?"}]
    return loaded.tokenizer.encode(loaded.chat_template.render(question), allow_special=True)


def answers(runner: RecordingRunner, loaded: LoadedModel, prompts: list[list[int]], chunk_tokens: int) -> list[Answer]:
    """Greedy answers of all prompts in common steps: one prompt chunk a step, in turn, beside the decodes of the others."""
    done = [0] * len(prompts)
    outputs: list[list[int]] = [[] for _ in prompts]
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    running = set(range(len(prompts)))
    while running:
        step = [row for row in sorted(running) if done[row] >= len(prompts[row])]
        step += [row for row in sorted(running) if done[row] < len(prompts[row])][:1]
        chunks = []
        for row in step:
            sequence = prompts[row] + outputs[row]
            ids = sequence[done[row] : done[row] + chunk_tokens]
            last = done[row] + len(ids) == len(sequence)
            chunks.append(Chunk(row * EXTENT, done[row], ids, last, GREEDY))
            done[row] += len(ids)
        tokens = runner.execute(chunks)
        sampled = [(row, token.id) for row, token in zip(step, tokens, strict=True) if token is not None]
        for (row, token), row_logits in zip(sampled, runner.sampled_from, strict=True):
            outputs[row].append(token)
            logits[row].append(row_logits)
            if token in loaded.tokenizer.eos_ids or len(outputs[row]) == ANSWER_TOKENS:
                running.remove(row)
    return [Answer(ids, torch.stack(rows)) for ids, rows in zip(outputs, logits, strict=True)]


def assert_agrees(answer: Answer, expected: torch.Tensor) -> None:
    """The logits before each token of `answer` are transformers', and the token is its most likely one or ties with it.

    Where it prefers another token, the two logits must lie within the tolerance: then the order of additions decides.
    """
    torch.testing.assert_close(answer.logits, expected, atol=TOLERANCE, rtol=0)
    for step, token in enumerate(answer.ids):
        gap = float(expected[step].max() - expected[step, token])
        assert gap <= TOLERANCE, f"token {step}: {token}, transformers prefers {int(expected[step].argmax())} by {gap}"
