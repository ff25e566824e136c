"""Command lines of engines, as their documents and containers start them, and of everything else that mentions them."""

from __future__ import annotations

import pytest

from aie_agent.sources.known_engines import KNOWN, engine_of, port_of

ENGINES = [
    ("vllm", 8000, "/usr/bin/python3 /usr/local/bin/vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2"),
    ("vllm", 8001, "/opt/venv/bin/vllm serve model --port=8001"),
    ("vllm", 9000, "python3 -m vllm.entrypoints.openai.api_server --model m --port 9000"),
    ("vllm", 9000, "python3.12 -u -X dev -m vllm.entrypoints.openai.api_server --port 1 --port 9000"),
    ("vllm", 8000, "VLLM::EngineCore"),
    ("vllm", 8000, "VLLM::Worker_TP1"),
    ("sglang", 30000, "python3 -m sglang.launch_server --model-path m --tp 2"),
    ("sglang", 31000, "python -m sglang.launch_server --port 31000"),
    ("sglang", 30000, "sglang::scheduler_TP0"),
    ("sglang", 30000, "sglang::detokenizer"),
    ("tgi", 3000, "text-generation-launcher --model-id m"),
    ("tgi", 80, "text-generation-router --max-batch-size 4 --port 80"),
    ("tgi", 8081, "text-generation-launcher -p 8081"),
    ("tgi", 3000, "/opt/conda/bin/python3.11 /opt/conda/bin/text-generation-server serve m --uds-path /tmp/x"),
    ("triton", 8002, "/opt/tritonserver/bin/tritonserver --model-repository=/models --http-port 9000"),
    ("triton", 8102, "tritonserver --metrics-port=8102"),
    ("tensorrt-llm", 8000, "/usr/bin/python3 /usr/local/bin/trtllm-serve /engines/llama --host 0.0.0.0"),
    ("llama.cpp", 8080, "./build/bin/llama-server -m model.gguf"),
    ("llama.cpp", 8090, "/app/llama-server --port 8090 --metrics"),
    ("llama.cpp", 8080, "./server -m /models/x.gguf -c 2048"),
    ("aie-engine", 8000, "/x/.venv/bin/python /x/.venv/bin/aie-engine serve --model smollm2"),
]
OTHERS = [
    "",
    "vllm bench serve --port 8000",
    "vllm --version",
    "bash -c vllm serve m",
    "docker run --gpus all vllm/vllm-openai vllm serve m",
    "grep -r tritonserver .",
    "vim text-generation-launcher",
    "python3 -c import vllm",
    "python3 -m vllm.benchmarks serve",
    "python3",
    "python3 -m",
    "python3 train.py -m vllm.entrypoints.openai.api_server",
    "./server -m index.html",
    "./server",
    "aie-agent run --engine vllm=http://127.0.0.1:8000/metrics",
    "my-vllm serve",
]


@pytest.mark.parametrize(("kind", "port", "line"), ENGINES, ids=[line for _, _, line in ENGINES])
def test_engines(kind: str, port: int, line: str) -> None:
    argv = line.split(" ")
    known = engine_of(argv)
    assert known is not None
    assert (known.kind, port_of(argv, known)) == (kind, port)


@pytest.mark.parametrize("line", OTHERS)
def test_what_only_mentions_an_engine(line: str) -> None:
    assert engine_of(line.split(" ")) is None
    assert engine_of([]) is None


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "8000x", "٣", "9" * 400, ""])
def test_a_port_that_is_none(port: str) -> None:
    argv = ["vllm", "serve", "m", "--port", port]
    known = engine_of(argv)
    assert known is not None
    assert port_of(argv, known) == known.port


def test_kinds_are_told_apart() -> None:
    assert len({known.kind for known in KNOWN}) == len(KNOWN)
