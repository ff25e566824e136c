"""Which process sends for which engine: claims looked up in a tree, and how often it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.proc_tree import ProcTree

from aie_agent.samples import Hello
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.statsd_senders import (
    MAX_NAMES,
    MAX_SENDERS,
    REFRESH_S,
    SCAN_EVERY_S,
    Heard,
    Introductions,
    NamespacePids,
    Senders,
)
from aie_agent.sources.statsd_series import Identity

NOBODY = Senders()


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


def resolve(tree: ProcTree, claim: int) -> int | None:
    return NamespacePids(Procfs(tree.root)).resolve({claim}, 0.0)[claim]


def test_a_process_on_the_host_is_found_by_its_own_pid(tree: ProcTree) -> None:
    tree.process(4711)
    assert resolve(tree, 4711) == 4711


def test_a_process_in_a_container_is_found_by_its_innermost_pid(tree: ProcTree) -> None:
    tree.process(4711, nspid=(4711, 42, 7))
    assert resolve(tree, 7) == 4711
    assert resolve(tree, 42) is None  # what it is called half way means nothing to itself


def test_two_containers_cannot_be_told_apart(tree: ProcTree) -> None:
    tree.process(4711, nspid=(4711, 7))
    tree.process(4712, nspid=(4712, 7))
    assert resolve(tree, 7) is None


def test_a_container_and_the_host_cannot_be_told_apart(tree: ProcTree) -> None:
    tree.process(4711, nspid=(4711, 7))
    tree.process(7)
    assert resolve(tree, 7) is None


def test_nobody_is_the_hosts_init(tree: ProcTree) -> None:
    assert resolve(tree, 1) is None  # it may be one of a container that cannot be seen
    tree.process(4711, nspid=(4711, 1))
    assert resolve(tree, 1) is None


def test_kernel_threads_send_nothing(tree: ProcTree) -> None:
    tree.process(4711, nspid=(4711, 7))
    tree.process(7)
    tree.write("7/status", "Name:\tkthreadd\nTgid:\t7\nNSpid:\t7\nThreads:\t1\n")
    assert resolve(tree, 7) == 4711


def test_a_pid_that_nobody_has(tree: ProcTree) -> None:
    assert resolve(tree, 99) is None


def test_the_processes_are_looked_through_seldom_and_answers_are_kept(tree: ProcTree) -> None:
    tree.process(4711, nspid=(4711, 7))
    pids = NamespacePids(Procfs(tree.root))
    assert pids.resolve({7}, 100.0) == {7: 4711}
    tree.process(4712, nspid=(4712, 8))
    assert pids.resolve({7, 8}, 101.0) == {7: 4711}  # not known yet, which is not the same as nobody
    assert pids.resolve({7, 8}, 100.0 + SCAN_EVERY_S) == {7: 4711, 8: 4712}


def test_an_answer_ends_with_the_process(tree: ProcTree) -> None:
    tree.process(4711, nspid=(4711, 7))
    pids = NamespacePids(Procfs(tree.root))
    assert pids.resolve({7}, 100.0) == {7: 4711}
    tree.process(4711, start=99_999)  # the pid was given to another process
    tree.process(4713, nspid=(4713, 7))
    assert pids.resolve({7}, 101.0) == {}
    assert pids.resolve({7}, 106.0) == {7: 4713}


def introductions(tree: ProcTree) -> Introductions:
    return Introductions(NamespacePids(Procfs(tree.root)))


def test_a_sender_is_reported_once_and_again_after_some_seconds(tree: ProcTree) -> None:
    hellos = introductions(tree)
    sure = Senders(sure={Hello("e", 4711)})
    assert hellos.report(sure, 100.0) == [Hello("e", 4711)]
    assert hellos.report(sure, 101.0) == []
    assert hellos.report(NOBODY, 100.0 + REFRESH_S) == []
    assert hellos.report(sure, 101.0 + REFRESH_S) == [Hello("e", 4711)]


def test_a_change_is_reported_at_once(tree: ProcTree) -> None:
    hellos = introductions(tree)
    hellos.report(Senders(sure={Hello("e", 4711)}), 100.0)
    changed = Senders(sure={Hello("e", 4712), Hello("f", 4711)})
    assert hellos.report(changed, 101.0) == [Hello("e", 4712), Hello("f", 4711)]


def test_a_claim_waits_for_the_next_scan(tree: ProcTree) -> None:
    tree.process(4711, nspid=(4711, 7))
    hellos = introductions(tree)
    assert hellos.report(Senders(claims={Identity("x", 99)}), 100.0) == [Hello("x", None)]
    assert hellos.report(Senders(claims={Identity("e", 7)}, names={"e"}), 101.0) == []
    assert hellos.report(NOBODY, 102.0) == []
    assert hellos.report(NOBODY, 100.0 + SCAN_EVERY_S) == [Hello("e", 4711)]
    assert hellos.report(NOBODY, 200.0) == []


def test_an_engine_without_a_process_is_known_by_its_name(tree: ProcTree) -> None:
    hellos = introductions(tree)
    named = Senders(names={"f", "e"})
    assert hellos.report(named, 100.0) == [Hello("e", None), Hello("f", None)]
    assert hellos.report(named, 101.0) == []
    assert hellos.report(named, 101.0 + REFRESH_S) == [Hello("e", None), Hello("f", None)]


@pytest.mark.parametrize("pid", [1, 7, 99])
def test_a_claim_that_cannot_be_settled_leaves_the_name(tree: ProcTree, pid: int) -> None:
    tree.process(7)
    tree.process(4711, nspid=(4711, 7))
    assert introductions(tree).report(Senders(claims={Identity("e", pid)}), 100.0) == [Hello("e", None)]


def test_the_name_of_an_engine_that_has_a_process_says_nothing_more(tree: ProcTree) -> None:
    tree.process(4711)
    hellos = introductions(tree)
    assert hellos.report(Senders(claims={Identity("e", 4711)}, names={"e"}), 100.0) == [Hello("e", 4711)]
    assert hellos.report(Senders(names={"e"}), 110.0) == []
    assert hellos.report(Senders(names={"e"}), 170.0) == [Hello("e", None)]


def test_names_are_capped_and_the_known_ones_go_on(tree: ProcTree) -> None:
    hellos = introductions(tree)
    many = Senders(names={f"e{number:03}" for number in range(MAX_NAMES + 10)})
    assert len(hellos.report(many, 100.0)) == MAX_NAMES
    assert hellos.refused == {"sender_limit": 10}
    assert hellos.report(Senders(names={"e000", "new"}, sure={Hello("f", 4711)}), 106.0) == [Hello("e000", None), Hello("f", 4711)]
    assert hellos.report(Senders(names={"new"}), 200.0) == [Hello("new", None)]


def test_only_the_kernels_word_or_an_admissible_claim_says_which_process() -> None:
    heard = Heard()
    heard.add(Identity("a"), 11, may_claim=False)
    heard.add(Identity("b", 5), 12, may_claim=True)  # credentials go before claims
    heard.add(Identity("c", 6), None, may_claim=True)
    heard.add(Identity("d", 7), None, may_claim=False)
    heard.add(Identity("f"), None, may_claim=True)
    assert heard.take() == ({Hello("a", 11), Hello("b", 12)}, {Identity("c", 6)}, {"d", "f"})
    assert heard.take() == NOBODY
    assert heard.refused == {"foreign_hello": 1}


def test_senders_are_capped(tree: ProcTree) -> None:
    tree.process(4711)
    heard = Heard()
    for number in range(MAX_SENDERS + 10):
        heard.add(Identity("e", 4711 + number), None, may_claim=True)
    assert heard.refused == {"sender_limit": 10}
    assert introductions(tree).report(heard.take(), 101.0) == [Hello("e", 4711)]
