"""Fixtures of the end-to-end tests."""

from tests.e2e.programs import start

__all__ = ["start"]
