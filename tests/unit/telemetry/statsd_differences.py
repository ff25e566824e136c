"""Where aie's StatsD input differs from Telegraf's and statsd_exporter's on purpose, and what of theirs it does not have.

`test_statsd_vectors.py` asserts every row; `python tests/unit/telemetry/statsd_differences.py` writes them into `docs/statsd.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aie_agent.sources.statsd_reasons import Reason
from aie_telemetry.statsd import REASONS, Sample

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "statsd.md"


@dataclass(frozen=True)
class Outcome:
    """All that the lines of one vector become, in order; `refusals` are keys of `REASONS`."""

    samples: tuple[Sample, ...] = ()
    refusals: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """One decision: what the others do, what we do, why, and what becomes of the vectors that show it. `agent_refuses` is for
    what no vector shows, because the parser reads it: lines, and why the agent does not take them."""

    input: str
    theirs: str
    ours: str
    reason: str
    outcomes: dict[int, Outcome]
    agent_refuses: dict[str, Reason] = field(default_factory=dict)


def _counter(name: str, value: float, tags: tuple[tuple[str, str], ...] = (), rate: float = 1.0) -> Sample:
    return Sample(name, "counter", value, tags, rate)


def _refused(reason: str) -> Outcome:
    return Outcome(refusals=(reason,))


_EVENT: Final = Outcome(ignored=("event",))
_CHECK: Final = Outcome(ignored=("service_check",))

DIFFERENCES: Final = (
    Difference(
        "`a:1.9|c`, `a:1.5|c|@0.5`",
        "Telegraf truncates a counter to an integer before it applies the rate: 1 and 2",
        "1.9 and 3",
        "Truncation loses up to one unit a line; seconds and joules are counters too.",
        {
            133: Outcome((_counter("a", 1.9),)),
            134: Outcome((_counter("a", 1.5, rate=0.5),)),
        },
    ),
    Difference(
        "`a:-1|c`",
        "Telegraf lets a counter fall. statsd_exporter refuses it",
        "refused as `negative_counter`",
        "Prometheus reads a counter that falls as a restart, and shows a jump. A level that falls is a gauge.",
        {},
        {"a:-1|c": Reason.NEGATIVE_COUNTER, "a:-0.5|c|@0.1|#x:y": Reason.NEGATIVE_COUNTER},
    ),
    Difference(
        "`a:1|ms|@0.3`",
        "Telegraf adds the value int(1/rate) times: 3. statsd_exporter makes as many events",
        "one sample of weight 1/rate: 3.33",
        "A rate is a weight and never a loop: no bias for rates that divide no integer, and no cost that a sender decides.",
        {
            136: Outcome((Sample("a", "timing", 1.0, rate=0.3),)),
            172: Outcome(tuple(Sample("foo_timing", "timing", value, (("tag1", "bar"),), 0.5) for value in (0.5, 120.0, 3000.0))),
        },
    ),
    Difference(
        "`a:1|c|@0`, `a:5|ms|@2`, `a:0|ms|@0.000000001`",
        "Telegraf ignores a rate of 0, stores nothing for one above 1 (its percentiles then read past an empty slice), and loops"
        " 1e9 times for 1e-9 (telegraf#18226). statsd_exporter ignores a rate of 0",
        "refused as `rate_range`",
        "A rate outside [1e-6, 1] is a sender's mistake, and any guess at its meaning is a wrong number.",
        {
            137: _refused("rate_range"),
            139: _refused("rate_range"),
            140: _refused("rate_range"),
            176: _refused("rate_range"),
        },
    ),
    Difference(
        "`a:1|c|T1656581400|@0.5`",
        "Telegraf looks for the rate in the third field only, and loses it here: 1",
        "the rate is read wherever it stands: 2",
        "DogStatsD's fields have no order.",
        {127: Outcome((_counter("a", 1.0, rate=0.5),))},
    ),
    Difference(
        "`a:1|g:bad|g:2|g`",
        "Telegraf stops at the first bad part: 1. statsd_exporter refuses the whole line for a bad part",
        "each bad part refuses itself only: 2",
        "What is good in a line does not depend on where it stands; the rest is counted.",
        {
            131: Outcome((Sample("a", "gauge", 1.0), Sample("a", "gauge", 2.0)), ("bad_value",)),
            181: Outcome((_counter("foo", 100.0, (("tag1", "value"),), 0.1),), ("no_type",)),
        },
    ),
    Difference(
        "`a:1:2:3|ms`",
        "Telegraf refuses DogStatsD's packed values in either dialect",
        "read in DogStatsD's dialect for ms, h and d; refused as `packed` in Telegraf's",
        "DogStatsD's protocol has them since version 1.1, and they save most of a packet.",
        {124: Outcome(tuple(Sample("a", "timing", value) for value in (1.0, 2.0, 3.0)))},
    ),
    Difference(
        "`test.distribution:1|d`",
        "Telegraf drops distributions unless two of its options are set",
        "read like a histogram in both dialects",
        "A value that was sent is shown; there is no option to forget.",
        {35: Outcome((Sample("test_distribution", "distribution", 1.0),))},
    ),
    Difference(
        "`:1|c`",
        "Telegraf accepts an empty name",
        "refused as `empty_name`",
        "Prometheus has no such metric, and nobody could find it. statsd_exporter refuses it too.",
        {145: _refused("empty_name")},
    ),
    Difference(
        "`a,metric_type=x:1|c`",
        "Telegraf adds a tag `metric_type` to every metric, over one that was sent",
        "no tag is added, and this one is kept",
        "The type is a field of the sample, not a label.",
        {148: Outcome((_counter("a", 1.0, (("metric_type", "x"),)),))},
    ),
    Difference(
        "`a:1|c|#,a:1`",
        "Telegraf makes a tag with an empty name",
        "an empty place in the list is passed over",
        "Clients leave one behind when they join an empty list; Prometheus has no label without a name.",
        {152: Outcome((_counter("a", 1.0, (("a", "1"),)),))},
    ),
    Difference(
        "`a:1|c|#k:v|c:f76b5a1c`",
        "Telegraf and statsd_exporter can keep DogStatsD's container id as a tag",
        "never kept; nor are external data, cardinality and time stamps",
        "It names a container once and never again: a series for each. The kernel tells whose the packet is.",
        {
            79: Outcome((_counter("my_counter", 1.0, (("host", "localhost"),)),)),
            179: Outcome((_counter("foo", 100.0, (("tag1", "value"),)),)),
            182: Outcome((_counter("requests", 100.0, (("service", "web"),), 0.1),)),
        },
    ),
    Difference(
        "`_sc|my.check|0`",
        "Telegraf makes metrics of DogStatsD's service checks",
        "ignored, and counted in `aie_agent_statsd_ignored_total`; a malformed one is refused as `bad_service_check`",
        "They carry no number.",
        {94: _CHECK, 95: _CHECK, 97: _CHECK, 98: _CHECK},
    ),
    Difference(
        "`a:+10|h`, `a:-1|h`",
        "Telegraf refuses a sign with anything but a counter or a gauge",
        "read for h and d, as DogStatsD does; with ms it is refused as `bad_sign`",
        "What is distributed may be negative, a logarithm for one. A time is not.",
        {46: Outcome((Sample("invalid_plus_minus_non_gauge", "histogram", 10.0),))},
    ),
    Difference(
        "`_e{5,4}:title|text`",
        "Telegraf makes metrics of DogStatsD's events",
        "ignored, and counted in `aie_agent_statsd_ignored_total`, but for those of aie's hooks, whose title begins with `aie.`; a"
        " malformed one is refused as `bad_event`",
        "They carry no number. What hooks tell of (out of memory) the agent keeps and shows.",
        {104: _EVENT, 106: _EVENT, 107: _EVENT, 121: _EVENT, 122: _EVENT},
    ),
    Difference(
        "`foo#tag1=bar,tag2=baz:100|c`, `[tag1=bar]foo:100|c`",
        "statsd_exporter reads Librato's and SignalFx's tags",
        "`#` and `[` are characters of the name",
        "Nobody asked for them; two dialects are enough to confuse a reader.",
        {
            163: Outcome((_counter("foo#tag1=bar", 100.0, (("tag2", "baz"),)),)),
            166: Outcome((_counter("[tag1=bar", 100.0, (("tag2", "bazfoo.test"),)),)),
        },
    ),
    Difference(
        "`foo,09digits=0,tag.with.dots=1:100|c`",
        "statsd_exporter makes Prometheus label names of tag names while it reads",
        "kept as sent, and escaped where they leave for Prometheus",
        "The relay passes on what was sent.",
        {164: Outcome((_counter("foo", 100.0, (("09digits", "0"), ("tag.with.dots", "1"))),))},
    ),
    Difference(
        "`foo:100|c|#live,tag:value`",
        "statsd_exporter drops a tag without a value",
        'its value is "true", as in Telegraf',
        "Telegraf is the reference where the two disagree.",
        {167: Outcome((_counter("foo", 100.0, (("tag", "value"), ("tag_without_a_value", "true"))),))},
    ),
    Difference(
        "`foo,tag1=foo:100|c|#tag1:bar`",
        "statsd_exporter refuses both styles of tags in one line",
        "both are read, and DogStatsD's win, as in Telegraf",
        "Telegraf is the reference where the two disagree.",
        {170: Outcome((_counter("foo", 100.0, (("tag1", "bar"),)),))},
    ),
    Difference(
        "`foo:1|s`",
        "statsd_exporter refuses sets",
        "read, as in Telegraf",
        "Telegraf is the reference where the two disagree.",
        {185: Outcome((Sample("foo", "set", "1"),))},
    ),
)

_TEMPLATES: Final = "Graphite templates: tags say the same"
_DELETION: Final = "deletion between flushes: aie's series live in the agent's store, whose own tests say how long"
_PERCENTILES: Final = "percentiles computed by the server: aie keeps histograms"
_SANITIZE: Final = "a second way to clean names: where a name leaves for Prometheus there is one"

NOT_APPLICABLE: Final[dict[int, str]] = {
    26: "aggregation temporality: an option of Telegraf's output",
    28: _PERCENTILES,
    29: _TEMPLATES,
    32: _DELETION,
    34: _PERCENTILES,
    56: "another separator for names",
    58: _TEMPLATES,
    61: _TEMPLATES,
    62: _TEMPLATES,
    64: _SANITIZE,
    65: _SANITIZE,
    67: _SANITIZE,
    86: _DELETION,
    88: _DELETION,
    89: _DELETION,
    92: "StatsD over TCP: aie listens on datagram sockets only",
    155: _SANITIZE,
}


def differences_markdown() -> str:
    """The deliberate differences as a table."""
    rows = [f"| {_cell(d.input)} | {_cell(d.theirs)} | {_cell(d.ours)} | {_cell(d.reason)} |\n" for d in DIFFERENCES]
    return "| input | theirs | aie | why |\n| --- | --- | --- | --- |\n" + "".join(rows)


def absent_markdown() -> str:
    """What Telegraf has and aie does not, as a list."""
    return "".join(f"* {reason[0].upper()}{reason[1:]}.\n" for reason in dict.fromkeys(NOT_APPLICABLE.values()))


def reasons_markdown() -> str:
    """Why the parser refuses a line or a part of one, as a table."""
    return _reasons_table(REASONS)


def agent_reasons_markdown() -> str:
    """Why the agent refuses what the parser could read, as a table."""
    return _reasons_table({str(reason): reason.sentence for reason in Reason})


def _reasons_table(sentences: Mapping[str, str]) -> str:
    return "| reason | meaning |\n| --- | --- |\n" + "".join(f"| `{key}` | {_cell(text)} |\n" for key, text in sentences.items())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


SECTIONS: Final = {
    "differences": differences_markdown,
    "absent": absent_markdown,
    "reasons": reasons_markdown,
    "agent reasons": agent_reasons_markdown,
}


def with_sections(document: str) -> str:
    """`document` with what stands between the marks of each section written anew. Raises ValueError without the marks."""
    for name, render in SECTIONS.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
        before, found_begin, rest = document.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found_begin and found_end):
            raise ValueError(f"{DOCUMENT.name} lacks {begin.strip()} or {end.strip()}")
        document = before + begin + render() + end + after
    return document


if __name__ == "__main__":
    DOCUMENT.write_text(with_sections(DOCUMENT.read_text()))
