"""The analyser of drift: what hooks sent in, findings and metrics out; and all that is normal and is none."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from aie_agent.analysis.drift.analyser import Assigned, DriftAnalyser
from aie_agent.analysis.drift.reference import About, Aim, Reference, build
from aie_agent.analysis.findings import Limits, View
from aie_agent.request_values import STATISTICS, RequestValues
from aie_agent.samples import Batch, Point, Tags, Values
from aie_agent.store import Store
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import CATALOGUE, Kind

START_S = 1000.0
MEANS = {"entropy": 2.0, "surprisal": 1.8, "first_token_logsumexp": 20.0, "log_length": 4.0}
METRIC = {each.name: each.metric for each in STATISTICS}


def _answers(rng: random.Random, count: int, shifts: dict[str, float]) -> dict[str, list[float]]:
    return {name: [rng.gauss(mean + shifts.get(name, 0.0), 1.0) for _ in range(count)] for name, mean in MEANS.items()}


@pytest.fixture(scope="module")
def reference() -> Reference:
    return _reference()


def _reference(**about: str) -> Reference:
    return build(_answers(random.Random(1), 1000, {}), About(**({"model": "m"} | about)))


class World:
    """An engine `e` that serves the model `m` and is asked ten times a second."""

    def __init__(self, *references: Assigned, seed: int = 2) -> None:
        self.rng = random.Random(seed)
        self.store = Store(max_series=1000, retention_s=300.0)
        self.values = RequestValues()
        self.analyser = DriftAnalyser(references)
        self.now_s = START_S
        self.engines = ["e"]

    def view(self) -> View:
        return View(
            store=self.store,
            engines=self.engines,
            state=lambda _: "up",
            processes=lambda _: [],
            unanswered_since_s=lambda _: None,
            limits=Limits(),
            values=self.values.since,
        )

    def second(self, answers: dict[str, Sequence[float]], points: Sequence[Point] = (), model: str = "m") -> Sequence[Finding]:
        self.now_s += 1.0
        tags: Tags = (("engine", "e"), ("model", model))
        values = [Values(METRIC[name], tags, tuple(column)) for name, column in answers.items() if column]
        batch = Batch("statsd", self.now_s, list(points), values=values)
        self.store.apply(batch)
        self.values.take(batch)
        self.analyser.observe(self.view(), self.now_s)
        return self.analyser.findings(self.now_s)

    def requests(self, count: int, model: str = "m", **shifts: float) -> list[Sequence[Finding]]:
        """So many, ten a second; what was found after each second."""
        return [self.second(_answers(self.rng, 10, shifts), model=model) for _ in range(count // 10)]

    def info(self, revision: str) -> None:
        """The engine's page says which revision it serves."""
        labels = {"engine": "e", "model": "m", "kind": "aie", "version": "1", "revision": revision, "device": "cpu", "dtype": "f32"}
        point = Point("aie_engine_info", Kind.GAUGE, tuple(sorted(labels.items())), 1.0)
        self.store.apply(Batch("scrape:e", self.now_s, [point]))

    def metrics(self) -> dict[tuple[str, str], float]:
        """By name and statistic."""
        return {(point.name, dict(point.tags).get("statistic", "")): point.value for point in self.analyser.points(self.now_s)}


def _causes(found: Sequence[Finding]) -> list[str]:
    return [each.cause for each in found]


def test_normal_traffic_of_a_day_is_no_finding(reference: Reference) -> None:
    world = World(Assigned(reference))
    assert all(not found for found in world.requests(30_000))
    assert world.metrics()["aie_drift_windows_total", "entropy"] == 300


@pytest.mark.parametrize(
    ("shifts", "cause", "named"),
    [
        ({"first_token_logsumexp": 1.0}, "input_drift", ["first_token_logsumexp"]),
        ({"first_token_logsumexp": 1.0, "entropy": 1.0}, "input_drift", ["entropy", "first_token_logsumexp"]),
        ({"entropy": -1.0}, "output_drift", ["entropy"]),
        ({"log_length": 1.0, "surprisal": 1.0}, "output_drift", ["surprisal", "log_length"]),
    ],
)
def test_a_shift_is_named_by_what_shifted(reference: Reference, shifts: dict[str, float], cause: str, named: list[str]) -> None:
    world = World(Assigned(reference))
    world.requests(1000)
    found = world.requests(1000, **shifts)
    first = next(index for index, each in enumerate(found) if each)
    assert 49 <= first <= 59
    (finding,) = found[-1]
    assert (finding.cause, finding.subject, finding.severity) == (cause, "e", "warning")
    assert finding.since_s == START_S + 100 + 10, "when the first window of the alarm was complete"
    assert all(name in finding.summary for name in named)
    *shifted, rule = finding.evidence
    assert list(dict.fromkeys(each.text.split(" ")[0].rstrip(":") for each in shifted)) == named
    assert "days at the present rate, for traffic as it was while the reference was recorded, for an unknown time" in rule.text
    assert "a reference of 1000 requests" in rule.text
    assert all(each.metric in CATALOGUE for each in finding.evidence)
    assert finding.confidence is not None
    assert finding.confidence > 0.99


def test_where_more_is_asked_than_the_reference_was_made_for_it_says_that_chance_comes_sooner() -> None:
    aim = Aim(days=100_000, requests_per_second=0.1)
    world = World(Assigned(build(_answers(random.Random(1), 1000, {}), About(model="m"), aim)))
    (finding,) = world.requests(3000, entropy=1.0)[-1]
    said = next(each.text for each in finding.evidence if each.metric == "aie_drift_run_length_requests")
    assert (
        "(not the 100000 days that it was made for: 10 requests a second are looked at, not 0.1; make one with --rate 10)" in said
    )
    (shown,) = world.analyser.shown(["e"], world.now_s)
    assert shown.run_length_s is not None
    assert shown.promised_s is not None
    assert shown.run_length_s < shown.promised_s


def test_the_finding_ends_when_traffic_is_as_before(reference: Reference) -> None:
    world = World(Assigned(reference))
    world.requests(600, entropy=1.5)
    assert _causes(world.requests(10)[-1]) == ["output_drift"]
    found = world.requests(600)
    assert _causes(found[40]) == ["output_drift"]
    assert found[-1] == []


def test_nothing_is_said_of_traffic_that_ended(reference: Reference) -> None:
    world = World(Assigned(reference))
    assert world.requests(600, entropy=1.5)[-1]
    world.now_s += 3601
    assert world.second({}) == []
    assert world.metrics() == {}


PROMPT, LENGTH = "first_token_logsumexp", "log_length"


@pytest.mark.parametrize(
    ("varies", "severity", "said"),
    [
        ({PROMPT}, "critical", "the prompts differ"),
        ({PROMPT, LENGTH}, "critical", "the prompts differ"),
        (set(), "warning", "one prompt again and again"),
        ({LENGTH}, "warning", "one prompt again and again"),
    ],
)
def test_equal_answers_are_a_collapse(reference: Reference, varies: set[str], severity: str, said: str) -> None:
    world = World(Assigned(reference))
    for _ in range(12):
        answers = _answers(world.rng, 10, {})
        found = world.second({name: answers[name] if name in varies else [mean] * 10 for name, mean in MEANS.items()})
    assert [(each.cause, each.severity) for each in found] == [("output_collapse", severity)]
    assert "of the last 120 requests all have the same entropy and surprisal, 100 are too many" in found[0].evidence[0].text
    assert said in found[0].evidence[0].text
    metrics = world.metrics()
    alarms = [metrics["aie_drift_alarm", name] for name in ("entropy", "surprisal", PROMPT, LENGTH)]
    assert alarms == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("equal", [{LENGTH}, {PROMPT}, {LENGTH, PROMPT}, {"entropy"}, {"surprisal"}, {"entropy", LENGTH, PROMPT}])
def test_a_statistic_that_is_equal_alone_is_no_collapse(reference: Reference, equal: set[str]) -> None:
    world = World(Assigned(reference))
    for _ in range(40):
        answers = _answers(world.rng, 10, {})
        assert world.second({name: [MEANS[name]] * 10 if name in equal else answers[name] for name in MEANS}) == []
    assert all(value == 0.0 for (name, _), value in world.metrics().items() if name == "aie_drift_alarm")


def test_where_prompts_are_not_compared_equal_answers_are_a_warning() -> None:
    columns = _answers(random.Random(1), 1000, {})
    world = World(Assigned(build({name: columns[name] for name in ("entropy", "surprisal")}, About(model="m"))))
    for _ in range(12):
        found = world.second({name: [mean] * 10 for name, mean in MEANS.items()})
    assert [each.severity for each in found] == ["warning"]
    assert "whether prompts differ" in found[0].not_visible[0]


@pytest.mark.parametrize("narrow", [PROMPT, LENGTH])
def test_prompts_and_lengths_that_scatter_less_are_no_collapse(reference: Reference, narrow: str) -> None:
    world = World(Assigned(reference))
    for _ in range(110):
        answers = _answers(world.rng, 10, {})
        answers[narrow] = [world.rng.gauss(MEANS[narrow], 0.2) for _ in range(10)]
        found = world.second(answers)
    assert "output_collapse" not in _causes(found)
    assert world.metrics()["aie_drift_output_stability_ratio", narrow] < 0.4


def test_answers_that_scatter_less_are_a_collapse(reference: Reference) -> None:
    world = World(Assigned(reference))
    for _ in range(110):
        found = world.second({name: [world.rng.gauss(mean, 0.3) for _ in range(10)] for name, mean in MEANS.items()})
    collapse = next(each for each in found if each.cause == "output_collapse")
    assert collapse.severity == "warning"
    assert "scatter 0.29 times" in collapse.evidence[0].text
    assert world.metrics()["aie_drift_output_stability_ratio", "entropy"] < 0.4


def _dropped(count: float) -> Point:
    return Point("aie_hooks_dropped_total", Kind.COUNTER, (("engine", "e"), ("reason", "invalid")), count, delta=True)


@pytest.mark.parametrize("references", [True, False])
def test_nan_is_found_within_ten_answers_and_needs_no_reference(reference: Reference, references: bool) -> None:
    world = World(*([Assigned(reference)] if references else []))
    world.requests(100)
    found = [world.second({"log_length": [4.0] * 5}, [_dropped(15)]) for _ in range(3)]
    assert [_causes(each) for each in found] == [[], ["nan_logits"], ["nan_logits"]]
    (finding,) = found[-1]
    assert finding.severity == "critical"
    assert finding.since_s == START_S + 11
    assert "of the last 15 answers none has an entropy" in finding.evidence[0].text
    healthy = world.requests(700)
    assert healthy[30], "it is shown for a minute"
    assert healthy[-1] == []


def _lengths(number: int, count: int = 5) -> dict[str, list[float]]:
    return {"log_length": [4.0 + number / 100] * count}


def test_hooks_of_another_kind_that_drop_are_no_nan(reference: Reference) -> None:
    world = World(Assigned(reference))
    for number in range(30):
        assert world.second({"entropy": [2.0 + number / 100], **_lengths(number)}, [_dropped(15)]) == []
        assert world.second({}, [_dropped(15)]) == []


def test_an_engine_that_never_told_an_entropy_gives_no_nan(reference: Reference) -> None:
    world = World(Assigned(reference))
    assert all(world.second(_lengths(number), [_dropped(15)]) == [] for number in range(30))


def test_what_is_dropped_far_from_the_answers_is_of_something_else(reference: Reference) -> None:
    world = World(Assigned(reference))
    world.requests(100)
    for number in range(300):
        answers = _lengths(number, 1) if number % 30 == 15 else {}
        assert world.second(answers, [] if 4 <= number % 30 <= 26 else [_dropped(15)]) == []


def test_lengths_alone_while_nothing_is_dropped_are_no_nan(reference: Reference) -> None:
    world = World(Assigned(reference))
    world.requests(100)
    assert all(world.second(_lengths(number)) == [] for number in range(30))


def test_fewer_numbers_dropped_than_answers_came_are_no_nan(reference: Reference) -> None:
    world = World(Assigned(reference))
    world.requests(100)
    assert all(world.second(_lengths(number), [_dropped(1)]) == [] for number in range(30))


@pytest.mark.parametrize("restarted", ["agent", "engine"])
def test_a_restart_does_not_hide_nan(reference: Reference, restarted: str) -> None:
    world = World(Assigned(reference))
    world.requests(100)
    if restarted == "agent":
        state = msgspec.json.decode(msgspec.json.encode(world.analyser.dump()))
        world.analyser, world.values = DriftAnalyser([Assigned(reference)]), RequestValues()
        world.analyser.restore(state, world.now_s)
    else:
        world.engines = []
        world.second({})
        world.engines = ["e"]
    found = [world.second(_lengths(0), [_dropped(15)]) for _ in range(3)]
    assert _causes(found[-1]) == ["nan_logits"]


def test_rare_answers_without_numbers_are_nan(reference: Reference) -> None:
    world = World(Assigned(reference))
    world.requests(100)
    for number in range(300):
        found = world.second(_lengths(number, 1) if number % 30 == 15 else {}, [_dropped(9)] if number % 30 == 18 else [])
    assert _causes(found) == ["nan_logits"]


def test_nan_in_a_watched_layer_is_found_at_once() -> None:
    world = World()

    def layer(count: float) -> Point:
        tags = (("engine", "e"), ("layer", "l"), ("model", "m"))
        return Point("aie_engine_activation_nonfinite_total", Kind.COUNTER, tags, count, delta=True)

    assert world.second({}, [layer(0)]) == []
    (finding,) = world.second({}, [layer(7)])
    assert (finding.cause, finding.since_s) == ("nan_logits", START_S + 2)
    assert "7 values of watched layers" in finding.evidence[0].text


def test_an_engine_without_a_reference_is_not_compared_and_says_so(reference: Reference) -> None:
    world = World(Assigned(reference))
    world.requests(1000, model="n", entropy=5.0)
    assert world.analyser.findings(world.now_s) == []
    assert world.metrics() == {("aie_drift_watching", ""): 0.0}
    (state,) = world.analyser.shown(["e"], world.now_s)
    assert state.reason == "no reference for the model 'n' (there is one for: m)"


def test_an_engine_whose_hooks_send_nothing_says_so(reference: Reference) -> None:
    world = World(Assigned(reference))
    (state,) = world.analyser.shown(["e"], world.now_s)
    assert "its hooks send none" in state.reason
    assert world.metrics() == {}


def test_the_reference_that_names_the_engine_is_taken(reference: Reference) -> None:
    own = build(_answers(random.Random(5), 1000, {"entropy": 3.0}), About(model="m", traffic_class="own"))
    world = World(Assigned(reference), Assigned(own, "e"))
    assert world.requests(1500, entropy=3.0)[-1] == []
    world = World(Assigned(_reference(model="n"), "e"), Assigned(reference))
    world.requests(10)
    assert "there is one for: n" in world.analyser.shown(["e"], world.now_s)[0].reason, (
        "the engine's own is refused, and no other is taken for it"
    )


def test_a_reference_of_another_revision_is_refused() -> None:
    world = World(Assigned(_reference(revision="r1")))
    world.info("r2")
    world.requests(700, entropy=3.0)
    assert world.analyser.findings(world.now_s) == []
    assert "revision r1" in world.analyser.shown(["e"], world.now_s)[0].reason
    world.info("r1")
    assert world.requests(700)[-1] == []
    assert world.analyser.shown(["e"], world.now_s)[0].reason == ""


def test_of_two_revisions_that_a_rollout_keeps_the_served_one_is_taken() -> None:
    world = World(Assigned(_reference(revision="r1")), Assigned(_reference(revision="r2")))
    world.info("r2")
    world.requests(700)
    (shown,) = world.analyser.shown(["e"], world.now_s)
    assert shown.reason == ""
    world.info("r3")
    world.requests(10)
    assert "revision r1, r2 of the model" in world.analyser.shown(["e"], world.now_s)[0].reason


def test_of_two_classes_of_traffic_none_is_taken_until_the_engine_is_named() -> None:
    chat, code = _reference(traffic_class="chat"), _reference(traffic_class="code")
    world = World(Assigned(chat), Assigned(code))
    world.requests(10)
    (shown,) = world.analyser.shown(["e"], world.now_s)
    assert shown.reason == "2 references fit ('chat' of ?, 'code' of ?): say which is the engine's (drift.references = ENGINE=FILE)"
    world = World(Assigned(chat), Assigned(code, "e"))
    world.requests(10)
    assert world.analyser.shown(["e"], world.now_s)[0].reason == ""


def test_a_reference_that_can_compare_nothing_is_refused() -> None:
    walk, rng = [0.0], random.Random(1)
    for _ in range(1999):
        walk.append(0.99 * walk[-1] + rng.gauss(0, 1))
    world = World(Assigned(build({"entropy": walk}, About(model="m"))))
    world.requests(10)
    assert "nothing can be compared" in world.analyser.shown(["e"], world.now_s)[0].reason
    assert world.metrics() == {("aie_drift_watching", ""): 0.0}


def test_another_version_of_the_model_begins_anew(reference: Reference) -> None:
    world = World(Assigned(reference))
    world.info("r1")
    assert world.requests(600, entropy=1.5)[-1]
    world.now_s += 10
    world.info("r2")
    assert world.requests(400, entropy=1.5)[-1] == []
    assert world.metrics()["aie_drift_windows_total", "entropy"] == 4


def test_a_restart_of_the_agent_forgets_nothing(reference: Reference) -> None:
    world = World(Assigned(reference))
    world.requests(600)
    world.requests(350, entropy=1.5)
    state = msgspec.json.decode(msgspec.json.encode(world.analyser.dump()))
    world.analyser = DriftAnalyser([Assigned(reference)])
    world.values = RequestValues()
    world.analyser.restore(state, world.now_s)
    assert world.analyser.dump() == state, "also of those that were not heard since"
    found = world.requests(300, entropy=1.5)
    assert next(index for index, each in enumerate(found) if each) <= 24
    assert len(msgspec.json.encode(world.analyser.dump())) < 16_000


def test_a_state_for_another_reference_begins_anew(reference: Reference) -> None:
    world = World(Assigned(reference))
    world.requests(450, entropy=1.5)
    state = world.analyser.dump()
    world.analyser, world.values = DriftAnalyser([Assigned(_reference(sampling="other"))]), RequestValues()
    world.analyser.restore(state, world.now_s)
    world.requests(100, entropy=1.5)
    assert world.metrics()["aie_drift_windows_total", "entropy"] == 1


Change = Callable[[dict[str, Any]], object]

DAMAGE: tuple[Change, ...] = (
    lambda state: state.update(streams=3),
    lambda state: state["streams"].append(7),
    lambda state: state.update(told="e"),
    lambda state: state.update(told=[1]),
    lambda state: state["streams"][0].update(engine=None),
    lambda state: state["streams"][0].update(revision=1),
    lambda state: state["streams"][0]["watches"].pop("entropy"),
    lambda state: state["streams"][0]["watches"]["entropy"].update(taken="many"),
)


@pytest.mark.parametrize("change", DAMAGE)
def test_a_state_that_is_none_is_refused_and_leaves_a_usable_analyser(reference: Reference, change: Change) -> None:
    world = World(Assigned(reference))
    world.requests(250)
    state = msgspec.json.decode(msgspec.json.encode(world.analyser.dump()))
    change(state)
    world.analyser = DriftAnalyser([Assigned(reference)])
    with pytest.raises(ValueError, match=r"."):
        world.analyser.restore(state, world.now_s)
    assert world.requests(600, entropy=1.5)[-1]


def test_every_metric_is_in_the_catalogue_with_its_labels(reference: Reference) -> None:
    world = World(Assigned(reference))
    world.requests(1500)
    points = world.analyser.points(world.now_s)
    assert {point.name for point in points} == {
        name for name in CATALOGUE if name.startswith("aie_drift_") and "_canary_" not in name
    }
    for point in points:
        assert {label for label, _ in point.tags} == set(CATALOGUE[point.name].labels)
        assert point.kind is CATALOGUE[point.name].kind
    assert list(points[0].tags) == sorted(points[0].tags)


def test_the_same_views_give_the_same_findings(reference: Reference) -> None:
    def run() -> list[Sequence[Finding]]:
        world = World(Assigned(reference))
        return world.requests(500) + world.requests(700, surprisal=1.0)

    assert run() == run()


def test_a_flood_is_bounded_and_told(reference: Reference) -> None:
    world = World(Assigned(reference))
    tags: Tags = (("engine", "e"), ("model", "m"))
    batch = Batch("statsd", 1001.0, values=[Values(METRIC["entropy"], tags, (2.0,) * 1000, lost=500) for _ in range(100)])
    world.values.take(batch)
    world.analyser.observe(world.view(), 1001.0)
    metrics = world.metrics()
    assert metrics["aie_drift_values_total", "entropy"] == 20_000
    assert metrics["aie_drift_values_lost_total", "entropy"] == 10_000


def test_many_engines_are_bounded(reference: Reference) -> None:
    world = World(Assigned(reference))
    for number in range(200):
        tags: Tags = (("engine", f"e{number}"), ("model", "m"))
        world.values.take(Batch("statsd", 1001.0, values=[Values(METRIC["entropy"], tags, (2.0,))]))
        world.analyser.observe(world.view(), 1001.0 + number)
    assert len([key for key in world.analyser.points(1201.0) if key.name == "aie_drift_watching"]) == 64
