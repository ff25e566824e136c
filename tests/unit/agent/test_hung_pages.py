"""What the pages of the engines let be known of a hang: of whole pages that stand still, and of those on which something moves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.pages import render

from aie_agent.agent import Agent
from aie_agent.analysis.findings import Limits, ProcessState, View
from aie_agent.analysis.hung import engine_hung
from aie_agent.config import parse
from aie_agent.progress import STALE, PageWatch, Progress
from aie_agent.samples import Batch
from aie_agent.sources.pages.reader import PageReader
from aie_agent.sources.pages.signs import MAX_REPLICAS
from aie_agent.store import Store
from aie_telemetry.api import Finding

PAGES = Path(render.__file__).parent
BEGIN_S = 1000.0
LIMIT_S = 30.0
STALE_S = STALE["sglang"].for_s


class World:
    """An engine whose page is read once a second, as the agent reads it."""

    def __init__(self, store: Store | None = None, limit_s: float = LIMIT_S) -> None:
        self.store = store or Store(max_series=5000, retention_s=300.0)
        self.progress: Progress | None = None
        self.silent_s: float | None = None
        self.held: Finding | None = None
        self.processes: list[ProcessState] = []
        self._reader, self._watch = PageReader("e"), PageWatch()
        self.view = View(
            store=self.store,
            engines=["e"],
            state=lambda _: "up",
            processes=lambda _: self.processes,
            unanswered_since_s=lambda _: self.silent_s,
            progress=lambda _: self.progress,
            limits=Limits(limit_s),
            held=lambda cause, subject: self.held,
        )

    def read(self, second: float, page: str) -> Finding | None:
        now_s = BEGIN_S + second
        read = self._reader.read(page.encode())
        assert read.problem is None
        self.progress = self._watch.update(now_s, read.signs)
        self.store.apply(Batch("scrape:e", now_s, read.reading.points, read.reading.histograms))
        self.held = engine_hung(self.view, "e", now_s)
        return self.held

    def run(self, page: Callable[[int], str], seconds: Iterable[int]) -> list[Finding | None]:
        return [self.read(second, page(second)) for second in seconds]


def recorded(name: str, *values: tuple[str, float]) -> str:
    """A page of the fixtures, with other values for some names."""
    page = (PAGES / f"{name}.prom").read_text()
    for family, value in values:
        page, count = re.subn(rf"^({re.escape(family)}(?:\{{.*\}})?) .*$", rf"\1 {value}", page, flags=re.MULTILINE)
        assert count
    return page


@pytest.mark.parametrize(
    ("page", "running"),
    [
        ("vllm-0.5", "vllm:num_requests_running"),
        ("vllm-0.8", "vllm:num_requests_running"),
        ("vllm-0.33-dp2", "vllm:num_requests_running"),
        ("vllm-0.33.0-dp2-own-code", "vllm:num_requests_running"),
        ("sglang-0.5.23-dp2-tp2", "sglang:num_running_reqs"),
        ("sglang-0.5.23-dp2-own-code", "sglang:num_running_reqs"),
        ("tgi-2", "tgi_batch_current_size"),
        ("llama.cpp-2026-10", "llamacpp:requests_processing"),
    ],
)
def test_a_page_that_stands_still_with_requests_running(page: str, running: str) -> None:
    """Each of these has something that moves with every step."""
    world = World()
    begins = int(LIMIT_S + (STALE_S if page.startswith("sglang") else 0.0))
    found = world.run(lambda _: recorded(page, (running, 2)), range(begins + 10))
    assert not any(found[:begins])
    assert all(found[begins:])
    assert not any(World().run(lambda _: recorded(page, (running, 0)), range(begins + 10)))


@pytest.mark.parametrize("page", ["sglang-0.4", "tensorrt-llm-1.3", "triton-24-trtllm", "llama.cpp-b4000"])
def test_a_page_that_moves_only_when_requests_end_says_nothing_by_standing_still(page: str) -> None:
    """A long answer looks like that."""
    assert not any(World().run(lambda _: recorded(page), range(200)))


def vllm(*engines: tuple[int, int, float], awake: int = 1) -> str:
    """Requests running, tokens generated, and KV cache in use of each engine."""
    lines = []
    for at, (running, tokens, kv) in enumerate(engines):
        labels = f'engine="{at}",model_name="m"'
        lines += [
            f"vllm:num_requests_running{{{labels}}} {running}",
            f"vllm:generation_tokens_total{{{labels}}} {tokens}",
            f"vllm:kv_cache_usage_perc{{{labels}}} {kv}",
            f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}} {awake}',
            f'vllm:engine_sleep_state{{{labels},sleep_state="discard_all"}} {1 - awake}',
        ]
    return "\n".join(lines) + "\n"


class TestVllm:
    def test_a_long_prefill_in_chunks_moves_the_kv_cache_alone(self) -> None:
        """Steps without output are not counted, and the prompt only when all of it is computed."""
        assert not any(World().run(lambda second: vllm((1, 500, 0.001 * (second // 10))), range(200)))

    def test_asleep_with_requests_in_it(self) -> None:
        world = World()
        assert not any(world.run(lambda _: vllm((1, 500, 0.1), awake=0), range(100)))
        found = world.run(lambda _: vllm((1, 500, 0.1)), range(100, 140))
        assert not any(found[:30]), "awake, it has its whole time"
        assert found[-1]

    def test_one_of_two_replicas_hangs(self) -> None:
        world = World()
        found = world.run(lambda second: vllm((3, 10 * second, 0.1), (2, 10 * min(second, 50), 0.2)), range(100))
        assert not any(found[:80])
        finding = found[80]
        assert finding is not None
        assert (finding.severity, finding.since_s) == ("critical", BEGIN_S + 50)
        assert finding.summary == "engine e hangs in its replica 1: 2 requests run and no token moves"
        assert "generated tokens in replica 1 stand at 500 for 30 s (limit 30 s)" in finding.evidence[0].text
        moving = world.run(lambda second: vllm((3, 10 * second, 0.1), (2, 10 * second, 0.2)), range(100, 102))
        assert not any(moving)

    def test_one_of_two_replicas_is_idle(self) -> None:
        assert not any(World().run(lambda second: vllm((3, 10 * second, 0.1), (0, 500, 0.0)), range(100)))

    def test_a_replica_has_its_whole_time_from_its_first_request_on(self) -> None:
        world = World()
        found = world.run(lambda second: vllm((3, second, 0.1), (int(second >= 60), 500, 0.0)), range(100))
        assert not any(found[:90])
        assert found[90]

    def test_a_replica_in_a_long_prefill(self) -> None:
        assert not any(World().run(lambda second: vllm((3, second, 0.1), (1, 500, second // 25 / 100)), range(200)))

    def test_both_replicas_asleep(self) -> None:
        assert not any(World().run(lambda second: vllm((3, second, 0.1), (1, 500, 0.1), awake=0), range(100)))

    def test_an_agent_that_stood_still(self) -> None:
        """Nobody knows what was between two looks that are too far apart."""
        world = World()
        seconds = [*range(10), *range(40, 45)]
        assert not any(world.run(lambda second: vllm((3, second, 0.1), (1, 500, 0.1)), seconds))

    def test_a_replica_that_comes_back(self) -> None:
        world = World()
        world.run(lambda second: vllm((3, second, 0.1), (1, 500, 0.1)), range(25))
        world.run(lambda second: vllm((3, second, 0.1)), range(25, 28))
        assert not any(world.run(lambda second: vllm((3, second, 0.1), (1, 500, 0.1)), range(28, 50)))


def test_a_page_cannot_make_up_replicas() -> None:
    """Names that are none, and more of them than there are GPUs in any engine."""
    world = World()
    lines = [f'vllm:num_requests_running{{engine="{name}",model_name="m"}} 1\n' for name in ("\\n\x1b[2J", "x", *range(1000))]
    world.read(0, "".join(lines))
    assert world.progress is not None
    assert {each.name for each in world.progress.replicas} == {str(at) for at in range(MAX_REPLICAS)}


def sglang(
    *replicas: tuple[int, int, float], ended: int = 0, realtime: bool = False, in_step: bool = False, old: bool = False
) -> str:
    """Requests running, tokens generated, and tokens in use of each replica; the front end counts requests that `ended`. `in_step`
    is attention in data parallel, `old` a version that may never say that it fell idle."""
    lines = [
        f'sglang:generation_tokens_total{{model_name="m"}} {200 * ended}',
        f'sglang:num_requests_total{{model_name="m"}} {ended}',
    ]
    lines += [
        f'sglang:e2e_request_latency_seconds_{part}{{model_name="m"{le}}} {ended}'
        for part, le in (("bucket", ',le="1"'), ("bucket", ',le="+Inf"'), ("sum", ""), ("count", ""))
    ]
    for at, (running, tokens, usage) in enumerate(replicas):
        labels = f'dp_rank="{at}",model_name="m",tp_rank="{at if in_step else 0}"'
        lines += [f"sglang:num_running_reqs{{{labels}}} {running}", f"sglang:token_usage{{{labels}}} {usage}"]
        lines += [f'sglang:realtime_tokens_total{{{labels},mode="decode"}} {tokens}'] if realtime else []
        lines += [] if old else [f"sglang:num_grammar_queue_reqs{{{labels}}} 0"]
    return "\n".join(lines) + "\n"


class TestSglang:
    def test_tokens_that_move_when_a_request_ends(self) -> None:
        """Without `realtime_tokens_total`: answers of 100 s each, and gauges that are renewed when one begins or ends."""
        page = lambda second: sglang((1, 0, 0.001 * (second // 100)), ended=second // 100)  # noqa: E731
        assert not any(World().run(page, range(300)))

    @pytest.mark.parametrize(("every_s", "is_found"), [(2, True), (10, True), (20, False)])
    def test_gauges_that_are_renewed_every_so_many_steps(self, every_s: int, is_found: bool) -> None:
        """`decode_log_interval` is 40 steps. Where these take longer than half of the limit, silence is no sign of anything."""
        world = World()
        page = lambda second: sglang((2, 0, 0.001 * (min(second, 200) // every_s)), ended=min(second, 200) // 100)  # noqa: E731
        found = world.run(page, range(270))
        assert not any(found[:264])
        assert (found[-1] is not None) == is_found

    def test_a_hang_goes_on_when_the_moves_before_it_are_forgotten(self) -> None:
        world = World()
        page = lambda second: sglang((2, 0, 0.001 * (min(second, 200) // 2)), ended=min(second, 200) // 100)  # noqa: E731
        found = world.run(page, range(900))
        assert not any(found[:265])
        assert all(found[265:])

    @pytest.mark.parametrize("late_s", [8, 20, 40, 100])
    def test_a_hang_goes_on_over_a_page_that_is_late(self, late_s: int) -> None:
        """Long after the moves before it are forgotten, and until its page shows that it is over."""
        world = World()
        page = lambda second: sglang((2, 0, 0.001 * (min(second, 200) // 2)), ended=min(second, 200) // 100)  # noqa: E731
        world.run(page, range(600))
        world.silent_s = BEGIN_S + 600
        for second in range(600, 600 + late_s):
            world.held = engine_hung(world.view, "e", BEGIN_S + second)
            assert world.held is not None
            assert world.held.severity == "critical"
        world.silent_s = None
        assert all(world.run(page, range(600 + late_s, 900)))
        assert not any(world.run(lambda second: sglang((2, 0, 0.001 * second), ended=3), range(900, 910)))

    def test_a_hang_of_an_engine_elsewhere_does_not_outlive_its_host(self) -> None:
        """No process of it is seen, so nobody knows that it lives."""
        world = World()
        world.run(lambda second: sglang((2, 0, 0.001 * (min(second, 200) // 2)), ended=min(second, 200) // 100), range(600))
        world.silent_s = BEGIN_S + 600
        found = []
        for second in range(600, 700):
            world.held = engine_hung(replace(world.view, state=lambda _: "unknown"), "e", BEGIN_S + second)
            found.append(world.held is not None)
        assert found == [True] * 30 + [False] * 70

    def test_what_was_not_found_is_none_while_its_page_is_late(self) -> None:
        world = World()
        world.run(lambda second: sglang((2, 0, 0.001 * second)), range(100))
        world.silent_s = BEGIN_S + 100
        assert not any(engine_hung(world.view, "e", BEGIN_S + second) for second in range(100, 130))

    def test_a_page_that_was_silent_and_is_read_again_is_no_sign_that_nothing_moves(self) -> None:
        """What was found was the silence: of signs that move while requests run nothing is known."""
        world = World()
        page = lambda second: sglang((1, 0, 0.1), ended=0)  # noqa: E731
        world.run(page, range(100))
        world.silent_s = BEGIN_S + 100
        silent = engine_hung(world.view, "e", BEGIN_S + 140)
        assert silent is not None
        world.silent_s, world.held = None, silent
        assert not any(world.run(page, range(140, 300)))

    def test_too_few_moves_to_say_how_they_come(self) -> None:
        page = lambda second: sglang((1, 0, 0.001 * (min(second, 12) // 4)))  # noqa: E731
        assert not any(World().run(page, range(100)))

    def test_one_replica_of_data_parallelism(self) -> None:
        """sglang#26482, where the others go on."""
        world = World()
        page = lambda second: sglang((1, second, 0.1), (1, min(second, 20), 0.1), realtime=True)  # noqa: E731
        found = world.run(page, range(100))
        assert not any(found[:85])
        finding = found[85]
        assert finding is not None
        assert "in its replica 1: 1 requests" in finding.summary
        assert "for 65 s (limit 65 s)" in finding.evidence[0].text
        assert not any(World().run(lambda second: sglang((1, second, 0.1), (1, second // 20, 0.1), realtime=True), range(100)))

    @pytest.mark.parametrize("realtime", [True, False])
    @pytest.mark.parametrize("sections", [{"findings": {"hung_after": "300s"}}, {"store": {"retention": "60s"}}])
    def test_what_an_agent_remembers_is_enough(self, sections: dict[str, dict[str, str]], realtime: bool) -> None:
        """For what the page shows late, and without `realtime_tokens_total` for how its gauges moved before."""
        off = {"bpf": {"enabled": False}, "gpu": {"enabled": False}, "state": {"file": "off"}}
        config = parse({**off, **sections}, "test")
        limit_s = float(config.findings.hung_after)
        world = World(Agent(config)._store, limit_s)
        last = 400
        page = lambda second: sglang((1, min(second, last), 0.001 * (min(second, last) // 2)), realtime=realtime)  # noqa: E731
        begins = int(last + limit_s + STALE_S)
        found = world.run(page, range(begins + 10))
        assert not any(found[:begins])
        assert all(found[begins:])

    def test_replicas_cannot_be_judged_without_their_tokens(self) -> None:
        page = lambda second: sglang((1, 0, 0.001 * second), (1, 0, 0.1))  # noqa: E731
        assert not any(World().run(page, range(100)))


class TestSglangFallsIdle:
    """Its last line before it falls idle has the requests that end with it, and that number stays for half a minute."""

    @pytest.mark.parametrize("flushed_s", [0, 30, 31, 32, 34])
    @pytest.mark.parametrize("in_step", [False, True])
    def test_all_of_it(self, flushed_s: int, in_step: bool) -> None:
        def page(second: int) -> str:
            now = min(second, 40)
            return sglang((3 * (second < 40 + flushed_s), 10 * now, 0.1), ended=now // 5, realtime=True, in_step=in_step)

        assert not any(World().run(page, range(160)))

    @pytest.mark.parametrize("flushed_s", [0, 30, 31, 32, 34])
    def test_one_replica_of_two(self, flushed_s: int) -> None:
        page = lambda second: sglang((1, second, 0.1), (int(second < 20 + flushed_s), min(second, 20), 0.1), realtime=True)  # noqa: E731
        assert not any(World().run(page, range(160)))

    def test_one_rank_of_two_that_compute_in_step(self) -> None:
        """As long as the other has requests it is not idle either, and what it said last stays on the page."""
        page = lambda second: sglang((1, second, 0.1), (1, min(second, 20), 0.1), realtime=True, in_step=True)  # noqa: E731
        assert not any(World().run(page, range(280)))

    def test_ranks_that_compute_in_step_hang_together(self) -> None:
        page = lambda second: sglang((1, min(second, 20), 0.1), (2, min(second, 20), 0.1), realtime=True, in_step=True)  # noqa: E731
        found = World().run(page, range(100))
        assert not any(found[:85])
        assert found[85] is not None
        assert found[85].severity == "critical"

    def test_an_old_one_may_never_say_so(self) -> None:
        """It moved with every step before, as one does whose silence means something."""

        def page(second: int) -> str:
            return sglang((1, 0, 0.1 + 0.001 * min(second, 60)), ended=min(second, 61) // 12, old=True)

        assert not any(World().run(page, range(280)))

    def test_an_old_one_that_is_stopped_is_found(self) -> None:
        world = World()
        world.processes = [ProcessState(10, "T", BEGIN_S + 60, 0.0)]
        found = world.run(lambda second: sglang((1, 0, 0.1), old=True), range(100))
        assert not any(found[:90])
        assert found[90] is not None
        assert found[90].severity == "critical"

    @pytest.mark.parametrize(("idle_s", "severity"), [(0, "critical"), (12, "warning"), (33, "warning")])
    def test_its_page_falls_silent_after_so_many_seconds_without_work(self, idle_s: int, severity: str) -> None:
        """Requests that the page still shows are in it only where they were at work just then."""
        world = World()
        world.run(lambda second: sglang((2, 10 * min(second, 60), 0.1), realtime=True), range(60 + idle_s))
        world.silent_s = BEGIN_S + 60 + idle_s
        found = [engine_hung(world.view, "e", world.silent_s + after) for after in range(100)]
        assert not any(found[:30])
        assert {each.severity for each in found[30:] if each is not None} == {severity}
        assert all(found[30:])


def llama_cpp(tokens: int, steps: int, running: int = 1) -> str:
    return (
        f"llamacpp:requests_processing {running}\nllamacpp:requests_deferred 0\nllamacpp:prompt_tokens_total 10\n"
        f"llamacpp:tokens_predicted_total {tokens}\nllamacpp:n_decode_total {steps}\n"
    )


def test_steps_of_llama_cpp_that_have_no_metric_are_signs_of_life() -> None:
    world = World()
    assert not any(world.run(lambda second: llama_cpp(100, second // 20), range(200)))
    found = world.run(lambda _: llama_cpp(100, 9), range(200, 260))
    last_move = 180
    assert found[last_move + 30 - 200] is not None
    assert found[-1] is not None
    assert found[-1].since_s == BEGIN_S + last_move


def tgi(steps: int) -> str:
    lines = ["tgi_batch_current_size 2", "tgi_request_generated_tokens_sum 90", "# TYPE tgi_batch_inference_duration histogram"]
    lines += [f'tgi_batch_inference_duration_bucket{{method="decode",le="{le}"}} {steps}' for le in ("1", "+Inf")]
    lines += [f'tgi_batch_inference_duration_{part}{{method="decode"}} {steps}' for part in ("sum", "count")]
    return "\n".join(lines) + "\n"


def test_steps_of_tgi_are_signs_of_life() -> None:
    assert not any(World().run(lambda second: tgi(1 + second // 10), range(100)))
