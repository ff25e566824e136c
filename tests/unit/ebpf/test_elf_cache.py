"""What is remembered of a file, and when it is asked again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aie_ebpf.elf import Elf, ElfError
from aie_ebpf.elf_cache import ElfCache
from tests.fakes.compiled import shared_library


class Asker:
    """Answers with how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, elf: Elf) -> int:
        self.asked += 1
        return self.asked


def test_a_question_is_answered_once_a_file(tmp_path: Path) -> None:
    path, ask, cache = shared_library(tmp_path / "a.so", "int a;"), Asker(), ElfCache()
    link = tmp_path / "link.so"
    link.symlink_to(path)
    assert [cache.ask(path, "x", ask), cache.ask(link, "x", ask), cache.ask(path, "y", ask)] == [1, 1, 2]


def test_a_file_that_was_written_to_is_asked_again(tmp_path: Path) -> None:
    path, ask, cache = shared_library(tmp_path / "a.so", "int a;"), Asker(), ElfCache()
    assert cache.ask(path, "x", ask) == 1
    with path.open("ab") as file:
        file.write(b"more")
    assert cache.ask(path, "x", ask) == 2
    os.replace(shared_library(tmp_path / "b.so", "int b;"), path)
    assert cache.ask(path, "x", ask) == 3


def test_an_error_is_kept_too(tmp_path: Path) -> None:
    path, ask, cache = tmp_path / "text", Asker(), ElfCache()
    path.write_text("no library")
    for _ in range(2):
        with pytest.raises(ElfError, match="not an ELF file"):
            cache.ask(path, "x", ask)
    assert ask.asked == 0
    with pytest.raises(ElfError, match="cannot be opened: No such file"):
        cache.ask(tmp_path / "absent", "x", ask)


def test_what_the_system_refused_is_asked_again(tmp_path: Path) -> None:
    """A process that ends takes with it the way to its files, not what is in them."""
    path, ask, cache = shared_library(tmp_path / "a.so", "int a;"), Asker(), ElfCache()

    def ends_meanwhile(elf: Elf) -> int:
        try:
            return len((tmp_path / "absent").read_bytes())
        except OSError as error:
            raise ElfError(f"cannot be read: {error.strerror}") from error

    with pytest.raises(ElfError, match="cannot be read"):
        cache.ask(path, "x", ends_meanwhile)
    assert cache.ask(path, "x", ask) == 1


def test_only_the_last_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aie_ebpf.elf_cache._MOST_FILES", 2)
    paths, ask, cache = [shared_library(tmp_path / f"{n}.so", "int a;") for n in range(3)], Asker(), ElfCache()
    assert [cache.ask(paths[n], "x", ask) for n in (0, 1, 0, 2, 0, 1)] == [1, 2, 1, 3, 1, 4]
