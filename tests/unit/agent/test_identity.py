"""What an engine is: names from several origins, merged by process."""

from __future__ import annotations

import pytest

from aie_agent.identity import Engines, Home, Origin
from aie_agent.namesakes import ProcessId


class Host:
    """Processes that live and die: tgid -> start ticks."""

    def __init__(self, **_: int) -> None:
        self.alive: dict[int, int] = {}

    def start_ticks(self, tgid: int) -> int | None:
        return self.alive.get(tgid)


def make(**alive: int) -> tuple[Engines, Host]:
    host = Host()
    host.alive = {int(tgid.removeprefix("t")): ticks for tgid, ticks in alive.items()}
    return Engines(host.start_ticks), host


def test_configuration_wins_the_name_whoever_came_first() -> None:
    for order in ((Origin.STATSD, Origin.CONFIG), (Origin.CONFIG, Origin.STATSD)):
        engines, _ = make(t10=5)
        names = {Origin.STATSD: "hooks-name", Origin.CONFIG: "chat"}
        for origin in order:
            engines.declare(names[origin], origin, 10)
        assert engines.names() == ["chat"], order
        assert engines.processes("chat") == [ProcessId(10, 5)]
        assert engines.canonical("hooks-name") == "chat"


def test_a_restarted_engine_keeps_the_name_that_the_configuration_gave() -> None:
    engines, host = make(t10=5)
    engines.declare("chat", Origin.CONFIG, 10)
    engines.declare("hooks-name", Origin.STATSD, 10)
    host.alive = {11: 9}
    engines.prune(0.0)
    engines.declare("hooks-name", Origin.STATSD, 11)
    assert engines.names() == ["chat"]
    assert engines.processes("chat") == [ProcessId(11, 9)]


def test_a_reused_tgid_is_another_process() -> None:
    engines, host = make(t10=5)
    engines.declare("a", Origin.STATSD, 10)
    host.alive = {10: 77}
    assert engines.prune(0.0) == ["a"]
    assert engines.state("a") == "down"
    engines.declare("b", Origin.STATSD, 10)
    assert engines.processes("b") == [ProcessId(10, 77)]


def test_who_was_just_seen_alive_is_not_looked_at_again() -> None:
    looked: list[int] = []
    alive = {10: 5, 11: 6, 12: 7}
    engines = Engines(lambda tgid: looked.append(tgid) or alive.get(tgid))  # type: ignore[func-returns-value]
    for tgid in alive:
        engines.declare("a", Origin.STATSD, tgid)
    looked.clear()
    del alive[12]
    assert engines.prune(0.0, {ProcessId(10, 5), ProcessId(11, 99)}) == []
    assert sorted(looked) == [11, 12], "the one of another start time is another process"
    assert engines.processes("a") == [ProcessId(10, 5), ProcessId(11, 6)]


def test_states() -> None:
    engines, host = make(t10=5)
    assert engines.state("a") == "unknown"
    engines.declare("a", Origin.CONFIG)
    assert engines.state("a") == "unknown"
    engines.declare("a", Origin.CONFIG, 10)
    assert engines.state("a") == "up"
    host.alive = {}
    assert engines.prune(1.0) == ["a"]
    assert engines.prune(2.0) == []
    assert engines.state("a") == "down"


@pytest.mark.parametrize(("away_s", "back_s"), [(Engines.AWAY_S - 1, None), (Engines.AWAY_S, 1.0 + Engines.AWAY_S)])
def test_who_is_back_after_minutes_is_told_from_who_is_started_again(away_s: float, back_s: float | None) -> None:
    engines, host = make(t10=5)
    engines.declare("a", Origin.CONFIG, 10)
    host.alive = {}
    engines.prune(1.0)
    host.alive = {10: 8}
    engines.declare("a", Origin.CONFIG, 10)
    engines.prune(1.0 + away_s)
    assert (engines.state("a"), engines.down_since_s("a"), engines.back_since_s("a")) == ("up", None, back_s)
    assert engines.back_since_s("other") is None


def test_unnamed_engines_that_are_gone_are_forgotten_in_the_end() -> None:
    engines, host = make(t10=5, t11=5)
    engines.declare("configured", Origin.CONFIG, 10)
    engines.declare("announced", Origin.STATSD, 11)
    host.alive = {}
    engines.prune(0.0)
    engines.prune(Engines.FORGET_DOWN_AFTER_S + 1)
    assert engines.names() == ["configured"]


def test_caps() -> None:
    engines, _ = make(**{f"t{tgid}": 1 for tgid in range(1, 400)})
    for index in range(Engines.MAX_ENGINES):
        assert engines.declare(f"e{index}", Origin.STATSD) == f"e{index}"
    assert engines.declare("one too many", Origin.STATSD) is None
    assert engines.refused == 1
    admitted = [engines.declare("e0", Origin.STATSD, tgid) for tgid in range(1, 400)]
    assert admitted.count("e0") == Engines.MAX_PROCESSES


def test_a_process_that_is_gone_declares_nothing() -> None:
    engines, _ = make()
    assert engines.declare("ghost", Origin.STATSD, 4242) is None
    assert engines.names() == []


def test_two_engines_of_one_process_stay_two() -> None:
    engines, _ = make(t10=5)
    assert engines.declare("a", Origin.STATSD, 10) == "a"
    assert engines.declare("b", Origin.STATSD, 10) == "b"
    assert engines.names() == ["a", "b"]
    assert engines.canonical("b") == "b"
    engines.declare("chat", Origin.CONFIG, 10)
    assert sorted(engines.names()) == ["a", "b", "chat"], "which of the two the configuration means cannot be known"


def test_another_engine_that_uses_a_name_that_was_replaced_keeps_it() -> None:
    engines, host = make(t10=5)
    engines.declare("chat", Origin.CONFIG, 10)
    engines.declare("b", Origin.STATSD, 10)
    assert engines.canonical("b") == "chat"
    host.alive[11] = 6
    assert engines.declare("b", Origin.STATSD, 11) == "b", "chat lives, and this is none of its processes"
    assert engines.processes("b") == [ProcessId(11, 6)]


def test_an_engine_whose_process_cannot_be_known_is_there_all_the_same() -> None:
    engines, _ = make()
    assert engines.declare("far", Origin.STATSD) == "far"
    assert engines.state("far") == "unknown"


def test_nothing_may_be_current_under_the_name_of_a_dead_or_replaced_engine() -> None:
    engines, host = make(t10=5)
    engines.declare("hooks-name", Origin.STATSD, 10)
    engines.declare("chat", Origin.CONFIG, 10)
    assert engines.silent() == ["hooks-name"]
    host.alive = {}
    engines.prune(0.0)
    assert engines.silent() == ["chat", "hooks-name"]


def test_names_without_a_process_are_forgotten_when_they_fall_silent() -> None:
    engines, _ = make()
    engines.declare("far", Origin.STATSD)
    engines.declare("configured", Origin.CONFIG)
    for now_s in (0.0, 200.0):
        engines.declare("far", Origin.STATSD)
        engines.prune(now_s)
    assert "far" in engines.names()
    engines.prune(200.0 + Engines.FORGET_UNSEEN_AFTER_S + 1)
    assert engines.names() == ["configured"]


def test_one_process_cannot_fill_the_table_with_names() -> None:
    engines, _ = make(t10=5)
    taken = [engines.declare(f"e{index}", Origin.STATSD, 10) for index in range(100)]
    assert sum(name is not None for name in taken) == Engines.MAX_NAMES_OF_A_PROCESS
    assert engines.declare("e0", Origin.STATSD, 10) == "e0", "a name that it has stays its own"


def test_a_name_that_came_before_its_process_leaves_no_ghost() -> None:
    engines, _ = make(t10=5)
    engines.declare("chat", Origin.CONFIG, 10)
    engines.declare("e", Origin.STATSD)
    assert engines.declare("e", Origin.STATSD, 10) == "chat"
    assert engines.names() == ["chat"]
    assert engines.canonical("e") == "chat"


def test_a_full_table_makes_room_for_the_living() -> None:
    engines, host = make(**{f"t{tgid}": 1 for tgid in range(1, Engines.MAX_ENGINES + 1)})
    for tgid in list(host.alive):
        engines.declare(f"job{tgid}", Origin.STATSD, tgid)
    del host.alive[7]
    engines.prune(0.0)
    host.alive[1000] = 1
    assert engines.declare("real", Origin.STATSD, 1000) == "real"
    assert "job7" not in engines.names()
    assert engines.refused == 0


class TestScan:
    """Engines that a scan found, beside those that somebody named."""

    def test_alone(self) -> None:
        engines, _ = make(t10=5, t11=6)
        assert engines.discover("vllm-8000", [10, 11, 12]) == "vllm-8000"
        assert engines.processes("vllm-8000") == [ProcessId(10, 5), ProcessId(11, 6)]
        assert engines.discover("gone", [77]) is None

    def test_whoever_else_named_it_wins_the_name_and_gets_its_processes(self) -> None:
        for origin, name in ((Origin.STATSD, "hooks"), (Origin.CONFIG, "chat")):
            for scan_first in (True, False):
                engines, _ = make(t10=5, t11=6)
                if scan_first:
                    engines.discover("vllm-8000", [10, 11])
                engines.declare(name, origin, 11)
                if not scan_first:
                    engines.discover("vllm-8000", [10, 11])
                assert engines.names() == [name], (origin, scan_first)
                assert engines.processes(name) == [ProcessId(10, 5), ProcessId(11, 6)]
                assert engines.canonical("vllm-8000") == name
                assert engines.discover("vllm-8000", [10, 11]) == name

    def test_something_that_calls_itself_as_a_configured_engine_is_another(self) -> None:
        engines, _ = make(t10=5, t20=6)
        engines.declare("chat", Origin.CONFIG, 10)
        assert engines.discover("chat", [20]) == "chat-pid20"
        assert engines.processes("chat") == [ProcessId(10, 5)]
        assert engines.discover("chat", [10]) == "chat"

    def test_all_three(self) -> None:
        engines, _ = make(t10=5, t11=6)
        engines.discover("vllm-8000", [10, 11])
        engines.declare("hooks", Origin.STATSD, 11)
        engines.declare("chat", Origin.CONFIG, 10)
        assert engines.names() == ["chat"]
        assert engines.processes("chat") == [ProcessId(10, 5), ProcessId(11, 6)]
        assert engines.canonical("hooks") == "chat"
        assert engines.discover("vllm-8000", [10, 11]) == "chat"

    def test_announced_by_name_before_it_is_found(self) -> None:
        engines, _ = make(t10=5)
        engines.discover("vllm-8000", [10])
        engines.declare("hooks", Origin.STATSD)
        engines.declare("hooks", Origin.STATSD, 10)
        assert engines.names() == ["hooks"]

    def test_a_restart_keeps_the_better_name(self) -> None:
        engines, host = make(t10=5)
        engines.declare("hooks", Origin.STATSD, 10)
        engines.discover("vllm-8000", [10])
        host.alive = {20: 9}
        engines.prune(0.0)
        assert engines.discover("vllm-8000", [20]) == "hooks"
        assert engines.processes("hooks") == [ProcessId(20, 9)]

    def test_another_engine_at_that_port_later(self) -> None:
        engines, host = make(t10=5)
        engines.declare("hooks", Origin.STATSD, 10)
        engines.discover("vllm-8000", [10])
        host.alive[20] = 9
        assert engines.discover("vllm-8000", [20]) == "vllm-8000"
        assert engines.names() == ["hooks", "vllm-8000"]

    def test_an_alias_is_forgotten_with_its_engine(self) -> None:
        engines, host = make(t10=5)
        engines.declare("hooks", Origin.STATSD, 10)
        engines.discover("vllm-8000", [10])
        host.alive = {}
        engines.prune(0.0)
        engines.prune(Engines.FORGET_DOWN_AFTER_S + 1.0)
        assert engines.names() == []
        assert engines.canonical("vllm-8000") == "vllm-8000"
        assert engines.silent() == []

    def test_a_full_table(self) -> None:
        engines, host = make()
        host.alive = dict.fromkeys(range(1, Engines.MAX_ENGINES + 2), 1)
        names = [engines.discover(f"e{tgid}", [tgid]) for tgid in host.alive]
        assert names[-1] is None
        assert engines.refused == 1

    def test_the_most_processes(self) -> None:
        engines, host = make()
        host.alive = dict.fromkeys(range(1, 500), 1)
        engines.discover("many", list(host.alive))
        assert len(engines.processes("many")) == Engines.MAX_PROCESSES
        engines.declare("hooks", Origin.STATSD, 3)
        assert len(engines.processes("hooks")) == Engines.MAX_PROCESSES


class TestIntruders:
    """Another user's process that calls itself as an engine of the configuration: 10 and 11 are user 7's, 20 and 21 another's, 30
    is root's, 40 the agent's own."""

    def make(self, home: Home) -> Engines:
        uids = {10: 7, 11: 7, 20: 666, 21: 666, 30: 0, 40: 1000}
        engines = Engines(lambda tgid: 5 if tgid in uids else None, uids.get, frozenset({0, 1000}))
        engines.configure("chat", home)
        return engines

    def come(self, engines: Engines, origin: Origin, tgid: int) -> str | None:
        return engines.discover("chat", [tgid]) if origin is Origin.SCAN else engines.declare("chat", origin, tgid)

    @pytest.mark.parametrize("origin", [Origin.SCAN, Origin.STATSD])
    @pytest.mark.parametrize("home", [Home.HERE, Home.ELSEWHERE])
    def test_of_an_engine_that_is_down_or_elsewhere(self, origin: Origin, home: Home) -> None:
        engines = self.make(home)
        assert self.come(engines, origin, 20) == "chat-pid20"
        assert (engines.processes("chat"), engines.state("chat")) == ([], "unknown")
        assert engines.state("chat-pid20") == "up"

    @pytest.mark.parametrize("tgid", [10, 20, 30, 40])
    def test_nobody_here_is_an_engine_of_another_host(self, tgid: int) -> None:
        engines = self.make(Home.ELSEWHERE)
        assert engines.declare("chat", Origin.STATSD, tgid) == f"chat-pid{tgid}"
        assert engines.discover("chat", [tgid]) == f"chat-pid{tgid}"
        assert engines.processes("chat") == []

    def test_of_one_that_runs(self) -> None:
        engines = self.make(Home.HERE)
        engines.declare("chat", Origin.CONFIG, 10)
        assert engines.declare("chat", Origin.STATSD, 20) == "chat-pid20"
        assert engines.declare("chat", Origin.STATSD, 11) == "chat", "the same user's"
        assert engines.declare("chat", Origin.STATSD, 30) == "chat", "root's"
        assert engines.declare("chat", Origin.STATSD, 40) == "chat", "the agent's own user's"
        assert [process.tgid for process in engines.processes("chat")] == [10, 11, 30, 40]

    def test_a_restart_is_known_by_its_user(self) -> None:
        alive = {10: 5}
        engines = Engines(alive.get, {10: 7, 11: 7, 20: 666}.get)
        engines.configure("chat", Home.HERE)
        engines.declare("chat", Origin.CONFIG, 10)
        alive.clear()
        assert engines.prune(1.0) == ["chat"]
        alive.update({11: 9, 20: 9})
        assert engines.discover("chat", [20]) == "chat-pid20"
        assert engines.state("chat") == "down"
        assert engines.declare("chat", Origin.STATSD, 11) == "chat"

    def test_beside_the_real_one_under_its_own_name(self) -> None:
        """The engine calls itself `hooks`, and so does the intruder: only one of them is what the configuration means."""
        engines = self.make(Home.HERE)
        engines.declare("hooks", Origin.STATSD, 10)
        engines.declare("hooks", Origin.STATSD, 20)
        engines.declare("chat", Origin.CONFIG, 10)
        assert engines.processes("chat") == [ProcessId(10, 5)]

    def test_in_the_group_of_the_real_one(self) -> None:
        engines = self.make(Home.HERE)
        engines.declare("chat", Origin.CONFIG, 10)
        assert engines.discover("vllm-8000", [10, 11, 20]) == "chat"
        assert [process.tgid for process in engines.processes("chat")] == [10, 11]

    def test_where_there_is_only_a_name_the_first_one_has_it(self) -> None:
        engines = self.make(Home.UNSAID)
        assert engines.declare("chat", Origin.STATSD, 10) == "chat"
        assert engines.declare("chat", Origin.STATSD, 20) == "chat-pid20"
        assert engines.discover("chat", [11]) == "chat-pid11", "one found beside it is another"
        assert engines.declare("chat", Origin.STATSD, 11) == "chat"

    def test_engines_that_nobody_configured_are_not_told_apart_by_user(self) -> None:
        engines = self.make(Home.HERE)
        assert engines.declare("other", Origin.STATSD, 10) == "other"
        assert engines.declare("other", Origin.STATSD, 20) == "other"
