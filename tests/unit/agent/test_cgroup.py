"""Control groups of both versions, from trees written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from aie_agent.sources.cgroup import Cgroups, flat_keyed, has_quota, limit_bytes, lineage
from aie_agent.sources.procfs_text import CgroupPaths

CPU_STAT_V2 = "usage_usec 900\nuser_usec 600\nsystem_usec 300\nnr_periods 40\nnr_throttled 7\nthrottled_usec 2500000\n"
CPU_STAT_V1 = "nr_periods 40\nnr_throttled 7\nthrottled_time 2500000000\n"
V1_NO_LIMIT = "9223372036854771712\n"


def write(root: Path, **files: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name.replace("__", ".")).write_text(content)


def v2(root: Path) -> Path:
    write(root, cgroup__controllers="cpu memory\n")
    return root


def unified(path: str) -> CgroupPaths:
    return CgroupPaths(path, None, None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"max 100000\n", False), (b"50000 100000\n", True), (b"-1\n", False), (b"50000\n", True), (b"", False)],
)
def test_has_quota(content: bytes, expected: bool) -> None:
    assert has_quota(content) is expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"max\n", None), (b"1048576\n", 1 << 20), (V1_NO_LIMIT.encode(), None), (b"", None), (b"0\n", 0)],
)
def test_limit_bytes(content: bytes, expected: int | None) -> None:
    assert limit_bytes(content) == expected


def test_flat_keyed_passes_over_what_it_does_not_know() -> None:
    assert flat_keyed(b"nr_periods 4\nburst\nx 1 2\n\n") == {b"nr_periods": 4}


def test_lineage_is_nearest_first_and_empty_outside_of_the_mount() -> None:
    assert lineage("/a/b") == ["/a/b", "/a", ""]
    assert lineage("/") == [""]
    assert lineage("/../../other") == []
    assert lineage("/a/..") == []
    assert lineage("/..a/b") == ["/..a/b", "/..a", ""]
    assert lineage("") == []


def test_v2_quota_of_the_group_itself(tmp_path: Path) -> None:
    root = v2(tmp_path)
    write(root / "a", cpu__max="50000 100000\n", cpu__stat=CPU_STAT_V2)
    found = Cgroups(root).throttling(unified("/a"), 0)
    assert found is not None
    assert found[1:] == (40, 7, 2.5)


def test_v2_quota_of_an_ancestor_binds_too(tmp_path: Path) -> None:
    """A container without a limit of its own in a pod with one."""
    root = v2(tmp_path)
    write(root / "pod", cpu__max="50000 100000\n", cpu__stat=CPU_STAT_V2)
    write(root / "pod/container", cpu__max="max 100000\n", cpu__stat="nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    found = Cgroups(root).throttling(unified("/pod/container"), 0)
    assert found is not None
    assert found.group == str(root / "pod")
    assert found.throttled_s == 2.5


@pytest.mark.parametrize("quota", ["max 100000\n", None])
def test_without_a_quota_there_is_nothing_to_say(tmp_path: Path, quota: str | None) -> None:
    root = v2(tmp_path)
    write(root / "a", cpu__stat=CPU_STAT_V2)
    if quota is not None:
        write(root / "a", cpu__max=quota)
    assert Cgroups(root).throttling(unified("/a"), 0) is None


def test_v1_throttled_time_is_in_nanoseconds(tmp_path: Path) -> None:
    write(tmp_path / "cpu,cpuacct/a", cpu__cfs_quota_us="50000\n", cpu__stat=CPU_STAT_V1)
    found = Cgroups(tmp_path).throttling(CgroupPaths("/u", "/a", None), 0)
    assert found is not None
    assert found[1:] == (40, 7, 2.5)


def test_v1_without_quota(tmp_path: Path) -> None:
    write(tmp_path / "cpu/a", cpu__cfs_quota_us="-1\n", cpu__stat=CPU_STAT_V1)
    assert Cgroups(tmp_path).throttling(CgroupPaths(None, "/a", None), 0) is None


def test_v2_memory_and_the_tightest_limit_above(tmp_path: Path) -> None:
    root = v2(tmp_path)
    write(root / "pod", memory__max="3000\n")
    write(root / "pod/container", memory__max="4000\n", memory__current="1234\n")
    found = Cgroups(root).memory(unified("/pod/container"), 0)
    assert found is not None
    assert (found.used, found.limit) == (1234, 3000)


def test_v2_memory_without_a_limit(tmp_path: Path) -> None:
    root = v2(tmp_path)
    write(root / "a", memory__max="max\n", memory__current="1234\n")
    found = Cgroups(root).memory(unified("/a"), 0)
    assert found is not None
    assert (found.used, found.limit) == (1234, None)


def test_v1_memory(tmp_path: Path) -> None:
    write(tmp_path / "memory", memory__usage_in_bytes="999999\n", memory__limit_in_bytes=V1_NO_LIMIT)
    write(tmp_path / "memory/a", memory__usage_in_bytes="77\n", memory__limit_in_bytes="100\n")
    cgroups = Cgroups(tmp_path)
    found = cgroups.memory(CgroupPaths(None, None, "/a"), 0)
    assert found is not None
    assert (found.used, found.limit) == (77, 100)
    assert cgroups.memory(CgroupPaths(None, None, "/"), 0) is None  # the host's memory is not the engine's


@pytest.mark.parametrize(
    ("pod", "container", "expected"),
    [
        ("anon 2700\nfile 90\nshmem 200\n", "anon 1000\nshmem 100\n", 2900 / 3000),
        ("anon 1000\nshmem 0\n", "anon 3000\nfile 900\nshmem 900\n", 3900 / 4000),
        ("anon 1000\n", "anon 3000\nshmem 0\n", 3000 / 4000),
        ("anon 1000\n", "shmem 3000\n", None),
    ],
)
def test_v2_memory_that_is_held_below_the_nearest_limit(tmp_path: Path, pod: str, container: str, expected: float | None) -> None:
    """Each group against its own limit, whoever else is in it; what does not say all is passed over."""
    root = v2(tmp_path)
    write(root, memory__stat="anon 9000\nshmem 0\n")
    write(root / "pod", memory__max="3000\n", memory__stat=pod)
    write(root / "pod/container", memory__max="4000\n", memory__current="1234\n", memory__stat=container)
    found = Cgroups(root).memory(unified("/pod/container"), 0)
    assert found is not None
    assert found.held_ratio == expected


def test_v1_memory_that_is_held_counts_all_below(tmp_path: Path) -> None:
    stat = "rss 1\nshmem 1\ntotal_cache 70\ntotal_rss 40\ntotal_shmem 20\n"
    write(tmp_path / "memory/a", memory__usage_in_bytes="99\n", memory__limit_in_bytes="100\n", memory__stat=stat)
    found = Cgroups(tmp_path).memory(CgroupPaths(None, None, "/a"), 0)
    assert found is not None
    assert found.held_ratio == 0.6


def test_a_limit_of_nothing_is_no_share(tmp_path: Path) -> None:
    root = v2(tmp_path)
    write(root / "a", memory__current="0\n", memory__max="0\n", memory__stat="anon 0\nshmem 0\n")
    assert Cgroups(root).memory(unified("/a"), 0) == (str(root / "a"), 0, 0, None)


def test_a_hybrid_host_uses_v1_for_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "unified", cgroup__controllers="")
    write(tmp_path / "memory/a", memory__usage_in_bytes="77\n")
    cgroups = Cgroups(tmp_path)
    paths = CgroupPaths("/", None, "/a")
    found = cgroups.memory(paths, 0)
    assert found is not None
    assert found.used == 77
    assert cgroups.throttling(paths, 0) is None


@pytest.mark.parametrize("path", ["/../somewhere", "/gone", "/gone (deleted)", "/"])
def test_a_group_that_cannot_be_seen_is_absent_and_no_error(tmp_path: Path, path: str) -> None:
    cgroups = Cgroups(v2(tmp_path))
    assert cgroups.throttling(unified(path), 0) is None
    assert cgroups.memory(unified(path), 0) is None


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path / "nothing")
    assert cgroups.throttling(unified("/a"), 0) is None
    assert cgroups.memory(CgroupPaths(None, None, None), 0) is None


def test_a_quota_that_is_set_is_seen_within_two_seconds_and_a_limit_within_ten(tmp_path: Path) -> None:
    root = v2(tmp_path)
    write(root / "a", cpu__max="max 100000\n", cpu__stat=CPU_STAT_V2, memory__current="5\n", memory__max="max\n")
    cgroups = Cgroups(root)
    assert cgroups.throttling(unified("/a"), 100) is None
    assert cgroups.memory(unified("/a"), 100) == (str(root / "a"), 5, None, None)
    write(root / "a", cpu__max="1000 100000\n", memory__max="9\n")
    assert cgroups.throttling(unified("/a"), 102) is not None
    assert cgroups.memory(unified("/a"), 102) == (str(root / "a"), 5, None, None)
    assert cgroups.memory(unified("/a"), 110) == (str(root / "a"), 5, 9, None)


def test_nonsense_is_an_error_that_says_so(tmp_path: Path) -> None:
    root = v2(tmp_path)
    write(root / "a", memory__current="lots\n")
    with pytest.raises(ValueError, match="lots"):
        Cgroups(root).memory(unified("/a"), 0)
