"""A mixed chat workload: 85 % short prompts, 12 % middle ones, 3 % long ones, arriving at random at a chosen rate."""

from __future__ import annotations

import random
from dataclasses import dataclass

QUESTIONS = (
    "What is the capital of France?",
    "Explain in one sentence why the sky is blue.",
    "Give me three uses for a paper clip.",
    "How do I reverse a list in Python?",
    "Write a short greeting for a birthday card.",
    "What is the difference between a process and a thread?",
    "Name two rivers in Germany.",
    "Is 97 a prime number?",
    "Suggest a name for a grey cat.",
    "What does HTTP status 429 mean?",
    "Translate 'good morning' into Spanish.",
    "How many minutes are there in a day?",
    "Who wrote Hamlet?",
    "What should I check when a server is slow?",
    "Give me a synonym for 'quick'.",
    "What is a histogram good for?",
)

NOTES = (
    "The service was restarted at nine in the morning after the memory of the host had grown for three days without a pause.",
    "Latency stayed flat during the first hour, then rose in steps whenever the nightly batch of long documents was sent.",
    "The team on call looked at the dashboards and found the queue empty while the processors were busy with something else.",
    "A second look showed that another tenant had started a large job on the same machine and took most of the processor time.",
    "After the job was moved to another host, the time to the first token fell back to what it had been the week before.",
    "Nobody had changed the configuration, but the driver had been upgraded together with the kernel in the maintenance window.",
    "Users reported shorter answers than usual, and the share of answers that ended early had doubled since the upgrade.",
    "It was agreed to keep the old version on two machines and to compare both with the same set of questions every hour.",
    "The comparison showed no difference in speed, and a small difference in the length of answers to questions about code.",
    "Finally the cause was found in the template that is put around every question, which had lost a line break.",
)


@dataclass(frozen=True, slots=True)
class Class:
    """A class of requests: its share of all, how many notes its prompt holds, and how many tokens it asks for at most."""

    name: str
    share: float
    notes: tuple[int, int]
    max_tokens: tuple[int, int]


CLASSES = (
    Class("short", 0.85, (0, 0), (16, 48)),
    Class("middle", 0.12, (8, 14), (24, 64)),
    Class("long", 0.03, (30, 40), (32, 64)),
)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What one client asks."""

    kind: str
    prompt: str
    max_tokens: int
    seed: int


def make_request(kind: Class, rng: random.Random) -> ChatRequest:
    """A request of a class; equal seeds give equal requests."""
    notes = " ".join(rng.choice(NOTES) for _ in range(rng.randint(*kind.notes)))
    question = rng.choice(QUESTIONS)
    prompt = f"Read these notes and answer the question at their end.\n\n{notes}\n\n{question}" if notes else question
    return ChatRequest(kind.name, prompt, rng.randint(*kind.max_tokens), rng.randrange(2**31))


def random_request(rng: random.Random) -> ChatRequest:
    """A request of a class drawn by the shares."""
    return make_request(rng.choices(CLASSES, [kind.share for kind in CLASSES])[0], rng)


def representative_set(rng: random.Random) -> list[ChatRequest]:
    """33 requests with the shares of the mix, to measure what an engine can take: 28 short, 4 middle, 1 long."""
    counts = {"short": 28, "middle": 4, "long": 1}
    requests = [make_request(kind, rng) for kind in CLASSES for _ in range(counts[kind.name])]
    rng.shuffle(requests)
    return requests
