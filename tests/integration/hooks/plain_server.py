"""A server as people write them: threads, a lock, a transformers model. Serves by the code block of the document, which it knows
nothing of, and writes down by itself what it did.

    python plain_server.py BLOCK_FILE LOG_FILE
"""

from __future__ import annotations

import contextlib
import http.server
import json
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 500


def tiny_model() -> LlamaForCausalLM:
    """Random weights, the same in every process, and large enough for its answers to differ."""
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def serve(block: str, log_path: Path) -> None:
    """Announces its URL, and serves until it is killed."""
    names: dict[str, Any] = {"model": tiny_model(), "model_lock": threading.Lock()}
    exec(compile(block, "instrument-your-engine.md", "exec"), names)
    log_lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Streams token ids, one a line."""
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told, outcome = 0, "error"
            try:
                with contextlib.closing(names["generate"](asked["prompt_ids"], asked["max_tokens"], self.headers)) as tokens:
                    for token in tokens:
                        if not told:
                            self.send_response(200)
                            self.end_headers()
                        told += 1
                        self.wfile.write(b"%d\n" % token)
                outcome = "ok"
            except ConnectionError:
                outcome = "cancelled"
            except Exception as error:  # noqa: BLE001 - as servers do
                self.send_error(500, str(error)[:100])
            with log_lock, log_path.open("a") as log:
                log.write(json.dumps({"prompt": len(asked["prompt_ids"]), "tokens": told, "outcome": outcome}) + "\n")

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"listening on http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(Path(sys.argv[1]).read_text(), Path(sys.argv[2]))
