"""What comes in: command lines, URLs, bytes of agents. Bad ones give one clear sentence, no traceback."""

from __future__ import annotations

import agent_api as fake
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_top import commands
from aie_top.app import TopApp
from aie_top.cli import main, parse_interval
from aie_top.decode import LONGEST_TEXT, DecodeError, decode_snapshot
from aie_top.sse import Event, EventParser, TooLargeError
from aie_top.targets import Target, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("gpu-07", Target("http://gpu-07:9465")),
        ("gpu-07:80", Target("http://gpu-07:80")),
        ("[::1]", Target("http://[::1]:9465")),
        ("http://gpu-07", Target("http://gpu-07")),
        ("https://gpu-07/aie/", Target("https://gpu-07/aie")),
        ("https://me:p%40ss@gpu-07:1", Target("https://gpu-07:1", "me", "p@ss")),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "ftp://x", "http://", "x:99999", "x:port", "http://x/?a=b"])
def test_a_wrong_url_is_a_sentence_and_exit_2(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--once", "--connect", text])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("text", "seconds"), [("2s", 2.0), ("500ms", 0.5), ("1m", 60.0)])
def test_intervals(text: str, seconds: float) -> None:
    assert parse_interval(text) == seconds


@pytest.mark.parametrize("arguments", ["--interval 2h", "--interval 1ms", "--sort nothing", "--size 9x9", "--theme x", "--what"])
def test_a_wrong_option_is_one_line_and_exit_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_snapshot_reads_back() -> None:
    assert decode_snapshot(msgspec.json.encode(fake.troubled())) == fake.troubled()


def test_unknown_keys_are_passed_over() -> None:
    body = msgspec.json.encode(fake.healthy()).replace(b'{"version":1', b'{"new_in_1_1":{"x":[1]},"version":1', 1)
    assert decode_snapshot(body) == fake.healthy()


@pytest.mark.parametrize(("version", "advice"), [(2, "update aie-top"), (0, "update the agent")])
def test_another_version_says_what_to_update(version: int, advice: str) -> None:
    with pytest.raises(DecodeError, match=advice):
        decode_snapshot(msgspec.json.encode({"version": version, "all": "else differs"}))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_snapshot_or_a_sentence(body: bytes) -> None:
    with pytest.raises(DecodeError) as refused:
        decode_snapshot(body)
    assert str(refused.value).isprintable()


@given(st.text(max_size=40))
def test_no_name_moves_the_cursor(name: str) -> None:
    try:
        body = msgspec.json.encode(fake.snapshot(engines=(fake.engine(name),)))
    except UnicodeEncodeError:  # a lone surrogate: no agent can send it
        return
    cleaned = decode_snapshot(body).engines[0].name
    assert not any(c < " " or "\x7f" <= c <= "\x9f" or "\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069" for c in cleaned)


def texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in texts(part)]
    return [text for item in value for text in texts(item)] if isinstance(value, list | tuple) else []


def lengthened(value: object, more: str) -> object:
    """Every text of a snapshot but those that are one of a few words."""
    if isinstance(value, str):
        return value if value in ("up", "down", "waiting", "unknown", "critical", "warning", "info") else value + more
    if isinstance(value, dict):
        return {key: lengthened(item, more) for key, item in value.items()}
    return [lengthened(item, more) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("more", ["x" * 20_000, "é\n" * 10_000, "日本" * 10_000], ids=["ascii", "breaks", "wide"])
def test_every_text_is_clipped(more: str) -> None:
    body = msgspec.json.encode(lengthened(msgspec.to_builtins(fake.troubled()), more))
    whole = msgspec.json.decode(body)
    whole["agent"]["drops"] = {more: 1.0}
    read = texts(msgspec.to_builtins(decode_snapshot(msgspec.json.encode(whole))))
    assert max(map(len, read)) == LONGEST_TEXT
    assert "\n" not in "".join(read)


@pytest.mark.parametrize(
    ("sent", "instead", "field"),
    [
        (b'"uptime_s":11600.0', b'"uptime_s":null', "$.agent.uptime_s"),
        (b'"cpus":2', b'"cpus":1e999', "$.host.cpus"),
        (b'"cpus":2', b'"cpus":"two"', "$.host.cpus"),
        (b'"cpus":2', b'"cpus":' + b"9" * 400, "cpus"),
        (b'"state":"up"', b'"state":"' + b"x" * 5000 + b'"', "$.engines[0].state"),
    ],
    ids=["null", "float", "text", "long integer", "long text"],
)
def test_a_value_of_the_wrong_kind_is_named_by_its_field(sent: bytes, instead: bytes, field: str) -> None:
    body = msgspec.json.encode(fake.healthy())
    assert sent in body
    with pytest.raises(DecodeError) as refused:
        decode_snapshot(body.replace(sent, instead, 1))
    assert field in str(refused.value)
    assert len(str(refused.value)) < 200


def test_a_deeply_nested_body_is_no_crash() -> None:
    with pytest.raises(DecodeError):
        decode_snapshot(b'{"version": 1, "x": ' + b"[" * 100_000)


@given(st.lists(st.integers(1, 40), max_size=60))
def test_events_do_not_depend_on_where_chunks_end(cuts: list[int]) -> None:
    stream = b': hello\n\nevent: snapshot\r\ndata: {"a":\r\ndata: 1}\r\n\r\nretry: 3\ndata:x\n\n'
    parser, events, at = EventParser(1000), [], 0
    for cut in [*cuts, len(stream)]:
        events += list(parser.feed(stream[at : at + cut]))
        at += cut
    assert events == [Event("snapshot", b'{"a":\n1}'), Event("message", b"x")]


@pytest.mark.parametrize("chunk", [b"x" * 500, b"data: " + b"x" * 90 + b"\n"])
def test_an_endless_event_is_refused(chunk: bytes) -> None:
    parser = EventParser(1000)

    def feed_for_ever() -> None:
        for _ in range(100):
            list(parser.feed(chunk))

    with pytest.raises(TooLargeError):
        feed_for_ever()


def test_every_command_has_its_own_keys_and_a_method() -> None:
    keys = [key for command in commands.COMMANDS for key in command.keys]
    assert len(keys) == len(set(keys))
    for command in commands.COMMANDS:
        assert hasattr(TopApp, f"action_{command.action.partition('(')[0]}"), command


def test_the_hands_of_top_users_find_their_keys() -> None:
    by_key = {key: command.action for command in commands.COMMANDS for key in command.keys}
    wanted = {"q": "quit", "h": "help", "f1": "help", "question_mark": "help"}
    wanted |= {"p": "pause", "space": "pause", "s": "sort", "slash": "filter", "j": "move(1)", "k": "move(-1)"}
    assert {key: by_key[key] for key in wanted} == wanted
