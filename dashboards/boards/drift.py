"""Whether a model's answers, or what it is asked, have changed."""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.boards.engine import percentiles
from dashboards.table import HEALTHY, Board, Column, Query, Row, Situation, Step, Word, lines, nothing_here, stat, table, timeline

_OF: Final = "instance, engine, model, statistic"
_OF_MODEL: Final = "{{engine}} {{model}} ({{instance}})"
_NAME: Final = f"{{{{statistic}}}}: {_OF_MODEL}"
_HOOKED: Final = "needs aie_hooks' LogitsHooks in the engine, and a reference of its model: docs/drift.md"
_OF_CANARY: Final = "instance, engine, model, canary"
_CANARY_NAME: Final = f"{{{{canary}}}}: {_OF_MODEL}"
_NO_CANARY: Final = "no canary runs in the engine, or fewer than twenty runs are known: docs/drift.md"
_RUNBOOKS: Final = ("output_drift", "input_drift", "output_collapse")
_ALARM: Final = (("0", Word("as in the reference", "green")), ("1", Word("alarm", "red")))
_COUNTS: Final = f"{p.by(_OF, p.of('aie_drift_consecutive_windows', p.MODEL), 'max')} > 0"
_H: Final = Situation.HOOKS

_ANSWER: Final = Row(
    "",
    (
        stat(
            "Alarms",
            "Has any statistic of answers changed for five windows in a row, or a canary for three runs?",
            "none",
            Query(p.by("", p.of("aie_drift_alarm", p.MODEL)), "statistics {{job}}"),
            Query(p.by("", p.of("aie_drift_canary_alarm", p.MODEL)), "canaries {{job}}"),
            steps=HEALTHY,
            situation=_H,
            empty=_HOOKED,
        ),
        stat(
            "Compared with a reference",
            "How many engines and models are watched?",
            "none",
            Query(p.by("", p.of("aie_drift_watching", p.MODEL)), "{{job}}"),
            situation=_H,
            empty=_HOOKED,
            runbooks=("AieDriftNotWatched",),
        ),
        stat(
            "Answers looked at a second",
            "Is there enough to see a change by? A window is 100 of them.",
            "short",
            Query(p.by("", f"max by (job, instance, engine, model) ({p.rate('aie_drift_values_total', p.MODEL)})"), "{{job}}"),
            situation=_H,
            empty=_HOOKED,
        ),
        stat(
            "False alarm once in",
            "How long must one wait for an alarm where nothing changed?",
            "s",
            Query(p.by("", p.of("aie_drift_run_length_seconds", p.MODEL), "min"), "{{job}}"),
            situation=_H,
            empty=_HOOKED,
        ),
        stat(
            "NaN and infinite values",
            "Did watched layers put out what is no number, in the time shown?",
            "none",
            Query(p.by("", p.increase("aie_engine_activation_nonfinite_total", p.MODEL)), "{{job}}"),
            steps=HEALTHY,
            situation=_H,
            empty="needs aie_hooks' ModuleHooks on a model of torch modules",
        ),
        stat(
            "Answers not looked at",
            "Which share came faster than 1000 a second, and was passed over?",
            "percentunit",
            Query(
                p.share(
                    p.total("aie_drift_values_lost_total", "", p.MODEL),
                    f"({p.total('aie_drift_values_lost_total', '', p.MODEL)} + {p.total('aie_drift_values_total', '', p.MODEL)})",
                ),
                "{{job}}",
            ),
            situation=_H,
            empty=_HOOKED,
        ),
        table(
            "What has changed",
            "Which statistic is how far from its reference?",
            Query(_COUNTS),
            Query(p.among(p.by(_OF, p.of("aie_drift_distance_ratio", p.MODEL), "max"), _OF, _COUNTS)),
            Query(p.among(p.by(_OF, p.of("aie_drift_threshold_ratio", p.MODEL), "max"), _OF, _COUNTS)),
            Query(p.among(p.by(_OF, p.of("aie_drift_outside_ratio", p.MODEL), "max"), _OF, _COUNTS)),
            Query(p.among(p.by(_OF, p.of("aie_drift_unseen_ratio", p.MODEL), "max"), _OF, _COUNTS)),
            columns=(
                Column(
                    "Value #A",
                    "windows in a row",
                    width=140,
                    steps=(Step(None, "green"), Step(1, "yellow"), Step(3, "orange"), Step(5, "red")),
                ),
                Column("statistic", "statistic"),
                Column("engine", "engine"),
                Column("model", "model"),
                Column("Value #B", "distance", unit="percentunit", width=110),
                Column("Value #C", "counts from", unit="percentunit", width=110),
                Column("Value #D", "outside", unit="percentunit", width=90),
                Column("Value #E", "beyond all", unit="percentunit", width=100),
                Column("instance", "instance", link="host"),
                Column("job", "job", width=140),
            ),
            sort="windows in a row",
            situation=_H,
            empty="nothing has changed",
            trouble=True,
            height=7,
        ),
        timeline(
            "Alarms over time",
            "Since when is it different?",
            Query(p.by(_OF, p.of("aie_drift_alarm", p.MODEL), "max"), _NAME),
            words=_ALARM,
            situation=_H,
            empty=_HOOKED,
            runbooks=_RUNBOOKS,
        ),
    ),
)

_DISTANCE: Final = Row(
    "How far from the reference",
    (
        lines(
            "Distance over its threshold",
            "How far is the last window of 100 answers from the reference? From 1 on it counts; five in a row are an alarm.",
            "none",
            Query(
                f"{p.by(_OF, p.of('aie_drift_distance_ratio', p.MODEL), 'max')}"
                f" / ({p.by(_OF, p.of('aie_drift_threshold_ratio', p.MODEL), 'max')} > 0)",
                _NAME,
            ),
            steps=(Step(None, "transparent"), Step(1, "red")),
            width=12,
            situation=_H,
            empty=_HOOKED,
            runbooks=_RUNBOOKS,
        ),
        lines(
            "Windows in a row",
            "How near is an alarm? Chance brings one window in a hundred, and hardly ever two.",
            "none",
            Query(p.by(_OF, p.of("aie_drift_consecutive_windows", p.MODEL), "max"), _NAME),
            steps=(Step(None, "transparent"), Step(5, "red")),
            width=12,
            situation=_H,
            empty=_HOOKED,
            runbooks=_RUNBOOKS,
        ),
        lines(
            "Outside the reference",
            "Which share of answers is beyond what the reference hardly had, and far beyond all of it? 2 % and none are expected.",
            "percentunit",
            Query(p.by(_OF, p.of("aie_drift_outside_ratio", p.MODEL), "max"), _NAME),
            Query(p.by(_OF, p.of("aie_drift_unseen_ratio", p.MODEL), "max"), f"beyond all: {_NAME}"),
            width=8,
            situation=_H,
            empty=_HOOKED,
        ),
        lines(
            "Scatter of answers",
            "Do answers scatter as they did? 1 is as in the reference; near 0 the model says the same to everything.",
            "none",
            Query(p.by(_OF, p.of("aie_drift_output_stability_ratio", p.MODEL), "max"), _NAME),
            steps=(Step(None, "transparent"), Step(1, "green")),
            width=8,
            situation=_H,
            empty=f"takes 1000 answers; {_HOOKED}",
            runbooks=("output_collapse",),
        ),
        lines(
            "Windows that counted",
            "Which share of windows counted? One in a hundred is expected where nothing changed.",
            "percentunit",
            Query(
                p.share(
                    p.total("aie_drift_windows_beyond_total", _OF, p.MODEL),
                    p.total("aie_drift_windows_total", _OF, p.MODEL),
                ),
                _NAME,
            ),
            width=8,
            situation=_H,
            empty="no window was complete lately",
        ),
    ),
)

_CANARY: Final = Row(
    "The canary: one question, asked again and again",
    (
        lines(
            "Distance from its level, of what may be",
            "Is the model still the one that it was? From 1 on a run counts, and three in a row are an alarm.",
            "none",
            Query(
                p.share(
                    p.by(
                        _OF_CANARY,
                        f"abs({p.of('aie_engine_canary_logprob_nats', p.MODEL)} - {p.of('aie_drift_canary_level_nats', p.MODEL)})",
                        "max",
                    ),
                    p.by(_OF_CANARY, p.of("aie_drift_canary_limit_nats", p.MODEL), "max"),
                ),
                _CANARY_NAME,
            ),
            steps=(Step(None, "transparent"), Step(1, "red")),
            width=12,
            situation=_H,
            empty=_NO_CANARY,
            runbooks=("output_drift",),
        ),
        lines(
            "Runs of the canary",
            "Does it run, and does it give a number?",
            "short",
            Query(
                p.total("aie_engine_canary_runs_total", f"{_OF_CANARY}, outcome", p.MODEL),
                f"{{{{outcome}}}} {_CANARY_NAME}",
            ),
            words=(("ok", Word("", "green")), ("nonfinite", Word("", "red")), ("failed", Word("", "orange"))),
            width=12,
            situation=_H,
            empty=_NO_CANARY,
            runbooks=("nan_logits",),
        ),
        timeline(
            "Canary alarms over time",
            "Since when is the model another one?",
            Query(p.by(_OF_CANARY, p.of("aie_drift_canary_alarm", p.MODEL), "max"), _CANARY_NAME),
            words=(("0", Word("the same", "green")), ("1", Word("alarm", "red"))),
            situation=_H,
            empty=_NO_CANARY,
            runbooks=("output_drift",),
        ),
    ),
)

_VALUES: Final = Row(
    "The answers themselves",
    (
        percentiles(
            "Entropy of answers",
            "How sure is the model of what it says? Higher is less sure.",
            "aie_engine_output_entropy_nats",
            "none",
            by_model=True,
            situation=_H,
            empty=_HOOKED,
        ),
        percentiles(
            "Surprisal of answers",
            "How unlikely does the model find what it says?",
            "aie_engine_output_surprisal_nats",
            "none",
            by_model=True,
            situation=_H,
            empty=_HOOKED,
        ),
        percentiles(
            "First token, log-sum-exp",
            "Has what the model is asked changed, or its weights?",
            "aie_engine_first_token_logsumexp_nats",
            "none",
            signed=True,
            by_model=True,
            situation=_H,
            empty=_HOOKED,
        ),
        lines(
            "Activations, largest magnitude",
            "Does any watched layer put out ever larger values?",
            "short",
            Query(
                p.by("instance, engine, model, layer", p.of("aie_engine_activation_max_abs", p.MODEL), "max"),
                f"{{{{layer}}}} {_OF_MODEL}",
            ),
            width=12,
            situation=_H,
            empty="needs aie_hooks' ModuleHooks on a model of torch modules",
            runbooks=("nan_logits",),
        ),
        lines(
            "Activations, standard deviation",
            "Does any watched layer go silent, or wild?",
            "short",
            Query(
                p.by("instance, engine, model, layer", p.of("aie_engine_activation_std", p.MODEL), "max"),
                f"{{{{layer}}}} {_OF_MODEL}",
            ),
            width=12,
            situation=_H,
            empty="needs aie_hooks' ModuleHooks on a model of torch modules",
        ),
    ),
)

_NOTHING: Final = nothing_here(
    "Drift needs `LogitsHooks` of `aie_hooks` in the engine, which send a few numbers of sampled answers; and a reference, which is"
    " recorded while all is well.",
    "`docs/instrument-your-engine.md` shows the first, `docs/drift.md` the second: `aie-agent baseline build`.",
    "Answers are compared by the hundred: with little traffic, or few of them sampled, the first window takes a while.",
)

DRIFT: Final = Board(
    "drift",
    "aie / Drift",
    "Has what a model says, or what it is asked, changed?",
    ("job", "instance", "engine", "model"),
    (_ANSWER, _DISTANCE, _CANARY, _VALUES, _NOTHING),
    range="now-6h",
)
