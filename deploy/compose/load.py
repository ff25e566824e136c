"""Asks the engine of compose.yaml for short chats, at random moments, one about every two seconds: without work it shows little.

python load.py http://engine:8000 [SECONDS]
"""

import json
import random
import sys
import time
import urllib.error
import urllib.request

QUESTIONS = ("What is a queue?", "Name three rivers.", "Why is the sky blue?", "Write a line about rain.")


def ask(engine: str) -> None:
    """One request. Raises OSError."""
    chat = {"model": "smollm2", "max_tokens": 32, "messages": [{"role": "user", "content": random.choice(QUESTIONS)}]}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{engine}/v1/chat/completions", json.dumps(chat).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def main() -> None:
    """Until it is ended."""
    every_s = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    while True:
        time.sleep(random.expovariate(1 / every_s))
        try:
            ask(sys.argv[1])
        except OSError as error:  # the engine starts, or somebody broke it: it is asked again
            print(error, flush=True)


if __name__ == "__main__":
    main()
