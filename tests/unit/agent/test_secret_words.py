"""Command lines of engines are shown without what may be a secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.secret_words import masked
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.procfs_text import command_line

LINES = {
    "vllm serve m --api-key sk-abc --port 8000": "vllm serve m --api-key *** --port 8000",
    "vllm serve m --api-key one two --port 8000": "vllm serve m --api-key *** *** --port 8000",
    "vllm serve m --api-key=sk-abc --max-num-batched-tokens 8192": "vllm serve m --api-key=*** --max-num-batched-tokens 8192",
    "vllm serve m --hf-token hf_x --tokenizer t": "vllm serve m --hf-token *** --tokenizer t",
    "python3 -m sglang.launch_server --model-path m --api-key k --admin-api-key=l --tokenizer-worker-num 2": (
        "python3 -m sglang.launch_server --model-path m --api-key *** --admin-api-key=*** --tokenizer-worker-num 2"
    ),
    "text-generation-launcher --model-id m --api-key k -p 8080 --otlp-endpoint http://u:p@h:4317": (
        "text-generation-launcher --model-id m --api-key *** -p 8080 --otlp-endpoint http://***@h:4317"
    ),
    "llama-server -m m.gguf --api-key k -ngl 99": "llama-server -m m.gguf --api-key *** -ngl 99",
    "env HF_TOKEN=hf_x AWS_SECRET_ACCESS_KEY=zz OMP_NUM_THREADS=4 vllm serve m": (
        "env HF_TOKEN=*** AWS_SECRET_ACCESS_KEY=*** OMP_NUM_THREADS=4 vllm serve m"
    ),
    "serve --passwd x --password=y --credentials z --auth-user w --client-secret v": (
        "serve --passwd *** --password=*** --credentials *** --auth-user *** --client-secret ***"
    ),
    "serve --from https://bucket/x?api_key=zz&n=3 --redis redis://:pa/ss@h:6379/0": (
        "serve --from https://bucket/x?api_key=***&n=3 --redis redis://***@h:6379/0"
    ),
    "serve sk-abcdefghijklmnop ghp_abcdefghijklmnopqrst": "serve *** ***",
    "python -m vllm.entrypoints.openai.api_server --model meta/Llama-3 --kv-cache-dtype fp8 --trust-remote-code": (
        "python -m vllm.entrypoints.openai.api_server --model meta/Llama-3 --kv-cache-dtype fp8 --trust-remote-code"
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_values_of_what_smells_of_a_secret_are_hidden(line: str) -> None:
    assert " ".join(masked(line.split(" "))) == LINES[line]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["bash", "-c", "HF_TOKEN='a b' vllm --api-key k --port 1"], "bash -c HF_TOKEN='***' vllm --api-key *** --port 1"),
        (["vllm serve m --api-key k --port 1"], "vllm serve m --api-key *** --port 1"),
        (["serve", "--api-key", "two words", "--port", "1"], "serve --api-key *** --port 1"),
        (["serve", '{"api_key": "a b", "n": 3, "o": {"token": "x"}}'], 'serve {"api_key": "***", "n": 3, "o": {"token": "***"}}'),
        (["curl", "-H", "Authorization: Bearer a b"], "curl -H Authorization: ***"),
        (["curl", "-H", "X-Trace: Bearer abc"], "curl -H X-Trace: Bearer ***"),
        (["serve", "--api-key", "-sk-x"], "serve --api-key ***"),
    ],
)  # fmt: skip
def test_commands_within_an_argument(arguments: list[str], shown: str) -> None:
    assert " ".join(masked(arguments)) == shown
    assert command_line("\0".join([*arguments, ""]).encode()) == " ".join(shown.split())


@given(
    st.lists(st.sampled_from(["--port", "8000", "serve", "-p", "x=1", "--model", "a b"])),
    st.sampled_from(["--api-key", "--auth_token"]),
)
def test_wherever_it_stands_it_is_hidden(others: list[str], name: str) -> None:
    for at in range(len(others) + 1):
        for given_as in ([name, "hunter2"], [f"{name}=hunter2"]):
            assert "hunter2" not in " ".join(masked([*others[:at], *given_as, *others[at:]]))


@given(st.lists(st.text(max_size=40), max_size=6))
def test_any_text_is_taken_and_arguments_stay_as_many(arguments: list[str]) -> None:
    assert len(masked(arguments)) == len(arguments)


def test_a_real_process() -> None:
    program = "import sys; print(flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", program, "--api-key", "hunter2", "--token=hunter2", "HF_TOKEN=hunter2"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        procfs = Procfs(Path("/proc"))
        command = procfs.command(process.pid)
        whole = procfs.arguments(process.pid)
        process.communicate()
    assert "hunter2" not in command
    assert command.startswith(Path(sys.executable).as_posix()[:20])
    assert "hunter2" in whole, "the analysis compares them, and shows none"
