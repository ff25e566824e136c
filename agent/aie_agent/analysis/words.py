"""Texts of findings, as people write them."""

from __future__ import annotations


def sentence(text: str) -> str:
    """With a capital and a full stop; "" stays so."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}." if text else ""
