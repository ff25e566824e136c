"""Why the agent refuses StatsD input that the parser could read. `aie_telemetry.statsd.REASONS` has the parser's own reasons;
`docs/statsd.md` shows both."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """A value of the label `reason`, with a sentence for people. A row here is all that a new reason takes."""

    sentence: str

    def __new__(cls, value: str, sentence: str = "") -> Reason:
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.sentence = sentence
        return reason

    RESERVED_NAME = "reserved_name", "a name that begins with aie_ and is not in the catalogue, or is the agent's to say"
    KIND_CONFLICT = "kind_conflict", "the metric is known as another kind (counter, gauge, set, histogram)"
    BAD_LABELS = "bad_labels", "a metric aie_* with a label that the catalogue does not give it, or without a valid engine"
    SERIES_TOO_LONG = "series_too_long", "name and tags together are longer than 1024 characters"
    NEGATIVE_COUNTER = "negative_counter", "a counter cannot fall; send a gauge"
    BAD_HELLO = "bad_hello", "an aie_hooks_process line that is no gauge with a valid engine and pid"
    FOREIGN_HELLO = "foreign_hello", "a pid claimed from another host or an invisible pid namespace: only the engine's name counts"
    SENDER_LIMIT = "sender_limit", "more senders than are told apart at a time, or more than 32 engines known by name only"
    SERIES_LIMIT = "series_limit", "more series than are held; silent ones make room after 5 minutes"
    SERIES_SHARE = "series_share", "one sender (a process on the Unix socket; all of UDP together) holds half of the series already"
    SET_MEMBERS = "set_members", "more members of sets than are told apart in 10 seconds"
    NAME_TAKEN = "name_taken", "another engine of this host goes by that name; the sender's own is not known yet"
    EVENT_LIMIT = "event_limit", "more than 10 events of one engine, or 60 of all, in a minute"
    OVERFLOW = "overflow", "the sum of an interval was no finite number"
    PACKET_TRUNCATED = "packet_truncated", "a packet longer than 65536 bytes: its last line, which is cut, was left out"
