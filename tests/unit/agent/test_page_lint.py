"""Each rule: what it speaks of, and that it is silent on what is normal. Healthy pages break none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fixtures.pages import render

from aie_agent.sources.pages.lint import MAX_FINDINGS, RULES, SLACK, SLACK_TOKENS, LintFinding
from aie_agent.sources.pages.reader import LINT_EVERY, PageReader
from aie_telemetry.catalogue import CATALOGUE
from aie_telemetry.instruments import Registry

PAGES = {path.stem: path.read_text() for path in Path(render.__file__).parent.glob("*.prom")}
HIT_RATE_ONLY = "sglang-0.4"
HEALTHY = sorted(set(PAGES) - {HIT_RATE_ONLY})


def lint(text: str) -> list[LintFinding]:
    return PageReader("e").read(text.encode()).lint


def broken(text: str) -> set[tuple[str, str]]:
    """Rules and families."""
    return {(finding.rule, finding.family) for finding in lint(text)}


def without(page: str, *families: str) -> str:
    """`page` less all lines of some families, HELP and TYPE too."""
    name = "|".join(re.escape(family) for family in families)
    pattern = rf"(# \w+ )?({name})(_total|_created|_bucket|_sum|_count)?[ {{].*\n"
    return "".join(line for line in page.splitlines(keepends=True) if not re.fullmatch(pattern, line))


def declared(page: str, family: str, kind: str) -> str:
    changed, count = re.subn(rf"# TYPE {re.escape(family)} \w+\n", f"# TYPE {family} {kind}\n", page)
    assert count == 1
    return changed


def valued(page: str, name: str, value: float) -> str:
    """`page` with every line of `name` at `value`."""
    changed, count = re.subn(rf"^({re.escape(name)}(?:\{{.*\}})?) .*$", rf"\1 {value}", page, flags=re.MULTILINE)
    assert count
    return changed


@pytest.mark.parametrize("page", HEALTHY)
def test_a_healthy_page_breaks_no_rule(page: str) -> None:
    assert lint(PAGES[page]) == []


def idle(page: str) -> str:
    """An engine that has just begun: nothing was served, and what appears with the first request is not there."""
    text = "".join(line for line in PAGES[page].splitlines(keepends=True) if re.match(r"# .* gauge$", line) or " " in line)
    for name in {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}:
        if name.endswith(("_total", "_bucket", "_sum", "_count", "_success", "_failure")):
            text = valued(text, name, 0)
    return text


@pytest.mark.parametrize("page", HEALTHY)
def test_an_engine_that_has_served_nothing_breaks_no_rule(page: str) -> None:
    assert lint(idle(page)) == []


@pytest.mark.parametrize("page", [page for page in HEALTHY if page.startswith(("vllm", "sglang", "tensorrt"))])
def test_nor_does_one_whose_library_writes_families_only_when_they_have_a_series(page: str) -> None:
    """As in prometheus_client's multiprocess mode: before the first request there are only gauges."""
    gauges = re.findall(r"# TYPE (\S+) gauge", PAGES[page])
    lines = [line for line in PAGES[page].splitlines(keepends=True) if re.split(r"[ {]", line.removeprefix("# TYPE "))[0] in gauges]
    assert lint(re.sub(r"\} \S+$", "} 0", "".join(lines), flags=re.MULTILINE)) == []


def test_our_own_page_breaks_no_rule() -> None:
    registry = Registry()
    registry.value("aie_engine_requests_received_total", "e", "m").add(7)
    registry.value("aie_engine_requests_total", "e", "m", "ok").add(7)
    registry.distribution("aie_engine_step_seconds", "e", "m").observe(0.03, 4)
    assert lint(registry.render()) == []


@pytest.mark.parametrize(
    ("page", "family"),
    [
        ("vllm-0.33-dp2", "vllm:kv_cache_usage_perc"),
        ("vllm-0.33-dp2", "vllm:num_requests_running"),
        ("vllm-0.33-dp2", "vllm:time_to_first_token_seconds"),
        ("vllm-0.33-dp2", "vllm:e2e_request_latency_seconds"),
        ("sglang-0.5.23-dp2-tp2", "sglang:num_queue_reqs"),
        ("tensorrt-llm-1.3", "trtllm_time_to_first_token_seconds"),
        ("tgi-2", "tgi_queue_size"),
        ("triton-23.12", "nv_inference_request_failure"),
        ("llama.cpp-2026-10", "llamacpp:requests_deferred"),
    ],
)
def test_a_family_that_is_missing(page: str, family: str) -> None:
    assert broken(without(PAGES[page], family)) == {("missing_family", family)}


def test_a_family_under_its_older_name_is_not_missing() -> None:
    assert "vllm:kv_cache_usage_perc" not in PAGES["vllm-0.8"]
    assert broken(without(PAGES["vllm-0.8"], "vllm:gpu_cache_usage_perc")) == {("missing_family", "vllm:kv_cache_usage_perc")}


def test_a_page_of_half_the_processes() -> None:
    """vllm#8612: what the engine's process measures is not on the page of the one that serves."""
    page = 'vllm:num_requests_running{model_name="m"} 0\n'
    assert {rule for rule, _ in broken(page)} == {"missing_family", "undeclared"}


def test_one_gauge_of_several_processes() -> None:
    """vllm PR#28792. One process with its pid is normal (SGLang)."""
    lines = [f'vllm:kv_cache_usage_perc{{model_name="m",pid="{pid}"}} {0.5 * (pid == 7)}\n' for pid in range(8)]
    page = without(PAGES["vllm-0.8"], "vllm:gpu_cache_usage_perc") + "# TYPE vllm:kv_cache_usage_perc gauge\n"
    assert broken(page + "".join(lines)) == {("duplicate_pid", "vllm:kv_cache_usage_perc")}
    assert broken(page + lines[0]) == set()
    reading = PageReader("e").read((page + "".join(lines)).encode()).reading
    assert [point.value for point in reading.points if point.name == "aie_engine_kv_usage_ratio"] == [0.5]


def test_a_hit_rate_is_no_counter() -> None:
    """sglang#26608. With counters beside it, it does no harm."""
    assert broken(PAGES[HIT_RATE_ONLY]) == {("gauge_for_counter", "sglang:cache_hit_rate")}
    counters = '# TYPE sglang:cached_tokens_total counter\nsglang:cached_tokens_total{model_name="m",cache_source="device"} 5\n'
    assert broken(PAGES[HIT_RATE_ONLY] + counters) == set()
    assert broken(valued(PAGES[HIT_RATE_ONLY], "sglang:cache_hit_rate", 0)) == set()


@pytest.mark.parametrize("family", ["vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total"])
def test_a_counter_that_is_declared_a_gauge(family: str) -> None:
    """Of the map or not: the name says what it is."""
    assert ("gauge_for_counter", family) in broken(declared(PAGES["vllm-0.33-dp2"], family, "gauge"))


def test_a_gauge_that_is_declared_a_counter() -> None:
    page = declared(PAGES["vllm-0.8"], "vllm:num_requests_running", "counter")
    assert broken(page) == {("counter_for_gauge", "vllm:num_requests_running")}
    reading = PageReader("e").read(page.encode()).reading
    assert reading.refused == {"kind_conflict": 1}
    assert "aie_engine_requests_running" not in {point.name for point in reading.points}


def test_more_requests_ended_than_were_received() -> None:
    """TGI counts both. A few that ended while the page was written are none."""
    assert broken(valued(PAGES["tgi-2"], "tgi_request_count", 64 - SLACK)) == set()
    assert broken(valued(PAGES["tgi-2"], "tgi_request_count", 63 - SLACK)) == {("totals_disagree", "aie_engine_requests_total")}


def test_a_counter_and_a_histogram_of_the_same_requests() -> None:
    page = PAGES["tgi-2"]
    assert broken(valued(page, "tgi_request_success", 60 - SLACK)) == set()
    assert broken(valued(page, "tgi_request_success", 59 - SLACK)) == {("totals_disagree", "tgi_request_success")}


def test_requests_that_leave_no_trace() -> None:
    """vllm#55634: clients left, tokens were generated, and nothing has ended. While something is under way, that is normal."""
    page = PAGES["vllm-0.8"]
    for name in set(re.findall(r"^(vllm:e2e\w+|vllm:request_success_total)(?=\{)", page, flags=re.MULTILINE)):
        page = valued(page, name, 0)
    assert broken(page) == set()
    page = valued(valued(page, "vllm:num_requests_running", 0), "vllm:num_requests_waiting", 0)
    assert broken(page) == {("totals_disagree", "aie_engine_requests_total")}


def at_rest(page: str, *levels: str) -> str:
    """Nothing is under way any more."""
    for name in levels or ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        page = valued(page, name, 0)
    return page


@pytest.mark.parametrize("page", ["sglang-0.5.23-dp2-own-code", "sglang-0.5.23-dp2-tp2"])
def test_an_engine_at_rest_that_counts_only_the_aborted_ones(page: str) -> None:
    """SGLang served fifty requests, and nobody left: of those that ended well it has no outcome."""
    text = at_rest(PAGES[page], "sglang:num_running_reqs", "sglang:num_queue_reqs")
    text = valued(text, "sglang:num_aborted_requests_total", 0)
    reading = PageReader("e").read(text.encode()).reading
    values = {point.name: point.value for point in reading.points}
    assert values["aie_engine_requests_total"] == 0
    assert values["aie_engine_generation_tokens_total"] > 0
    assert broken(text) == set()


def raised(page: str, name: str, by: float) -> str:
    """`page` with the first line of `name` higher by so much."""
    before = re.search(rf"^{re.escape(name)}(?:\{{.*\}})? (.*)$", page, flags=re.MULTILINE)
    assert before is not None
    return page[: before.start(1)] + str(float(before.group(1)) + by) + page[before.end(1) :]


@pytest.mark.parametrize("name", ["vllm:prompt_tokens_total", "vllm:generation_tokens_total"])
def test_tokens_of_requests_that_left_no_trace(name: str) -> None:
    """vllm#55634, #31503: others ended well, so that only the sums tell. Up to 1 % or 100 tokens are none."""
    page = at_rest(PAGES["vllm-0.33-dp2"])
    (total,) = (sum(float(value) for value in re.findall(rf"^{name}\{{.*\}} (.*)$", page, flags=re.MULTILINE)),)
    slack = max(SLACK_TOKENS, 0.0101 * total)
    assert broken(page) == set()
    assert broken(raised(page, name, slack - 5)) == set()
    assert broken(raised(page, name, slack + 5)) == {("totals_disagree", name.removesuffix("_total"))}
    assert broken(raised(PAGES["vllm-0.33-dp2"], name, 3010)) == set(), "of requests that run"


def test_tokens_that_the_prefix_cache_had_are_missed_nowhere() -> None:
    """Whole prompts on both sides; and with fewer tokens computed than asked for."""
    page = at_rest(PAGES["vllm-0.33-dp2"])
    assert re.search(r'by_source_total\{.*source="local_cache_hit".*\} [1-9]', page)
    assert broken(page) == set()
    assert broken(raised(page, "vllm:prompt_tokens_total", -900)) == set()


def test_prompts_that_v0_computed_twice() -> None:
    """It counts a prompt again after a preemption."""
    assert broken(raised(at_rest(PAGES["vllm-0.5"]), "vllm:prompt_tokens_total", 5000)) == set()


@pytest.mark.parametrize(
    "line",
    [
        'trtllm_request_queue_time_seconds_bucket{engine_type="undefined",le="0.8",model_name="TinyLlama-1.1B-Chat-v1.0"} 3.0\n',
        'trtllm_request_queue_time_seconds_count{engine_type="undefined",model_name="TinyLlama-1.1B-Chat-v1.0"} 3.0\n',
    ],
)
def test_a_histogram_that_contradicts_itself(line: str) -> None:
    name = line.split("} ")[0] + "}"
    page = "".join(line if old.startswith(name) else old for old in PAGES["tensorrt-llm-1.0"].splitlines(keepends=True))
    assert page.count(line) == 1
    assert broken(page) == {("totals_disagree", "trtllm_request_queue_time_seconds")}


def test_lines_without_a_type() -> None:
    page = "".join(line for line in PAGES["triton-23.12"].splitlines(keepends=True) if "# TYPE nv_inference_" not in line)
    (finding,) = lint(page)
    assert (finding.rule, finding.family) == ("undeclared", "nv_inference_count")
    assert "and 4 more" in finding.text
    assert PageReader("e").read(page.encode()).reading == PageReader("e").read(PAGES["triton-23.12"].encode()).reading


def test_the_rules_are_those_of_the_catalogue() -> None:
    assert all(rule in CATALOGUE["aie_agent_scrape_lint"].help for rule in RULES)


def test_one_page_in_several_is_looked_at_and_the_first_of_another_engine_always() -> None:
    reader = PageReader("e")
    healthy, ill = PAGES["llama.cpp-2026-10"].encode(), without(PAGES["llama.cpp-2026-10"], "llamacpp:requests_deferred").encode()
    assert reader.read(healthy).lint == []
    for _ in range(LINT_EVERY - 1):
        assert reader.read(ill).lint == []
    assert [finding.rule for finding in reader.read(ill).lint] == ["missing_family"]
    assert reader.read(PAGES["tgi-2"].encode()).lint == []
    assert [finding.rule for finding in reader.read(ill).lint] == ["missing_family"]


def test_a_page_cannot_fill_the_agent_with_what_is_wrong_with_it() -> None:
    names = [f"vllm:{'x' * 500}{number}_total" for number in range(3 * MAX_FINDINGS)]
    lies = "".join(f"# TYPE {name} gauge\n{name} 1\n" for name in names)
    found = lint(PAGES["vllm-0.8"] + lies)
    assert len(found) == MAX_FINDINGS
    assert all(len(finding.family) <= 200 for finding in found)
