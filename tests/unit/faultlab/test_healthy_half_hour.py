"""What is printed of the healthy half hour when something is found in it, and when its agent falls silent before its end."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from bench import healthy_half_hour

from aie_telemetry.api import Evidence, Finding
from tests.faultlab import lab
from tests.faultlab.host_load import Load
from tests.faultlab.programs import SilentError

HUNG = Finding(
    cause="engine_hung",
    subject="engine",
    severity="critical",
    since_s=0.0,
    summary="the engine does nothing",
    evidence=(Evidence(text="0 tokens in 30 s", metric="aie_engine_tokens_total"),),
)
Says = tuple[tuple[Finding, ...] | None, ...]


@contextlib.contextmanager
def world_whose_agent_says(says: Says, *_: object) -> Iterator[SimpleNamespace]:
    """One thing a look, the last of them for ever; None is silence."""
    left = list(says)

    def findings() -> tuple[Finding, ...]:
        now = left.pop(0) if len(left) > 1 else left[0]
        if now is None:
            raise SilentError("the agent does not answer, in 15 s:\nits last line")
        return now

    clients = SimpleNamespace(
        send=lambda _: None,
        instead=lambda _: contextlib.nullcontext(),
        flood=lambda _: contextlib.nullcontext(),
        outcomes=Counter({"200": 7}),
    )
    yield SimpleNamespace(load=1.0, lacks={}, clients=clients, host=SimpleNamespace(lately=Load), findings=findings)


@pytest.mark.parametrize(
    ("says", "status", "told"),
    [
        (((),), 0, "\n2 healthy minutes: 0 false alarms; answers: 7 x 200\n"),
        (((HUNG,), ()), 1, "\n2 healthy minutes: 1 false alarms; answers: 7 x 200\n"),
        (((HUNG,), None), 2, "\nnot all of 2 healthy minutes: 1 false alarms; answers: 7 x 200\n"),
        (((), None), 2, "\nnot all of 2 healthy minutes: 0 false alarms; answers: 7 x 200\n"),
    ],
)
def test_what_was_found_is_printed_whatever_ends_it(
    says: Says, status: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(healthy_half_hour, "World", lambda *_: world_whose_agent_says(says))
    monkeypatch.setattr(healthy_half_hour, "MINUTE_S", 0.02)
    monkeypatch.setattr(lab, "LOOK_S", 0.01)
    assert healthy_half_hour.main(["--minutes", "2"]) == status
    printed = capsys.readouterr()
    assert printed.out.endswith(told)
    found = "minute 1, short questions: engine_hung (engine): the engine does nothing\n  0 tokens in 30 s (aie_engine_tokens_total)"
    assert (found in printed.out) == any(said and HUNG in said for said in says)
    assert ("its last line" in printed.err) == (None in says)
