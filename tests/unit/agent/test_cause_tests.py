"""Every cause has a test that finds it, and one of the nearest normal case, in which it is silent. The tests are read, not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from aie_agent.analysis.causes import ENGINE_CAUSES, OF_SUBJECTS
from aie_agent.analysis.gpu_causes.lost import XID_FAMILIES

FOLDER = Path(__file__).parent
CAUSES = {cause.__name__ for cause in ENGINE_CAUSES} | OF_SUBJECTS

Where = tuple[str, str]
"""A file beside this one, and a test of it; of a class as `Class.test`."""
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class Pair(NamedTuple):
    """The test that finds a cause, that of the nearest normal case, and what finds it, where that has another name."""

    found: Where
    silent: Where
    finder: str = ""


ARRIVALS, CACHE = "test_engine_arrivals.py", "test_engine_cache_cause.py"
DRIFT, DRIFT_COLLAPSE, DRIFT_NAN = "test_drift_analyser.py", "test_drift_collapse.py", "test_drift_nan.py"
GPU, LINKS, NVLINKS, GPU_PROCESSES = "test_gpu_causes.py", "test_gpu_links.py", "test_gpu_nvlinks.py", "test_nvml_process_join.py"
LEAK, LEAK_NULLS, LEAK_PROBES = "test_leak_analyser.py", "test_leak_nulls.py", "test_leak_probes.py"
MEMORY, OUTCOMES, QUEUES = "test_engine_memory_causes.py", "test_engine_outcomes.py", "test_engine_queue_causes.py"
HOST, HUNG, LOCKS, PYTHON = "test_host_causes.py", "test_hung.py", "test_lock_contention.py", "test_engine_python_causes.py"

_ENGINE = {
    "engine_down": Pair(
        (MEMORY, "test_an_engine_that_goes_with_requests_in_it"),
        (MEMORY, "test_an_engine_that_is_back_within_two_seconds_was_not_down"),
    ),
    "oom_killed": Pair((MEMORY, "test_a_kill_that_a_probe_saw"), (MEMORY, "test_kills_that_are_another_ones")),
    "cuda_oom": Pair((MEMORY, "test_why_memory_ran_out"), (MEMORY, "test_what_was_long_ago_or_another_engines_is_not_told")),
    "out_of_memory": Pair(
        (MEMORY, "test_a_pool_on_a_cpu_has_a_name_of_its_own"), (MEMORY, "test_what_was_long_ago_or_another_engines_is_not_told")
    ),
    "engine_hung": Pair((HUNG, "test_requests_run_and_nothing_moves"), (HUNG, "test_any_sign_of_life_will_do")),
    "engine_stopped": Pair(("test_stopped.py", "test_after_three_seconds"), ("test_stopped.py", "test_silent_on_what_is_normal")),
    "error_rate": Pair((OUTCOMES, "test_all_requests_fail"), (OUTCOMES, "test_errors_that_are_normal")),
    "client_flood": Pair(
        (OUTCOMES, "test_a_flood_is_found_within_ten_seconds"), (ARRIVALS, "test_requests_that_come_by_chance_are_no_flood")
    ),
    "requests_rejected": Pair(
        (OUTCOMES, "test_requests_that_are_refused_without_a_queue"), (OUTCOMES, "test_refusals_that_are_normal")
    ),
    "cpu_fallback": Pair(
        ("test_cpu_fallback.py", "test_vllm_on_the_cpu_beside_an_idle_gpu"), ("test_cpu_fallback.py", "test_what_is_normal")
    ),
    "kv_preemption": Pair((QUEUES, "test_preemptions_are_found_as_they_come"), (QUEUES, "test_preemptions_that_are_normal")),
    "kv_full": Pair(
        (QUEUES, "test_a_queue_before_a_cache_without_room_asks_for_memory"),
        (QUEUES, "test_a_full_cache_in_front_of_which_nobody_waits_is_none"),
    ),
    "queue_saturation": Pair(
        (QUEUES, "test_requests_that_wait_are_found_within_ten_seconds"), (QUEUES, "test_queues_that_are_normal")
    ),
    "prefill_interference": Pair(
        (QUEUES, "test_tokens_that_stutter_while_prompts_are_computed"), (QUEUES, "test_gaps_that_are_normal")
    ),
    "tokenizer_bound": Pair(
        (PYTHON, "test_a_tokenizer_that_backtracks_is_found_within_ten_seconds"), (PYTHON, "test_tokenising_that_is_normal")
    ),
    "python_gc": Pair(
        (PYTHON, "test_storms_of_collections_are_found_within_ten_seconds"), (PYTHON, "test_collections_that_are_normal")
    ),
    "lock_contention": Pair(
        (LOCKS, "test_threads_that_wait_for_a_lock_are_found_within_the_window"), (LOCKS, "test_what_is_normal_is_no_finding")
    ),
    "gil_contention": Pair(
        (LOCKS, "test_threads_that_just_reach_the_threshold_of_the_gil_are_found_without_waiting_for_the_window"),
        (LOCKS, "test_bursts_of_five_seconds_at_the_gil_are_none"),
    ),
    "series_refused": Pair(
        ("test_series_refused.py", "test_a_page_with_more_than_its_share"),
        ("test_series_refused.py", "test_nothing_is_found_where_nothing_was_refused"),
    ),
    "numa_misplaced": Pair((GPU, "TestNuma.test_cpus_of_another_node"), (GPU, "TestNuma.test_silent_else")),
    "cache_hit_collapse": Pair(
        (CACHE, "test_a_cache_that_stops_hitting"), (CACHE, "test_hit_rates_that_are_normal"), finder="CacheAnalyser"
    ),
    "agent_blind": Pair(
        ("test_agent_causes.py", "test_a_source_that_is_down"), ("test_agent_causes.py", "test_silent_on_what_is_normal")
    ),
}

_HOST = {
    cause: Pair((HOST, "test_found_within_ten_seconds_of_what_is_healthy"), (HOST, "test_silent_on_what_is_healthy"))
    for cause in ("cpu_starved", "cpu_steal", "disk_stall", "host_memory_low", "page_faults", "swapping")
} | {
    "cpu_throttled": Pair(
        (HOST, "test_found_within_ten_seconds_of_what_is_healthy"),
        (HOST, "test_bursts_of_six_seconds_just_above_the_share_of_periods_are_none"),
    )
}

_FAULT: Where = (LINKS, "test_each_fault_alone_and_by_its_cause")
_NO_FAULT: Where = (LINKS, "test_what_is_nearest_to_a_fault_is_not_called_one")
_GPU = {
    "gpu_lost": Pair((GPU, "TestLost.test_one_that_does_not_answer"), (GPU, "TestLost.test_one_that_was_given_back_is_not_lost")),
    **dict.fromkeys(
        ("gpu_thermal", "gpu_power_brake", "gpu_slowed"),
        Pair(
            (GPU, "TestClocks.test_a_reason_that_holds"),
            (GPU, "TestClocks.test_a_reason_that_does_not_hold_for_long_is_silent"),
            finder="gpu_clocks",
        ),
    ),
    "gpu_power_cap": Pair(
        (GPU, "TestClocks.test_the_power_cap_counts_where_it_costs"),
        (GPU, "TestClocks.test_a_power_cap_that_costs_little_is_silent"),
    ),
    "pcie_bound": Pair((GPU, "TestPcie.test_a_full_link_while_requests_run"), (GPU, "TestPcie.test_silent_else")),
    "gpu_neighbour": Pair(
        (GPU, "TestNeighbour.test_one_that_uses_the_gpu"), (GPU, "TestNeighbour.test_silent_on_who_belongs_there")
    ),
    **{
        f"gpu_xid_{family}": Pair(
            (GPU, "TestXids.test_each_family_is_told_of_the_gpu_that_has_it_and_of_no_other"),
            (GPU, "TestXids.test_no_family_is_told_of_what_is_another_ones_or_is_old"),
            finder="gpu_xids",
        )
        for family in XID_FAMILIES
    },
    "gpu_xid_unknown": Pair(
        (GPU, "TestXids.test_by_family_the_worst_first"),
        (GPU, "TestXids.test_no_family_is_told_of_what_is_another_ones_or_is_old"),
        finder="gpu_xids",
    ),
    **dict.fromkeys(("gpu_ecc", "gpu_row_remap", "gpu_row_remap_failed", "gpu_power_limit"), Pair(_FAULT, _NO_FAULT)),
    "gpu_orphan": Pair(_FAULT, (GPU_PROCESSES, "test_what_is_normal_is_no_orphan"), finder="aie_gpu_orphan_processes"),
    "gpu_link_width": Pair(_FAULT, (LINKS, "test_lanes_that_are_as_they_were_built"), finder="width_problem"),
    "gpu_slot_width": Pair(_FAULT, (LINKS, "test_lanes_that_are_as_they_were_built"), finder="slot_problem"),
    "gpu_link_generation": Pair(_FAULT, (LINKS, "test_a_day_of_idle_and_busy_times_brings_no_alarm"), finder="generation_problem"),
    "gpu_nvlink_inactive": Pair(_FAULT, (NVLINKS, "test_nvlinks_that_are_as_they_should_be"), finder="inactive_problem"),
    "gpu_nvlink_errors": Pair(
        (LINKS, "test_nvlink_replays_that_rise_are_a_fault_as_long_as_they_do"),
        (NVLINKS, "test_nvlink_errors_of_a_link_that_is_well"),
        finder="error_problem",
    ),
    "gpu_pid_namespace": Pair(
        (GPU_PROCESSES, "test_a_pid_namespace_of_its_own_is_a_finding"),
        (GPU_PROCESSES, "test_processes_that_cannot_be_seen_for_another_reason_are_no_pid_namespace"),
        finder="gpu_faults",
    ),
}

_MODELS = {
    "memory_leak": Pair((LEAK, "test_a_leak_of_tensors"), (LEAK_NULLS, "test_what_is_normal_is_no_leak"), finder="World"),
    "memory_fragmentation": Pair((LEAK, "test_fragmentation"), (LEAK_NULLS, "test_what_is_normal_is_no_leak"), finder="World"),
    "memory_retention": Pair(
        (LEAK_PROBES, "test_what_malloc_trim_gives_back_was_retained"),
        (LEAK_PROBES, "test_a_true_leak_of_a_busy_engine_is_no_retention"),
        finder="World",
    ),
    "kv_accounting": Pair(
        (LEAK, "TestKvAccounting.test_free_and_used_do_not_add_up"),
        (LEAK, "TestKvAccounting.test_normal_use_is_none"),
        finder="World",
    ),
    **dict.fromkeys(
        ("input_drift", "output_drift"),
        Pair(
            (DRIFT, "test_a_shift_is_named_by_what_shifted"),
            (DRIFT, "test_what_shifts_for_four_windows_or_by_little_is_no_drift"),
        ),
    ),
    "output_collapse": Pair(
        (DRIFT_COLLAPSE, "test_equal_answers_are_a_collapse"),
        (DRIFT_COLLAPSE, "test_a_statistic_that_is_equal_alone_is_no_collapse"),
        finder="DriftWorld",
    ),
    "nan_logits": Pair(
        (DRIFT_NAN, "test_nan_is_found_within_ten_answers_and_needs_no_reference"),
        (DRIFT_NAN, "test_fewer_numbers_dropped_than_answers_came_are_no_nan"),
        finder="DriftWorld",
    ),
}
"""What analysers find: their worlds look at all that an analyser finds, whatever its cause."""

TESTS: Mapping[str, Pair] = _ENGINE | _HOST | _GPU | _MODELS


@cache
def definitions(file: str) -> dict[str, Definition]:
    """What a file defines, by its name; of a class its methods too, as `Class.method`."""
    found: dict[str, Definition] = {}
    for node in ast.parse((FOLDER / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def said(node: ast.AST) -> Iterator[str]:
    """The names and strings of some code, the parameters and decorators of a function among them, its docstring not."""
    prose = {each.value for each in ast.walk(node) if isinstance(each, ast.Expr)}
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and each not in prose:
            yield each.value


def named(where: Where) -> set[str]:
    """What a test names, and what the tables, helpers and worlds of its file name that it goes by."""
    file, test = where
    known = definitions(file)
    own = set(said(known[test]))
    of_class = test.rpartition(".")[0]
    helpers = [known[name] for each in own for name in (each, f"{of_class}.{each}") if name in known]
    return own.union(*(said(each) for each in helpers))


def test_the_table_has_every_cause_and_no_other() -> None:
    assert TESTS.keys() == CAUSES


@pytest.mark.parametrize("cause", sorted(TESTS))
def test_a_cause_has_a_test_that_finds_it_and_one_in_which_it_is_silent(cause: str) -> None:
    found, silent, finder = TESTS[cause]
    assert found != silent
    for where in (found, silent):
        assert where[1].rpartition(".")[2].startswith("test_")
        assert where[1] in definitions(where[0]), f"{where[0]} has no {where[1]}"
        assert any(isinstance(each, ast.Assert) for each in ast.walk(definitions(where[0])[where[1]])), f"{where} asserts nothing"
        assert {cause, finder or cause} & named(where), f"{where} names neither {cause} nor what finds it"
