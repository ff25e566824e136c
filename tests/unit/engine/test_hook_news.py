"""What hooks are told: in order, by one thread at a time, and nobody waits for one that does not return."""

from __future__ import annotations

import logging
import threading

import pytest

from aie_engine.complaints import Complaints
from aie_engine.hook_news import MAX_WAITING, HookNews

WAIT_S = 60


@pytest.fixture
def news() -> HookNews:
    return HookNews(Complaints(logging.getLogger(__name__)))


def test_nothing_is_told_before_its_time_and_all_in_order(news: HookNews) -> None:
    heard: list[int] = []
    for number in range(5):
        news.add(heard.append, number)
    assert heard == []
    assert not news.told
    news.tell()
    assert heard == [0, 1, 2, 3, 4]
    assert news.told


def test_what_raises_is_logged_once_and_the_others_are_told(news: HookNews, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def torn() -> None:
        raise RuntimeError("torn")

    for _ in range(3):
        news.add(torn)
        news.add(heard.append, "x")
    news.tell()
    assert heard == ["x"] * 3
    assert len(caplog.records) == 1


def test_nobody_waits_for_a_call_that_does_not_return_and_what_waits_behind_it_is_bounded(
    news: HookNews, caplog: pytest.LogCaptureFixture
) -> None:
    begun, let_go, heard = threading.Event(), threading.Event(), []

    def hang() -> None:
        begun.set()
        assert let_go.wait(WAIT_S)

    news.add(hang)
    teller = threading.Thread(target=news.tell)
    teller.start()
    assert begun.wait(WAIT_S)
    for number in range(MAX_WAITING + 5):
        news.add(heard.append, number)
    news.tell()  # returns
    assert heard == []
    let_go.set()
    teller.join(WAIT_S)
    assert heard == list(range(MAX_WAITING))
    assert [record.getMessage()[:26] for record in caplog.records] == ["a hook does not return, an"]


def test_many_threads_tell_everything_once_and_each_in_its_order(news: HookNews) -> None:
    heard: list[tuple[int, int]] = []
    at_once = 0

    def hear(worker: int, number: int) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        heard.append((worker, number))
        at_once -= 1

    def work(worker: int) -> None:
        for number in range(500):
            news.add(hear, worker, number)
            news.tell()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert news.told  # though no thread waited for another
    assert len(heard) == 2000
    for worker in range(4):
        assert [number for who, number in heard if who == worker] == list(range(500))
