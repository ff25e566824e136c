"""What a page of the runbooks points at is there: for who reads it in the tree, and for whom it is served or exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import aie_alerts

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = aie_alerts.pages()
LINK: Final = re.compile(r"\]\(([^)]+)\)")
DOCUMENT: Final = re.compile(r"docs/[\w/-]+\.md")


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_lead_somewhere(name: str) -> None:
    source, served = PAGES[name].read_text(), aie_alerts.page_text(PAGES[name])
    assert [link for link in LINK.findall(source) if not (PAGES[name].parent / link).exists()] == []
    assert [link for link in LINK.findall(served) if link.removesuffix(".md") not in PAGES] == []
    assert [document for document in DOCUMENT.findall(served) if not (ROOT / document).exists()] == []


def test_every_kind_of_link_is_tried() -> None:
    """Else the test above holds of pages that have none."""
    every = [link for path in PAGES.values() for link in LINK.findall(path.read_text())]
    assert any("/" not in link for link in every)
    assert any(link.startswith("../../../docs/runbooks/") for link in every)
    assert any(re.fullmatch(r"\.\./\w+\.md", link) for link in every)


def test_a_document_is_named_by_its_place_in_the_tree(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "As of [memory_leak](memory_leak.md), [there](../../../docs/runbooks/cuda_oom.md), [../leaks.md](../leaks.md) too."
    )
    assert aie_alerts.page_text(page) == (
        "As of [memory_leak](memory_leak.md), [there](cuda_oom.md), `docs/leaks.md` in the source tree too."
    )
