"""The script that is to be run where a GPU can be had, kept from rotting where there is none."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCH = Path(__file__).parents[3] / "bench"
NEED_CUDA = {"probes", "allocator"}
WITHOUT = ("msgspec", "gguf", "transformers", "tokenizers", "safetensors", "jinja2", "pynvml", "numpy")


def gpu_check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment
    return subprocess.run(
        [sys.executable, BENCH / "gpu_check.py", *arguments], capture_output=True, text=True, timeout=560, check=False, env=hidden
    )


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.fixture
def check(bench: None) -> ModuleType:
    return importlib.import_module("gpu_check")


@pytest.fixture
def measure(bench: None) -> ModuleType:
    return importlib.import_module("gpu_measure")


def test_all_of_it_on_the_cpu_and_a_simulated_gpu(check: ModuleType) -> None:
    done = gpu_check("--device", "cpu", "--small")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["verdict"], report["wrong"]) == ("right", [])
    assert list(report["sections"]) == [section.name for section in check.SECTIONS]
    assert set(report["not_run"]) == NEED_CUDA
    for name, section in report["sections"].items():
        assert section["state"] == ("not_run" if name in NEED_CUDA else "right"), name
        assert all(found["holds"] and found["text"] for found in section["checks"])
    facts = {name: section["facts"] for name, section in report["sections"].items()}
    assert facts["nvml_memory"]["v2_used_includes_reserved"] is False
    assert facts["nvml_memory"]["version_2_without_size"] == "argument_version_mismatch"
    assert facts["nvml_fields"]["pcie_bytes"]["rx"]["code"] == "success"
    assert "xid" in facts["nvml_events"]["supported"]
    assert facts["nvml_cycle"]["cost"]["points"] > 50
    # The simulated H100 rests at 70 W, whoever reads it.
    assert facts["nvml_idle"]["watts"] == pytest.approx(dict.fromkeys(facts["nvml_idle"]["watts"], 70.0), rel=0.1)
    assert facts["engine"]["beside_transformers"] is True
    assert facts["engine"]["decode_batch_2_context_24"]["over_transformers_ratio"] > 0


def test_with_no_package_but_torch_the_rest_says_what_it_needs(tmp_path: Path) -> None:
    for name in WITHOUT:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError({name!r}, name={name!r})")
    only = ("nvml_idle", "nvml_memory", "nvml_cycle", "hooks", "engine")
    done = gpu_check("--device", "cpu", "--small", "--only", *only, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    sections = json.loads(done.stdout)["sections"]
    assert {name: sections[name]["state"] for name in only} == {
        "nvml_idle": "not_run",
        "nvml_memory": "right",
        "nvml_cycle": "not_run",
        "hooks": "right",
        "engine": "right",
    }
    assert sections["nvml_cycle"]["reason"] == "needs the Python package of pynvml: pip install nvidia-ml-py msgspec"
    assert sections["nvml_idle"]["reason"] == "needs the Python package of msgspec: pip install nvidia-ml-py msgspec"
    assert sections["hooks"]["facts"]["left_out_for_want_of"] == ["layers: msgspec"]
    assert sections["engine"]["facts"]["beside_transformers"] is False
    assert len(sections["engine"]["checks"]) == 4


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "no CUDA device here"),
        (("--device", "cuda:1", "--small"), "no CUDA device here"),
        (("--device", "cpu", "--model", "/nonexistent"), "can be read"),
    ],
)
def test_where_it_cannot_run_it_says_so_in_one_line(arguments: tuple[str, ...], reason: str) -> None:
    done = gpu_check(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


SECTIONS_OF_A_TEST = """
import os, subprocess, time

def hang(context):
    context.report.fact("before_s", 1)
    context.report.check("that", True, "holds")
    context.report.fact("child", subprocess.Popen(["sleep", "600"]).pid)
    time.sleep(600)

def crash(context):
    context.report.fact("before_s", 1)
    os.abort()

def fail(context):
    raise RuntimeError("no such luck")

def lack(context):
    import a_package_that_nobody_has

def defect(context):
    import aie_no_such_module

def lost(context):
    from gpu_report import NoCudaError
    raise NoCudaError("cuInit gives CUDA_ERROR_UNKNOWN")

def wrong(context):
    context.report.fact("no_number", float("nan"))
    context.report.check("this", True, "holds")
    context.report.check("that", False, "1 is not 2")
    print("a library's own words")
"""


@pytest.fixture
def run(check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "sections_of_a_test.py").write_text(SECTIONS_OF_A_TEST)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(name: str, limit_s: float = 60.0) -> dict[str, Any]:
        section = check.Section(name, f"sections_of_a_test:{name}", limit_s)
        result: dict[str, Any] = check.run_section(section, time.monotonic() + limit_s, ["--device", "cpu"])
        return result

    return run


def test_one_that_hangs_ends_at_its_deadline_and_what_it_found_is_kept(run: Any) -> None:
    # Some hosts are slow to start a process.
    result = next(each for limit_s in (10.0, 60.0, 120.0) if "child" in (each := run("hang", limit_s))["facts"])
    assert result["state"] == "timed_out"
    assert result["took_s"] < 300
    assert result["facts"]["before_s"] == 1
    assert [found["check"] for found in result["checks"]] == ["that"]
    while not is_gone(result["facts"]["child"]):  # it was killed too; the test's own limit ends what would not end
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Killed: it may wait for whoever inherited it to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("crash", "failed", "its process ended with status -6 before the section did"),
        ("fail", "failed", "RuntimeError: no such luck (sections_of_a_test.py:"),
        ("lack", "not_run", "needs the Python package of a_package_that_nobody_has"),
        ("defect", "failed", "No module named 'aie_no_such_module'"),
    ],
)
def test_each_end_has_its_state_and_its_reason(run: Any, name: str, state: str, reason: str) -> None:
    result = run(name)
    assert result["state"] == state
    assert reason in result["reason"]


def test_a_check_that_does_not_hold_makes_the_section_wrong(run: Any) -> None:
    result = run("wrong")
    assert result["state"] == "wrong"
    assert [found["holds"] for found in result["checks"]] == [True, False]
    assert result["facts"] == {"no_number": "NaN"}


def test_a_wrong_section_is_exit_code_1_and_the_others_go_on(
    check: ModuleType, run: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("hang", "wrong", "lack", "lost")
    sections = [check.Section(name, f"sections_of_a_test:{name}", 3.0 if name == "hang" else 60.0) for name in names]
    monkeypatch.setattr(check, "SECTIONS", tuple(sections))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", "cpu"])
    assert check.main() == 1
    report = json.loads(capfd.readouterr().out)
    assert {name: report["sections"][name]["state"] for name in names} == {
        "hang": "timed_out",
        "wrong": "wrong",
        "lack": "not_run",
        "lost": "failed",
    }
    assert (report["verdict"], report["wrong"], report["not_run"]) == ("wrong", ["hang", "wrong", "lost"], ["lack"])


def test_all_deadlines_together_are_within_five_minutes(check: ModuleType) -> None:
    assert sum(section.limit_s for section in check.SECTIONS) <= 290


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
