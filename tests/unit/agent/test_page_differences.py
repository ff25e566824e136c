"""Counters that are put together from several lines of a page: replicas that go, differences, and terms that are missing."""

from __future__ import annotations

from fakes.page_readings import PAGES, TRTLLM, histograms, outcomes, scalars
from fixtures.pages.traffic import traffic

from aie_agent.sources.pages.reader import PageReader


def test_a_replica_that_goes_or_begins_anew_takes_nothing_away() -> None:
    """A version of a model is unloaded, and loaded again: what it had counted stays counted, and nothing is counted twice."""
    reader = PageReader("e")
    ended = []
    for first, second in ((100, 1000), (110, 1000), (115, None), (120, 0), (120, 7), (3, 9)):
        lines = [f'nv_inference_request_success{{model="m",version="1"}} {first}\n']
        lines += [f'nv_inference_request_success{{model="m",version="2"}} {second}\n'] if second is not None else []
        reading = reader.read("".join(lines).encode())
        ended.append(scalars(reading)["requests_total outcome=ok"])
    assert ended == [1100, 1110, 1115, 1120, 1127, 1132]


def test_a_histogram_of_replicas_does_not_fall_either() -> None:
    """One of two engines is gone, then comes back; in each page the buckets agree with the count."""
    reader = PageReader("e")
    page = (PAGES / "vllm-0.33-dp2.prom").read_text()
    of_one = "".join(line for line in page.splitlines(keepends=True) if 'engine="1"' not in line)
    counts = []
    for text in (page, of_one, page):
        reading = reader.read(text.encode())
        assert not reading.reading.refused
        counts.append(sum(histograms(reading)["time_to_first_token_seconds"].counts))
    assert counts == [100, 100, 100]


def test_sglang_without_its_realtime_tokens() -> None:
    """What was computed is then what the prompts had less what the cache had, counted when a request ends."""
    page = (PAGES / "sglang-0.5.23-dp2-tp2.prom").read_text()
    done = [*traffic(30, 6), *traffic(20, 7)]
    families = "sglang:realtime_tokens", "sglang:uncached_prompt_tokens_histogram"
    for gone in (families[:1], families):
        text = "".join(line for line in page.splitlines(keepends=True) if not any(name in line for name in gone))
        found = scalars(PageReader("e").read(text.encode()))
        assert found["prompt_tokens_total"] == sum(one.prompt - one.cached for one in done)
        assert found["generation_tokens_total"] == sum(one.generated for one in done)


def test_a_difference_does_not_fall_while_one_counter_is_ahead_of_the_other() -> None:
    """The lines of a page are not written in one moment. When the engine begins anew, it does."""
    reader = PageReader("e")
    computed = []
    for prompt, cached in ((100, 40), (100, 55), (130, 55), (160, 70), (20, 5), (10, 10)):
        lines = (
            f'trtllm_prompt_tokens_total{{model_name="m"}} {prompt}\ntrtllm_prompt_cached_tokens_total{{model_name="m"}} {cached}\n'
        )
        computed.append(scalars(reader.read(lines.encode()))["prompt_tokens_total"])
    assert computed == [60, 60, 75, 90, 15, 0]


def test_whole_prompts_are_no_computed_tokens() -> None:
    reading = PageReader("e").read(b'trtllm_prompt_tokens_total{model_name="m"} 5\ntrtllm_num_requests_running{model_name="m"} 1\n')
    assert scalars(reading) == {"requests_running": 1, **outcomes([], TRTLLM)}
