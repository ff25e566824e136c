"""What an engine may be called."""

from __future__ import annotations

import pytest

from aie_telemetry.names import is_engine_name


@pytest.mark.parametrize("name", ["a", "7", "chat", "meta-llama/Llama-3.2@b200_1", "e" * 63])
def test_names(name: str) -> None:
    assert is_engine_name(name)


@pytest.mark.parametrize("name", ["", "-a", ".a", "/a", "a b", "a:b", "a,b", "a=b", "a|b", "é", "a\n", "e" * 64])
def test_what_is_none(name: str) -> None:
    assert not is_engine_name(name)
