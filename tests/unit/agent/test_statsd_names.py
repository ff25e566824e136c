"""Names, labels and kinds of StatsD's samples: what is valid, what is refused and why, and which engine a sample says it is of."""

from __future__ import annotations

import pytest
from fakes.statsd_lines import feed, parsed, taken, the_point

from aie_agent.samples import Point
from aie_agent.sources.statsd_aggregate import Aggregator
from aie_agent.sources.statsd_series import Identity, conflicts, verdict
from aie_telemetry.catalogue import CATALOGUE, Kind

REQUESTS = "aie_engine_requests_received_total,engine=e,model=m"


def refused(*lines: str) -> dict[str, int]:
    points, histograms, aggregator = taken(*lines)
    assert points == []
    assert histograms == []
    return dict(aggregator.refused)


class TestNames:
    def test_foreign_names_and_labels_become_valid(self) -> None:
        point = the_point("my.app-requests,1st=x,__name__=y,le=z,ok=,d-c=ä:1|c")
        assert point.name == "my_app_requests"
        assert point.tags == (("_1st", "x"), ("_name__", "y"), ("d_c", "ä"), ("le_", "z"))

    def test_different_spellings_of_one_series_are_one(self) -> None:
        assert the_point("a-b:1|c", "a+b:2|c", "a_b:4|c").value == 7

    def test_both_dialects_are_one_series(self) -> None:
        assert the_point("a,x=1:1|c", "a:2|c|#x:1").value == 3

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("aie_engine_nonsense,engine=e:1|c", "reserved_name"),
            ("aie-engine.nonsense:1|c", "reserved_name"),
            ("aie_host_load1:1|g", "reserved_name"),  # the host is the agent's to tell of
            ("aie_agent_samples_total,source=x:1|c", "reserved_name"),
            ("aie_engine_up,engine=e:1|g", "reserved_name"),
            ("aie_engine_memory_physical_bytes,engine=e,device=cpu:1|g", "reserved_name"),
            ("aie_engine_nonsense,engine=e:20|ms", "reserved_name"),
            (f"{REQUESTS}:1|g", "kind_conflict"),
            (f"{REQUESTS}:x|s", "kind_conflict"),
            ("aie_engine_requests_running,engine=e,model=m:x|s", "kind_conflict"),
            ("aie_engine_queue_seconds,engine=e,model=m:1|c", "kind_conflict"),
            (f"{REQUESTS},customer=c:1|c", "bad_labels"),
            ("aie_engine_requests_received_total,model=m:1|c", "bad_labels"),
            ("aie_engine_requests_received_total,engine=<b>,model=m:1|c", "bad_labels"),
            ("aie_hooks_process,engine=e:1|g", "bad_hello"),
            ("aie_hooks_process,engine=e,pid=x:1|g", "bad_hello"),
            ("aie_hooks_process,engine=e,pid=99999999:1|g", "bad_hello"),
            ("aie_hooks_process,pid=1:1|g", "bad_hello"),
            ("aie_hooks_process,engine=e,pid=1:1|c", "bad_hello"),
            (f"a,x={'y' * 2000}:1|c", "series_too_long"),
        ],
    )
    def test_what_is_refused(self, line: str, reason: str) -> None:
        assert refused(line, line) == {reason: 2}
        (sample,) = parsed(line)
        assert verdict(sample)[1] == reason

    @pytest.mark.parametrize(
        ("line", "name", "reason"),
        [
            ("my.app-latency_ms,x=y:5|ms", "my_app_latency_seconds", None),
            ("a:5|c", "a", None),
            ("a:-5|c", "a", "negative_counter"),
            ("a:-5|g", "a", None),
            ("users:anna|s", "users", None),
            ("aie-engine.nonsense:1|c", "aie_engine_nonsense", "reserved_name"),
            ("aie_hooks_process,engine=e,pid=47:1|g", "aie_hooks_process", None),
            (f"{REQUESTS}:1|c", "aie_engine_requests_received_total", None),
        ],
    )
    def test_the_verdict_names_the_series(self, line: str, name: str, reason: str | None) -> None:
        (sample,) = parsed(line)
        assert verdict(sample) == (name, reason)
        aggregator = Aggregator()
        aggregator.add(sample)
        assert list(aggregator.refused) == ([] if reason is None else [reason])

    @pytest.mark.parametrize("metric", [m for m in CATALOGUE.values() if m.name.startswith("aie_engine_")], ids=lambda m: m.name)
    def test_every_metric_of_an_engine_is_taken(self, metric) -> None:  # type: ignore[no-untyped-def]
        tags = ",".join(f"{label}=x" for label in metric.labels)
        code = {Kind.COUNTER: "c", Kind.GAUGE: "g", Kind.HISTOGRAM: "h"}[metric.kind]
        points, histograms, aggregator = taken(f"{metric.name},{tags}:1|{code}")
        agents_own = metric.name in (
            "aie_engine_up",
            "aie_engine_memory_physical_bytes",
            "aie_engine_memory_unaccounted_bytes",
        )
        assert len(points) + len(histograms) == (0 if agents_own else 1)
        assert bool(aggregator.refused) is agents_own

    def test_a_name_has_one_kind(self) -> None:
        points, histograms, aggregator = taken("a:1|c", "a,x=1:1|g", "a:1|h", "a:m|s", "a:2|c")
        assert points == [Point("a", Kind.COUNTER, (), 3.0, True)]
        assert histograms == []
        assert aggregator.refused == {"kind_conflict": 3}

    def test_a_gauge_and_a_set_of_one_series_conflict(self) -> None:
        points, _, aggregator = taken("a:1|g", "a:m|s")
        assert points == [Point("a", Kind.GAUGE, (), 1.0, False)]
        assert aggregator.refused == {"kind_conflict": 1}

    def test_a_histogram_also_takes_the_names_of_its_lines(self) -> None:
        assert conflicts("a_count", Kind.COUNTER, {"a": Kind.HISTOGRAM})
        assert conflicts("a", Kind.HISTOGRAM, {"a_sum": Kind.GAUGE})
        assert not conflicts("a_count", Kind.COUNTER, {"a": Kind.GAUGE})
        assert not conflicts("a_count", Kind.COUNTER, {"b": Kind.HISTOGRAM})


class TestIdentity:
    def test_samples_with_an_engine_tag_say_who_sends(self) -> None:
        assert feed(Aggregator(), f"{REQUESTS}:1|c", "mine,engine=llama:1|c", "x:1|c") == [
            Identity("e"),
            Identity("llama"),
            None,
        ]

    def test_the_hello_line_is_no_series(self) -> None:
        aggregator = Aggregator()
        hello = "aie_hooks_process,engine=e,pid=4711:1|g"
        assert feed(aggregator, hello, hello) == [Identity("e", 4711), Identity("e", 4711)]
        assert aggregator.swap(1.0).points() == ([], [], 0)
        assert aggregator.size == 0
        assert not aggregator.refused

    def test_the_hello_line_in_dogstatsd_and_with_more_tags(self) -> None:
        assert feed(Aggregator(), "aie_hooks_process:1|g|#engine:e,pid:47,region:eu") == [Identity("e", 47)]

    def test_an_engine_by_a_name_that_is_none_says_nothing(self) -> None:
        assert feed(Aggregator(), "mine,engine=<script>:1|c", f"mine,engine={'e' * 64}:1|c") == [None, None]
