"""The script that is to be run where a GPU can be had, kept from rotting where there is none."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCH = Path(__file__).parents[3] / "bench"


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, BENCH / "gpu_check.py", *arguments], capture_output=True, text=True, timeout=240, check=False, env=hidden
    )


def test_all_of_it_on_a_tiny_model_on_the_cpu() -> None:
    done = gpu_check("--device", "cpu", "--small")
    assert done.returncode == 0, done.stdout + done.stderr
    checks = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "FAILED "))]
    assert len(checks) == 5
    assert all(line.startswith("ok ") for line in checks)
    for figure in ("this device", "decode, batch 1", "decode, batch 2", "prefill, 48 tokens"):
        assert f"\n{figure}" in done.stdout
    assert done.stdout.count("tokens/s, transformers ") == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "sees no CUDA device here"),
        (("--device", "cuda:1", "--small"), "sees no CUDA device here"),
        (("--device", "cpu", "--model", "/nonexistent"), "cannot be read"),
    ],
)
def test_where_it_cannot_run_it_says_so_in_one_line(arguments: tuple[str, ...], reason: str) -> None:
    done = gpu_check(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("gpu_measure")


def test_a_wrong_answer_is_not_taken_for_rounding(measure: ModuleType) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, 4.9], [0.0, 1.0, 2.0]])
    reference = logits.argmax(-1).tolist()
    assert measure.divergence(reference, reference, logits) == (3, 0.0)
    assert measure.divergence([1, 2, 0], reference, logits) == (1, pytest.approx(0.1))
    assert measure.divergence([0, 0, 2], reference, logits) == (0, 2.0)


def test_difference_is_in_the_spread_of_the_reference(measure: ModuleType) -> None:
    reference = torch.randn(100, 1_000, generator=torch.Generator().manual_seed(1)) * 4
    assert measure.difference(reference, reference) == (0.0, 0.0)
    off = measure.difference(reference.bfloat16() + 0.5, reference)
    assert off.relative == pytest.approx(0.5 / 4, rel=0.05)
    assert 0.5 < off.largest < 0.6
